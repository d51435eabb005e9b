// Barriers, functions of simdgroups, their matrices, and atomics.
#pragma once

namespace metal {

// Synchronization and simdgroups

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
METAL_FUNC void threadgroup_barrier(mem_flags flags) { softmetal_barrier(uint(flags)); }
METAL_FUNC void simdgroup_barrier(mem_flags) { softmetal_simdgroup_barrier(); }

template <typename T> struct __is_valid_simdgroup_type : false_type {};
#define VALID(type) \
    template <> struct __is_valid_simdgroup_type<type> : true_type {};
VALID(char) VALID(int8_t) VALID(uchar) VALID(short) VALID(ushort) VALID(int) VALID(uint) FLOATS(VALID) VALID(bool)
template <typename T, int N>
struct __is_valid_simdgroup_type<T __attribute__((ext_vector_type(N)))> : __is_valid_simdgroup_type<T> {};
#define SIMD_TYPE typename = enable_if_t<__is_valid_simdgroup_type<T>::value>

template <typename T>
struct Lanes {
    const host::Exchange *exchange;
    METAL_FUNC bool active(uint lane) const { return lane < 32 && (exchange->active >> lane & 1); }
    NOT_CHECKED T operator[](uint lane) const {
        T value;
        __builtin_memcpy(&value, exchange->slots[lane], sizeof value);
        return value;
    }
    // What a lane gets of one that does not take part is undefined.
    NOT_CHECKED T get(uint lane) const {
        if (active(lane)) return (*this)[lane];
        T value;
        __builtin_memset(&value, 0xff, sizeof value);
        return value;
    }
};
template <typename T>
METAL_FUNC Lanes<T> publish(const T &value) { return {softmetal_exchange(&value, sizeof value)}; }

template <typename T, SIMD_TYPE> METAL_FUNC T simd_shuffle(T value, ushort lane) { return publish(value).get(lane); }
template <typename T, SIMD_TYPE> METAL_FUNC T simd_broadcast(T value, ushort lane) { return publish(value).get(lane); }
template <typename T, SIMD_TYPE> METAL_FUNC T simd_shuffle_xor(T value, ushort mask) {
    return publish(value).get(softmetal_lane() ^ mask);
}
template <typename T, SIMD_TYPE> METAL_FUNC T simd_shuffle_down(T value, ushort delta) {
    const Lanes<T> lanes = publish(value);
    const uint lane = softmetal_lane() + delta;
    return lane < 32 ? lanes.get(lane) : value;
}
template <typename T, SIMD_TYPE> METAL_FUNC T simd_shuffle_up(T value, ushort delta) {
    const Lanes<T> lanes = publish(value);
    const uint lane = softmetal_lane();
    return lane >= delta ? lanes.get(lane - delta) : value;
}

// A tree over the lanes that take part.
template <typename T, typename F>
METAL_FUNC T reduce(T value, F combine) {
    const Lanes<T> lanes = publish(value);
    T values[32];
    uint active = lanes.exchange->active;
    for (uint i = 0; i < 32; i++) values[i] = lanes[i];
    for (uint width = 16; width > 0; width /= 2) {
        for (uint i = 0; i < width; i++) {
            const bool left = active >> i & 1, right = active >> (i + width) & 1;
            if (right) values[i] = left ? combine(values[i], values[i + width]) : values[i + width];
            if (right) active |= 1u << i;
        }
    }
    return values[0];
}
template <typename T, SIMD_TYPE> METAL_FUNC T simd_sum(T v) { return reduce(v, [](T a, T b) { return T(a + b); }); }
template <typename T, SIMD_TYPE> METAL_FUNC T simd_product(T v) { return reduce(v, [](T a, T b) { return T(a * b); }); }
template <typename T, SIMD_TYPE> METAL_FUNC T simd_min(T v) { return reduce(v, [](T a, T b) { return min(a, b); }); }
template <typename T, SIMD_TYPE> METAL_FUNC T simd_max(T v) { return reduce(v, [](T a, T b) { return max(a, b); }); }
METAL_FUNC bool simd_any(bool v) { return reduce(v, [](bool a, bool b) { return a || b; }); }
METAL_FUNC bool simd_all(bool v) { return reduce(v, [](bool a, bool b) { return a && b; }); }

// A lane holds two neighbours of a row.
struct Fragment {
    uint row, column;
    METAL_FUNC static uint row_of(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
    METAL_FUNC static uint column_of(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
    METAL_FUNC static uint lane_of(uint row, uint column) {
        return (row & 4) * 4 + (row & 3) * 2 + (column & 4) * 2 + (column & 2) / 2;
    }
    METAL_FUNC Fragment() : row(row_of(softmetal_lane())), column(column_of(softmetal_lane())) {}
};

template <typename T, int C, int R>
struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "only 8x8");
    vec<T, 2> elements;
    simdgroup_matrix() = default;
    METAL_FUNC explicit simdgroup_matrix(T diagonal) {
        const Fragment f;
        for (uint i = 0; i < 2; i++) elements[i] = f.row == f.column + i ? diagonal : T(0);
    }
    METAL_FUNC vec<T, 2> &thread_elements() { return elements; }
    METAL_FUNC const vec<T, 2> &thread_elements() const { return elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int C, int R = C>
METAL_FUNC simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, C, R> matrix;
    matrix.elements = vec<T, 2>(value);
    return matrix;
}
template <typename T>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8> &to, const T *from, ulong row_elements = 8, ulong2 origin = 0, bool transpose = false) {
    const Fragment f;
    for (uint i = 0; i < 2; i++) {
        const ulong row = transpose ? f.column + i : f.row, column = transpose ? f.row : f.column + i;
        to.elements[i] = from[(origin.y + row) * row_elements + origin.x + column];
    }
}
template <typename T>
METAL_FUNC void simdgroup_store(const simdgroup_matrix<T, 8, 8> &from, T *to, ulong row_elements = 8, ulong2 origin = 0, bool transpose = false) {
    const Fragment f;
    for (uint i = 0; i < 2; i++) {
        const ulong row = transpose ? f.column + i : f.row, column = transpose ? f.row : f.column + i;
        to[(origin.y + row) * row_elements + origin.x + column] = from.elements[i];
    }
}
template <typename D, typename A, typename B, typename C>
METAL_FUNC void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a,
                                              const simdgroup_matrix<B, 8, 8> &b, const simdgroup_matrix<C, 8, 8> &c) {
    struct Both { float a[2], b[2]; };
    const Lanes<Both> lanes = publish(Both{{float(a.elements[0]), float(a.elements[1])}, {float(b.elements[0]), float(b.elements[1])}});
    const Fragment f;
    float sums[2] = {float(c.elements[0]), float(c.elements[1])};
    for (uint k = 0; k < 8; k++) {
        const float left = ((const Both *)lanes.exchange->slots[Fragment::lane_of(f.row, k)])->a[k % 2];
        const Both *right = (const Both *)lanes.exchange->slots[Fragment::lane_of(k, f.column)];
        sums[0] += left * right->b[0];
        sums[1] += left * right->b[1];
    }
    d.elements[0] = D(sums[0]);
    d.elements[1] = D(sums[1]);
}
template <typename D, typename A, typename B>
METAL_FUNC void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, const simdgroup_matrix<A, 8, 8> &a, const simdgroup_matrix<B, 8, 8> &b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f));
}

// Atomics: lanes take turns, so plain accesses do.

enum memory_order { memory_order_relaxed };
template <typename T> struct atomic { T value; };
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
typedef atomic<float> atomic_float;
template <typename T> NOT_CHECKED T atomic_load_explicit(const volatile atomic<T> *a, memory_order) { return a->value; }
template <typename T> NOT_CHECKED void atomic_store_explicit(volatile atomic<T> *a, T v, memory_order) { a->value = v; }
#define ATOMIC(name, expression)                                                                      \
    template <typename T> NOT_CHECKED T atomic_fetch_##name##_explicit(volatile atomic<T> *a, T v, memory_order) { \
        const T old = a->value; a->value = expression; return old; }
ATOMIC(add, old + v) ATOMIC(sub, old - v) ATOMIC(min, v < old ? v : old) ATOMIC(max, old < v ? v : old)

}  // namespace metal
