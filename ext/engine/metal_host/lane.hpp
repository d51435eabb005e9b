// What a kernel sees of the runtime. No C++ library in here: the kernels are compiled with it.
#pragma once

#include <stdint.h>

namespace host {

// What the attributes of a kernel's arguments stand for.
struct Position {
    uint32_t group[2];
    uint32_t index;
    uint32_t count;
    uint32_t lane;
    uint32_t simdgroup;
    uint32_t simdgroups;
};

using Entry = void (*)(void *const *buffers, const Position &position);

// A library of kernels ends its list with an entry without a name.
struct Kernel {
    const char *name;
    Entry entry;
};

#define HOST_CONVERGENT __attribute__((convergent, noduplicate))
HOST_CONVERGENT void threadgroup_barrier(bool orders_threadgroup_memory);
HOST_CONVERGENT float simd_sum(float value);
HOST_CONVERGENT float simd_max(float value);

// Happens-before bookkeeping of one cell of threadgroup memory. Two lanes that touch it in the same
// epoch, one of them writing, race; reading what this threadgroup never wrote is an error, too.
struct CellHistory {
    uint64_t threadgroup = 0;
    uint64_t write_epoch = 0;
    uint64_t read_epoch = 0;
    uint32_t writer = 0;
    uint32_t reader = 0;
    bool several_readers = false;

    void on_read();
    void on_write();
};

}  // namespace host
