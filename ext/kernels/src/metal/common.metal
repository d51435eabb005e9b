// Put in front of every other source of this folder: run-time compilation has no include path.
//
// Rules all kernels keep: storage is f32, f16 or bf16, arithmetic and statistics are f32, a value is
// rounded once, when it is stored. The last dimension of an input is dense; everything before it may
// be strided (`RowStarts`). Outputs are contiguous.
#include <metal_stdlib>
using namespace metal;

// Bits of the `flags` field every parameter block has.
constant constexpr uint ALIGNED = 1;        // every row of every buffer may be accessed four elements at a time
constant constexpr uint HAS_WEIGHT = 2;
constant constexpr uint HAS_BIAS = 4;
constant constexpr uint HAS_ADDITIVE = 8;
constant constexpr uint HAS_BOOLEAN = 16;
constant constexpr uint HAS_LENGTHS = 32;
constant constexpr uint INTERLEAVED = 64;
constant constexpr uint IS_GATED = 128;
constant constexpr uint HAS_RESIDUAL = 256;

// float4 vectors one lane keeps in registers between the passes over its row; what a longer row has
// beyond that is read again.
constant constexpr uint HELD_VECTORS = 4;
// 1024 lanes in simdgroups of 32.
constant constexpr uint MAXIMUM_SIMDGROUPS = 32;

// Where row r of a tensor starts: up to three leading dimensions, sizes of the two inner ones and all
// three strides, in elements. A stride of 0 repeats a row.
struct RowStarts {
    uint inner_size;
    uint middle_size;
    uint inner_stride;
    uint middle_stride;
    uint outer_stride;
};

static inline ulong row_start(constant RowStarts &starts, uint row) {
    const uint inner = row % starts.inner_size;
    const uint rest = row / starts.inner_size;
    const uint middle = rest % starts.middle_size;
    const uint outer = rest / starts.middle_size;
    return ulong(outer) * starts.outer_stride + ulong(middle) * starts.middle_stride
        + ulong(inner) * starts.inner_stride;
}

// One lane of a threadgroup that works on one row.
struct Lane {
    uint row;
    uint index;      // in the threadgroup
    uint count;      // lanes in the threadgroup
    uint lane;       // in the simdgroup
    uint simdgroup;
    uint simdgroups;
};

#define LANE_ARGUMENTS                                        \
    uint row        [[threadgroup_position_in_grid]],         \
    uint index      [[thread_index_in_threadgroup]],          \
    uint count      [[threads_per_threadgroup]],              \
    uint lane       [[thread_index_in_simdgroup]],            \
    uint simdgroup  [[simdgroup_index_in_threadgroup]],       \
    uint simdgroups [[simdgroups_per_threadgroup]]
#define LANE_STRUCT { row, index, count, lane, simdgroup, simdgroups }

static inline float4 four(float x, float y, float z, float w) {
    float4 v;
    v.x = x;
    v.y = y;
    v.z = z;
    v.w = w;
    return v;
}

static inline float4 splat(float x) {
    return four(x, x, x, x);
}

static inline float total(float4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

template <typename T>
static inline float4 load4(device const T *from, bool aligned) {
    if (aligned) {
        const vec<T, 4> v = *(device const vec<T, 4> *)from;
        return four(float(v.x), float(v.y), float(v.z), float(v.w));
    }
    return four(float(from[0]), float(from[1]), float(from[2]), float(from[3]));
}

// Four elements of a row; those beyond its width are zeros.
template <typename T>
static inline float4 four_of(device const T *row, uint column, uint width, bool aligned) {
    if (column + 4 <= width) {
        return load4(row + column, aligned);
    }
    return four(column < width ? float(row[column]) : 0.0f, column + 1 < width ? float(row[column + 1]) : 0.0f,
                column + 2 < width ? float(row[column + 2]) : 0.0f, 0.0f);
}

template <typename T>
static inline void store4(device T *to, float4 v, bool aligned) {
    if (aligned) {
        vec<T, 4> packed;
        packed.x = T(v.x);
        packed.y = T(v.y);
        packed.z = T(v.z);
        packed.w = T(v.w);
        *(device vec<T, 4> *)to = packed;
        return;
    }
    to[0] = T(v.x);
    to[1] = T(v.y);
    to[2] = T(v.z);
    to[3] = T(v.w);
}

// Reductions over the threadgroup, the result in every lane. `partials` holds one float per simdgroup
// and serves one reduction only: the next one brings its own, which saves the second barrier.
static inline float group_sum(float value, threadgroup float *partials, thread const Lane &at) {
    value = simd_sum(value);
    if (at.simdgroups == 1) {
        return value;
    }
    if (at.lane == 0) {
        partials[at.simdgroup] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(at.lane < at.simdgroups ? float(partials[at.lane]) : 0.0f);
}

static inline float group_max(float value, threadgroup float *partials, thread const Lane &at) {
    value = simd_max(value);
    if (at.simdgroups == 1) {
        return value;
    }
    if (at.lane == 0) {
        partials[at.simdgroup] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_max(at.lane < at.simdgroups ? float(partials[at.lane]) : -INFINITY);
}

// The part of a row that one lane works on. A source has `vector(i)`, elements i to i + 3, and
// `scalar(i)`; a visitor has `vector(value, i)`, which returns the value to keep for the next pass,
// and `scalar(value, i)` for the one to three elements a whole vector does not cover.
struct Held {
    float4 vectors[HELD_VECTORS];
    float tail;
};

template <typename Source>
static inline void hold(thread Held &held, thread const Source &source, uint columns, thread const Lane &at) {
    const uint whole = columns / 4;
    #pragma clang loop unroll(full)
    for (uint k = 0; k < HELD_VECTORS; k++) {
        const uint v = at.index + k * at.count;
        held.vectors[k] = splat(0.0f);
        if (v < whole) {
            held.vectors[k] = source.vector(4 * v);
        }
    }
    held.tail = at.index < columns % 4 ? source.scalar(4 * whole + at.index) : 0.0f;
}

template <typename Source, typename Visitor>
static inline void visit(
    thread Held &held, thread const Source &source, thread Visitor &visitor, uint columns, thread const Lane &at
) {
    const uint whole = columns / 4;
    #pragma clang loop unroll(full)
    for (uint k = 0; k < HELD_VECTORS; k++) {
        const uint v = at.index + k * at.count;
        if (v < whole) {
            held.vectors[k] = visitor.vector(held.vectors[k], 4 * v);
        }
    }
    for (uint v = at.index + HELD_VECTORS * at.count; v < whole; v += at.count) {
        visitor.vector(source.vector(4 * v), 4 * v);
    }
    if (at.index < columns % 4) {
        held.tail = visitor.scalar(held.tail, 4 * whole + at.index);
    }
}

template <typename T>
struct RowSource {
    device const T *x;
    bool aligned;

    float4 vector(uint i) const { return load4(x + i, aligned); }
    float scalar(uint i) const { return float(x[i]); }
};

struct SumVisitor {
    float sum;

    float4 vector(float4 v, uint) {
        sum += total(v);
        return v;
    }
    float scalar(float v, uint) {
        sum += v;
        return v;
    }
};

struct SquaresVisitor {
    float sum;

    float4 vector(float4 v, uint) {
        sum += total(v * v);
        return v;
    }
    float scalar(float v, uint) {
        sum = fma(v, v, sum);
        return v;
    }
};
