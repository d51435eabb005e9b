// What a sampler has to know of rows of logits: the largest finite ones, the sum of all weights, or a token drawn by them.
// One block of 1024 threads per row. Sums are in double precision and in an order of the row's width alone.

#define NOWHERE 0xffffffffu
#define THREADS 1024
#define WARPS 32

struct Want {
    // How many of the largest; of equal ones the first.
    uint count;
    // A weight is e to the (logit - largest) / temperature; none are summed where it is 0.
    float temperature;
    // Where in the sum of weights, in the order of tokens, a token is drawn; none below 0.
    double uniform;
};

// Before the pairs of a row's largest numbers and their places, in no order.
struct Said {
    double total;
    uint taken;
    uint drawn;
};

__device__ __forceinline__ bool is_finite(float number) { return number < INFINITE && number > -INFINITE; }

// Rises with the number; both zeros are equal.
__device__ __forceinline__ uint rising(float number) {
    const uint bits = __float_as_uint(number + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ double weight(float number, double best, double temperature) {
    return is_finite(number) ? exp((double(number) - best) / temperature) : 0.0;
}

extern "C" __global__ void __launch_bounds__(THREADS) sample_rows(
    const float *x, const Want *wants, uint *told, uint width, uint most
) {
    __shared__ uint bins[256], counts[WARPS], digit, rest, taken;
    __shared__ float tops[WARPS];
    __shared__ double sums[WARPS];
    const uint thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const float *row = x + ulong(blockIdx.x) * width;
    uint *own = told + ulong(blockIdx.x) * (4 + 2 * most);
    Said *said = (Said *)own;
    let_next_begin();
    await_previous();
    const Want want = wants[blockIdx.x];

    float best = -INFINITE;
    for (uint i = thread; i < width; i += THREADS) {
        const float number = row[i];
        if (number > best && number < INFINITE) { best = number; }
    }
    for (int step = 16; step > 0; step /= 2) { best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, step)); }
    if (lane == 0) { tops[warp] = best; }
    __syncthreads();
    for (uint i = 0; i < WARPS; ++i) { best = fmaxf(best, tops[i]); }
    if (thread == 0) { *said = { 0.0, 0, NOWHERE }; }
    if (best == -INFINITE) { return; }

    if (want.temperature > 0) {
        const double temperature = want.temperature;
        // A warp sums tokens that follow each other.
        const uint part = (width + WARPS - 1) / WARPS, first = warp * part, end = min(width, first + part);
        double sum = 0;
        for (uint i = first + lane; i < end; i += 32) { sum += weight(row[i], best, temperature); }
        for (int step = 16; step > 0; step /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
        if (lane == 0) { sums[warp] = sum; }
        __syncthreads();
        double total = 0;
        for (uint i = 0; i < WARPS; ++i) { total += sums[i]; }
        if (thread == 0) { said->total = total; }
        if (want.uniform >= 0) {
            double left = want.uniform * total;
            uint at = 0;
            while (at + 1 < WARPS && left >= sums[at]) { left -= sums[at++]; }
            while (at > 0 && sums[at] == 0) { --at; }
            if (warp == at) {
                uint drawn = NOWHERE;
                for (uint i = first; i < end; i += 32) {
                    const double own_weight = i + lane < end ? weight(row[i + lane], best, temperature) : 0.0;
                    double until = own_weight;
                    for (int step = 1; step < 32; step *= 2) {
                        const double before = __shfl_up_sync(0xffffffffu, until, step);
                        if (lane >= step) { until += before; }
                    }
                    const uint reach = __ballot_sync(0xffffffffu, own_weight > 0 && until > left);
                    const uint any = __ballot_sync(0xffffffffu, own_weight > 0);
                    if (reach) { drawn = i + __ffs(reach) - 1; break; }
                    if (any) { drawn = i + 31 - __clz(any); }
                    left -= __shfl_sync(0xffffffffu, until, 31);
                }
                if (lane == 0) { said->drawn = drawn; }
            }
        }
    }
    if (want.count == 0) { return; }

    // What the smallest of them looks like, from its first eight bits on, and how many like it are wanted.
    uint threshold = 0, known = 0, wanted = want.count;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        if (thread < 256) { bins[thread] = 0; }
        if (thread == 0) { taken = 0; }
        __syncthreads();
        for (uint i = thread; i < width; i += THREADS) {
            const float number = row[i];
            const uint rank = rising(number);
            if (is_finite(number) && (rank & known) == threshold) { atomicAdd(&bins[rank >> shift & 255], 1u); }
        }
        __syncthreads();
        if (warp == 0) {
            // A lane has eight digits, the first lane the highest ones.
            uint sum = 0;
            for (uint i = 0; i < 8; ++i) { sum += bins[255 - 8 * lane - i]; }
            uint above = sum;
            for (int step = 1; step < 32; step *= 2) {
                const uint before = __shfl_up_sync(0xffffffffu, above, step);
                if (lane >= step) { above += before; }
            }
            above -= sum;
            const bool last = lane == 31 && above + sum < wanted;
            if ((above < wanted && above + sum >= wanted) || last) {
                uint i = 0;
                while (i < 7 && above + bins[255 - 8 * lane - i] < wanted) { above += bins[255 - 8 * lane - i++]; }
                digit = 255 - 8 * lane - i;
                rest = wanted - above;
            }
        }
        __syncthreads();
        threshold |= digit << shift;
        known |= 255u << shift;
        wanted = rest;
    }
    uint *pairs = own + 4;
    const auto take = [&](uint to, uint place, float number) {
        pairs[2 * to] = __float_as_uint(number);
        pairs[2 * to + 1] = place;
    };
    const bool takes_all = bins[digit] <= wanted;
    for (uint i = thread; i < width; i += THREADS) {
        const float number = row[i];
        const uint rank = rising(number);
        if (is_finite(number) && (rank > threshold || (takes_all && rank == threshold))) {
            take(atomicAdd(&taken, 1u), i, number);
        }
    }
    __syncthreads();
    if (!takes_all) {
        // The first of equal ones, in the order of places.
        const uint to = taken;
        uint before = 0;
        for (uint base = 0; base < width && before < wanted; base += THREADS) {
            const uint i = base + thread;
            const bool equal = i < width && is_finite(row[i]) && rising(row[i]) == threshold;
            const uint votes = __ballot_sync(0xffffffffu, equal);
            if (lane == 0) { counts[warp] = __popc(votes); }
            __syncthreads();
            uint rank = before + __popc(votes & ((1u << lane) - 1));
            for (uint w = 0; w < WARPS; ++w) {
                before += counts[w];
                rank += w < warp ? counts[w] : 0;
            }
            if (equal && rank < wanted) { take(to + rank, i, row[i]); }
            __syncthreads();
        }
        if (thread == 0) { taken = to + wanted; }
        __syncthreads();
    }
    if (thread == 0) { said->taken = taken; }
}
