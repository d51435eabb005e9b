// The arguments of kernels, and the hooks of the checks.
#pragma once

namespace host {

using metal::vec_elements;

template <typename T>
METAL_FUNC T &threadgroup_variable(uint id) {
    return *(T *)softmetal_callbacks->threadgroup_variable(id, sizeof(T), alignof(T));
}

template <typename P>
METAL_FUNC P position(const uint (&v)[3]) {
    if constexpr (vec_elements<P>::value == 0) {
        return P(v[0]);
    } else {
        P result;
        for (uint i = 0; i < vec_elements<P>::value; i++) result[i] = v[i];
        return result;
    }
}

// The kinds are the places in the list of msl/kernels.rs.
template <typename P, int CODE>
struct Fetch {
    NOT_CHECKED static P get(const Position &p) {
        uint values[3] = {0, 0, 0};
        for (uint i = 0; i < 3; i++) {
            switch (CODE >> 8) {
            case 2: values[i] = p.group[i]; break;
            case 3: values[i] = p.groups[i]; break;
            case 4: values[i] = p.size[i]; break;
            case 5: values[i] = p.nominal_size[i]; break;
            case 6: values[i] = p.grid[i]; break;
            case 7: values[i] = p.group[i] * p.nominal_size[i] + p.thread_[i]; break;
            case 8: values[i] = p.thread_[i]; break;
            case 9: values[0] = p.index; break;
            case 10: values[0] = p.lane; break;
            case 11: values[0] = p.simdgroup; break;
            case 12: values[0] = p.simdgroups; break;
            case 13: values[0] = 32; break;
            }
        }
        return position<P>(values);
    }
};
template <typename T, int CODE>
struct Fetch<T *, CODE> {
    NOT_CHECKED static T *get(const Position &p) { return (T *)((CODE >> 8 == 0 ? p.buffers : p.threadgroup_)[CODE & 255]); }
};
template <typename T, int CODE>
struct Fetch<T &, CODE> {
    NOT_CHECKED static T &get(const Position &p) { return *(T *)((CODE >> 8 == 0 ? p.buffers : p.threadgroup_)[CODE & 255]); }
};

template <int... CODES>
struct Call {
    template <typename... P>
    NOT_CHECKED static void run(void (*kernel)(P...), const Position &p) { kernel(Fetch<P, CODES>::get(p)...); }
};

}  // namespace host

#ifdef SOFTMETAL_CHECKED
#define HOOKS(bytes)                                                                                                    \
    extern "C" NOT_CHECKED void __tsan_read##bytes(void *p) { softmetal_callbacks->access(p, bytes, false); }           \
    extern "C" NOT_CHECKED void __tsan_write##bytes(void *p) { softmetal_callbacks->access(p, bytes, true); }           \
    extern "C" NOT_CHECKED void __tsan_unaligned_read##bytes(void *p) { softmetal_callbacks->access(p, bytes, false); } \
    extern "C" NOT_CHECKED void __tsan_unaligned_write##bytes(void *p) { softmetal_callbacks->access(p, bytes, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
extern "C" NOT_CHECKED void __tsan_init() {}
extern "C" NOT_CHECKED void __tsan_read_range(void *p, size_t n) { softmetal_callbacks->access(p, n, false); }
extern "C" NOT_CHECKED void *__tsan_memcpy(void *to, const void *from, size_t n) {
    softmetal_callbacks->access(from, n, false);
    softmetal_callbacks->access(to, n, true);
    for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = ((const volatile char *)from)[i];
    return to;
}
extern "C" NOT_CHECKED void *__tsan_memset(void *to, int value, size_t n) {
    softmetal_callbacks->access(to, n, true);
    for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = char(value);
    return to;
}
#endif
