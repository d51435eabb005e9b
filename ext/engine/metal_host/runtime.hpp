// Runs the lanes of a threadgroup as fibers of one OS thread, one threadgroup after the other, and
// watches what they do: who reaches which barrier, who touches which cell of threadgroup memory.
#pragma once

#include "lane.hpp"

#include <string>

namespace host {

constexpr uint32_t SIMD_WIDTH = 32;
constexpr uint32_t MAXIMUM_LANES = 1024;

// In which order runnable lanes go on. `Together` moves every simdgroup one step at a time; the
// others let one simdgroup after the other run as far as it can, which is how a missing barrier shows.
enum class Schedule { Together, Ascending, Descending, Shuffled };

struct Launch {
    Entry entry;
    void *const *buffers;
    uint32_t groups[2];
    uint32_t lanes;
    Schedule schedule;
};

// Runs the grid. Empty when nothing was wrong, else the first thing that was.
std::string run(const Launch &launch);

}  // namespace host
