// What kernels and the runtime know of each other; machine.rs and library/object.rs lay it out in the same way.
#pragma once

#define SOFTMETAL_EXPORT extern "C" __attribute__((visibility("default")))

namespace host {

using metal::uint3;

struct Position {
    uint group[3], groups[3], size[3], nominal_size[3], grid[3], thread_[3];
    uint index, lane, simdgroup, simdgroups;
    void *const *buffers;
    void *const *threadgroup_;
};

struct Exchange {
    char slots[32][64];
    uint active;
};

struct Callbacks {
    void (*barrier)(uint flags, const void *site);
    const Exchange *(*exchange)(const void *value, size_t bytes, const void *site);
    void (*simdgroup_barrier)(const void *site);
    void *(*threadgroup_variable)(uint id, size_t bytes, size_t alignment);
    void (*access)(const void *address, size_t bytes, bool write);
    uint (*lane)();
};

struct Kernel {
    const char *name;
    void (*entry)(const Position &);
    uint maximum;
    const int *codes;            // what each parameter is made from
    const bool *const *guards;   // the function constant without which it does not exist
};

struct Constant {
    const char *name;
    uint index;
    size_t bytes;
    void *address;
};

}  // namespace host

SOFTMETAL_EXPORT const host::Callbacks *softmetal_callbacks;
const host::Callbacks *softmetal_callbacks = nullptr;

// All lanes have to come by the same call, which the compiler therefore must not copy: the address it returns to is how
// the runtime knows it. What the shim itself does is not instrumented.
#define NOT_CHECKED __attribute__((disable_sanitizer_instrumentation))
#define SAME_FOR_ALL __attribute__((noinline, convergent, noduplicate)) NOT_CHECKED
extern "C" SAME_FOR_ALL void softmetal_barrier(uint flags) {
    softmetal_callbacks->barrier(flags, __builtin_return_address(0));
}
extern "C" SAME_FOR_ALL const host::Exchange *softmetal_exchange(const void *value, size_t bytes) {
    return softmetal_callbacks->exchange(value, bytes, __builtin_return_address(0));
}
extern "C" SAME_FOR_ALL void softmetal_simdgroup_barrier() {
    softmetal_callbacks->simdgroup_barrier(__builtin_return_address(0));
}
extern "C" NOT_CHECKED uint softmetal_lane() { return softmetal_callbacks->lane(); }

// Missing in the compiler's library before GCC 13. To nearest, ties to even.
extern "C" NOT_CHECKED bfloat __truncsfbf2(float value) {
    const uint bits = __builtin_bit_cast(uint, value);
    const ushort narrow = value != value ? ushort(bits >> 16 | 0x40) : ushort((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return __builtin_bit_cast(bfloat, narrow);
}
extern "C" NOT_CHECKED bfloat __truncdfbf2(double value) { return __truncsfbf2(float(value)); }
