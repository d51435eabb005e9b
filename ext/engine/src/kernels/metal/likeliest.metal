// The first of the largest finite numbers of each row; where there is none, a number beyond the row's
// width. A threadgroup works on one row.

struct LikeliestParameters {
    uint columns;
};

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

kernel void likeliest_f32(
    device const float *x           [[buffer(0)]],
    device uint *found              [[buffer(1)]],
    constant LikeliestParameters &p [[buffer(2)]],
    LANE_ARGUMENTS
) {
    threadgroup float numbers[MAXIMUM_SIMDGROUPS];
    threadgroup uint places[MAXIMUM_SIMDGROUPS];
    device const float *from = x + ulong(row) * p.columns;
    Best best = { -INFINITY, 0xffffffff };
    for (uint i = index; i < p.columns; i += count) {
        if (from[i] < INFINITY && from[i] > -INFINITY) {
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
        Best all = { -INFINITY, 0xffffffff };
        if (lane < simdgroups) {
            all.meet(float(numbers[lane]), uint(places[lane]));
        }
        all.gather();
        if (lane == 0) {
            found[row] = all.place;
        }
    }
}
