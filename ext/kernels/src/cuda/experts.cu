// Which experts rows pass, and the sums of what these give. ELEMENT is defined at run time.

#define SOFTMAX 0u
#define SIGMOID_OF_CHOSEN 2u

struct Route {
    const ELEMENT *logits; // [rows, experts]
    const float *bias;     // null: none
    const float *scales;   // null: none
    uint *chosen;          // [rows, used]
    float *weights;
    uint experts;
    uint used;
    uint scores;
    uint normalize;
    uint groups; // 0: none
    uint groups_used;
    uint best_of;
    float left_out;
    float soft_cap; // 0: none
    float scale;
    float least_total;
};

// A number that is larger where a value is, or where its place is smaller.
typedef long long Rank;
#define NO_RANK (Rank(1) << 63)
__device__ __forceinline__ Rank rank_of(float value, uint place) {
    int bits = __float_as_int(value);
    bits ^= int(uint(bits >> 31) >> 1);
    return Rank((ulong(uint(bits)) << 32) | ulong(0xffffffffu - place));
}
__device__ __forceinline__ uint place_of(Rank rank) { return 0xffffffffu - uint(ulong(rank) & 0xffffffffull); }

__device__ __forceinline__ float lane_sum(float v) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) { v += __shfl_xor_sync(0xffffffffu, v, step); }
    return v;
}
__device__ __forceinline__ float lane_largest(float v) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) { v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step)); }
    return v;
}
__device__ __forceinline__ Rank lane_best(Rank v) {
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const Rank other = __shfl_xor_sync(0xffffffffu, v, step);
        v = other > v ? other : v;
    }
    return v;
}

// A warp for each row. Shared: ranks and scores of all experts, then one number for each group.
extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ Route p) {
    extern __shared__ Rank ranks[];
    float *scores = (float *)(ranks + p.experts), *standing = scores + p.experts;
    const uint lane = threadIdx.x;
    let_next_begin();
    await_previous();
    const ELEMENT *logits = p.logits + ulong(blockIdx.x) * p.experts;
    float top = -INFINITE;
    for (uint i = lane; i < p.experts; i += 32) {
        float logit = widen(logits[i]);
        if (p.soft_cap != 0.0f) { logit = tanhf(logit / p.soft_cap) * p.soft_cap; }
        scores[i] = logit;
        top = fmaxf(top, logit);
    }
    top = lane_largest(top);
    float total = 0.0f;
    if (p.scores == SOFTMAX) {
        for (uint i = lane; i < p.experts; i += 32) { total += expf(scores[i] - top); }
        total = lane_sum(total);
    }
    for (uint i = lane; i < p.experts; i += 32) {
        const float logit = scores[i];
        const float score = p.scores == SOFTMAX ? expf(logit - top) / total : 1.0f / (1.0f + expf(-logit));
        scores[i] = score;
        ranks[i] = rank_of((p.scores == SIGMOID_OF_CHOSEN ? logit : score) + (p.bias ? p.bias[i] : 0.0f), i);
    }
    __syncwarp();
    if (p.groups > p.groups_used) {
        const uint size = p.experts / p.groups;
        for (uint group = lane; group < p.groups; group += 32) {
            Rank below = ~NO_RANK;
            float sum = 0.0f;
            for (uint k = 0; k < p.best_of; k++) {
                Rank best = NO_RANK;
                for (uint i = group * size; i < (group + 1) * size; i++) {
                    if (ranks[i] < below && ranks[i] > best) { best = ranks[i]; }
                }
                const uint at = place_of(best);
                const float logit = widen(logits[at]);
                const float capped = p.soft_cap != 0.0f ? tanhf(logit / p.soft_cap) * p.soft_cap : logit;
                sum += (p.scores == SIGMOID_OF_CHOSEN ? capped : scores[at]) + (p.bias ? p.bias[at] : 0.0f);
                below = best;
            }
            standing[group] = sum;
        }
        __syncwarp();
        // As good as the last one that is used.
        Rank last = ~NO_RANK;
        for (uint k = 0; k < p.groups_used; k++) {
            Rank best = NO_RANK;
            for (uint group = lane; group < p.groups; group += 32) {
                const Rank rank = rank_of(standing[group], group);
                if (rank < last && rank > best) { best = rank; }
            }
            last = lane_best(best);
        }
        for (uint i = lane; i < p.experts; i += 32) {
            const uint group = i / size;
            if (rank_of(standing[group], group) < last) { ranks[i] = rank_of(p.left_out, i); }
        }
        __syncwarp();
    }
    uint *chosen = p.chosen + ulong(blockIdx.x) * p.used;
    float *weights = p.weights + ulong(blockIdx.x) * p.used;
    Rank below = ~NO_RANK;
    float sum = 0.0f;
    for (uint k = 0; k < p.used; k++) {
        Rank best = NO_RANK;
        for (uint i = lane; i < p.experts; i += 32) {
            if (ranks[i] < below && ranks[i] > best) { best = ranks[i]; }
        }
        below = lane_best(best);
        const uint expert = place_of(below);
        sum += scores[expert];
        if (lane == 0) { chosen[k] = expert; }
    }
    __syncwarp();
    const float factor = p.normalize ? p.scale / fmaxf(sum, p.least_total) : p.scale;
    for (uint k = lane; k < p.used; k += 32) {
        const uint expert = chosen[k];
        weights[k] = scores[expert] * factor * (p.scales ? p.scales[expert] : 1.0f);
    }
}

// What comes before the parts of a lane's list, given how much they are together, for the first warp.
__device__ __forceinline__ uint before_own(uint own) {
    uint before = own;
    #pragma unroll
    for (uint step = 1; step < 32; step *= 2) {
        const uint other = __shfl_up_sync(0xffffffffu, before, step);
        if (threadIdx.x >= step) { before += other; }
    }
    return before - own;
}

// Sorts choices by experts, in one thread block, so that those who read the same weights run at the same time, and cuts
// those of each expert into tiles of so many, where tiles are wanted. Shared: a count for each expert.
extern "C" __global__ void __launch_bounds__(256) order_choices(
    const uint *chosen, uint *order, uint *tiles, uint pairs, uint experts, uint tile_rows, uint most_tiles
) {
    extern __shared__ uint counts[];
    let_next_begin();
    await_previous();
    for (uint i = threadIdx.x; i < experts; i += blockDim.x) { counts[i] = 0; }
    __syncthreads();
    for (uint i = threadIdx.x; i < pairs; i += blockDim.x) { atomicAdd(counts + chosen[i], 1u); }
    __syncthreads();
    // Where the choices of each expert begin: a lane of the first warp has some experts in a row.
    const uint part = (experts + 31) / 32, first = min(threadIdx.x * part, experts), end = min(first + part, experts);
    if (threadIdx.x < 32) {
        uint own = 0;
        for (uint i = first; i < end; i++) { own += counts[i]; }
        uint before = before_own(own);
        for (uint i = first; i < end; i++) {
            const uint count = counts[i];
            counts[i] = before;
            before += count;
        }
    }
    __syncthreads();
    for (uint i = threadIdx.x; i < pairs; i += blockDim.x) { order[atomicAdd(counts + chosen[i], 1u)] = i; }
    if (!tiles) { return; }
    __syncthreads();
    // Now each count is where the choices of its expert end.
    if (threadIdx.x < 32) {
        uint own = 0;
        for (uint i = first; i < end; i++) { own += (counts[i] - (i ? counts[i - 1] : 0) + tile_rows - 1) / tile_rows; }
        uint tile = before_own(own);
        for (uint i = first; i < end; i++) {
            for (uint at = i ? counts[i - 1] : 0; at < counts[i]; at += tile_rows, tile++) {
                tiles[2 * tile] = at;
                tiles[2 * tile + 1] = min(tile_rows, counts[i] - at);
            }
        }
        const uint all = __shfl_sync(0xffffffffu, tile, 31);
        for (uint i = all + threadIdx.x; i < most_tiles; i += 32) { tiles[2 * i + 1] = 0; }
    }
}

struct Combine {
    const ELEMENT *given; // [rows, used, columns]
    const float *weights;
    const ELEMENT *shared; // null: none; [rows, columns]
    const ELEMENT *gates;  // null: none; [rows]
    ELEMENT *out;
    uint used;
    uint columns;
    uint rows;
};
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ Combine p) {
    const uint row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    let_next_begin();
    await_previous();
    if (column >= p.columns) { return; }
    const ELEMENT *given = p.given + ulong(row) * p.used * p.columns + column;
    float sum = 0.0f;
    for (uint k = 0; k < p.used; k++) { sum += p.weights[row * p.used + k] * widen(given[ulong(k) * p.columns]); }
    if (p.shared) {
        const float gate = p.gates ? 1.0f / (1.0f + expf(-widen(p.gates[row]))) : 1.0f;
        sum += gate * widen(p.shared[ulong(row) * p.columns + column]);
    }
    narrow(sum, p.out + ulong(row) * p.columns + column);
}
