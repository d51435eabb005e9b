// The largest finite numbers of each row and their places: pairs of a number's bits and its place, which lies
// beyond the row's width where there is no such number. Of equal numbers the first ones are taken, and both
// zeros are equal. A threadgroup works on one row.

struct LargestParameters {
    uint columns;
    uint wanted;
};

constant constexpr uint NOWHERE = 0xffffffff;

static inline bool is_finite(float number) {
    return number < INFINITY && number > -INFINITY;
}

struct Best {
    float number;
    uint place;

    void meet(float other, uint at) {
        if (other > number || (other == number && at < place)) {
            number = other;
            place = at;
        }
    }

    // The best of the simdgroup, in every lane.
    void gather() {
        for (ushort step = 16; step > 0; step /= 2) {
            const float other = simd_shuffle_xor(number, step);
            const uint at = simd_shuffle_xor(place, step);
            meet(other, at);
        }
    }
};

// One number of each row.
kernel void largest_f32(
    device const float *x         [[buffer(0)]],
    device uint *found            [[buffer(1)]],
    constant LargestParameters &p [[buffer(2)]],
    LANE_ARGUMENTS
) {
    threadgroup float numbers[MAXIMUM_SIMDGROUPS];
    threadgroup uint places[MAXIMUM_SIMDGROUPS];
    device const float *from = x + ulong(row) * p.columns;
    Best best = { -INFINITY, NOWHERE };
    for (uint i = index; i < p.columns; i += count) {
        if (is_finite(from[i])) {
            best.meet(from[i], i);
        }
    }
    best.gather();
    if (lane == 0) {
        numbers[simdgroup] = best.number;
        places[simdgroup] = best.place;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        Best all = { -INFINITY, NOWHERE };
        if (lane < simdgroups) {
            all.meet(float(numbers[lane]), uint(places[lane]));
        }
        all.gather();
        if (lane == 0) {
            found[2 * row] = as_type<uint>(all.number);
            found[2 * row + 1] = all.place;
        }
    }
}

// What a digit of a rank may be, and how many of its values a lane of one simdgroup looks after.
constant constexpr uint DIGITS = 256;
constant constexpr uint DIGITS_OF_A_LANE = DIGITS / 32;

// Rises with the number; of equal numbers the first has the highest. No two places of a row have the same.
static inline ulong rank_of(float number, uint place) {
    // The sum is never the negative zero.
    const uint bits = as_type<uint>(number + 0.0f);
    const uint rising = bits >> 31 == 0 ? bits | 0x80000000 : ~bits;
    return ulong(rising) << 32 | (NOWHERE - place);
}

// Several numbers of each row, in no order. The rank of the last one that is wanted is found digit by digit from the
// highest: the numbers that have all digits found so far are counted by their next one. It ends when all that have the
// digits are wanted, mostly after the three or four of them in which numbers differ.
kernel void several_largest_f32(
    device const float *x         [[buffer(0)]],
    device uint *found            [[buffer(1)]],
    constant LargestParameters &p [[buffer(2)]],
    LANE_ARGUMENTS
) {
    threadgroup atomic_uint counts[DIGITS];
    threadgroup atomic_uint written;
    threadgroup uint chosen[3];
    device const float *from = x + ulong(row) * p.columns;
    if (index == 0) {
        atomic_store_explicit(&written, 0u, memory_order_relaxed);
    }
    ulong lowest = 0;
    uint left = p.wanted;
    for (uint shift = 56;; shift -= 8) {
        for (uint i = index; i < DIGITS; i += count) {
            atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = index; i < p.columns; i += count) {
            const ulong rank = rank_of(from[i], i);
            // In two steps, since there are no 64 bits to shift by.
            if (is_finite(from[i]) && (rank ^ lowest) >> shift >> 8 == 0) {
                atomic_fetch_add_explicit(&counts[uint(rank >> shift) % DIGITS], 1u, memory_order_relaxed);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simdgroup == 0) {
            uint digit = DIGITS - 1 - DIGITS_OF_A_LANE * lane;
            uint mine = 0;
            for (uint i = 0; i < DIGITS_OF_A_LANE; i++) {
                mine += atomic_load_explicit(&counts[digit - i], memory_order_relaxed);
            }
            uint above = 0;
            uint all = mine;
            for (ushort step = 1; step < 32; step *= 2) {
                const uint other = simd_shuffle_xor(all, step);
                above += (lane & step) != 0 ? other : 0;
                all += other;
            }
            if (all <= left && lane == 0) {
                chosen[0] = 0;
                chosen[1] = 0;
                chosen[2] = 0;
            }
            if (all > left && above < left && left <= above + mine) {
                uint here = atomic_load_explicit(&counts[digit], memory_order_relaxed);
                while (above + here < left) {
                    above += here;
                    digit--;
                    here = atomic_load_explicit(&counts[digit], memory_order_relaxed);
                }
                chosen[0] = digit;
                chosen[1] = above;
                chosen[2] = here;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        lowest |= ulong(chosen[0]) << shift;
        left -= chosen[1];
        if (chosen[2] <= left) {
            break;
        }
    }
    device uint *pairs = found + 2 * ulong(row) * p.wanted;
    for (uint i = index; i < p.columns; i += count) {
        if (is_finite(from[i]) && rank_of(from[i], i) >= lowest) {
            const uint at = atomic_fetch_add_explicit(&written, 1u, memory_order_relaxed);
            pairs[2 * at] = as_type<uint>(from[i]);
            pairs[2 * at + 1] = i;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = atomic_load_explicit(&written, memory_order_relaxed) + index; at < p.wanted; at += count) {
        pairs[2 * at] = 0;
        pairs[2 * at + 1] = NOWHERE;
    }
}
