// Attention of few queries, `attention_rows` and `attention_join`: after attention.cu, which says what is defined.

// Lanes that hold one key, eight elements each; LANES is a power of two.
#define WARPS 8
#define STREAMS (WARPS * 32 / LANES)
#define UNROLLED ((HEADS == 1 ? 16 : 8) / int(sizeof(ELEMENT)))
#define MOST_SPLITS 64

struct Running {
    float highest;
    float sum;
    Eight mixed;

    __device__ void join(float other_highest, float other_sum, const Eight &other) {
        const float top = fmaxf(highest, other_highest), base = finite_base(top);
        const float mine = power_of_two(highest - base), theirs = power_of_two(other_highest - base);
        highest = top;
        sum = sum * mine + other_sum * theirs;
        #pragma unroll
        for (int i = 0; i < 8; i++) { mixed.v[i] = mixed.v[i] * mine + other.v[i] * theirs; }
    }
};

__device__ __forceinline__ RawEight read_row(const ELEMENT *from) {
    RawEight out;
    #pragma unroll
    for (int i = 0; i < sizeof(RawEight) / 16; i++) { out.words[i] = read_shared((const char *)from + 16 * i); }
    return out;
}

// HEADS neighbours that have the same keys. The grid is (splits, heads / HEADS, queries).
extern "C" __global__ void __launch_bounds__(256, 2) attention_rows(const __grid_constant__ Attention a) {
    __shared__ float shared[HEADS][WARPS][WIDTH + 2];
    let_next_begin();
    const int token = blockIdx.z;
    uint index = 0;
    if (a.query_boundaries) {
        uint last = a.sequences - 1; // the last sequence that begins at or before the token
        while (index < last) {
            const uint middle = (index + last + 1) / 2;
            if (int(a.query_boundaries[middle]) <= token) { index = middle; } else { last = middle - 1; }
        }
    }
    const Sequence s = sequence_at(a, index);
    const uint first_head = blockIdx.y * HEADS, key_head = first_head / a.group;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane % LANES;
    const int stream = threadIdx.x / LANES;
    const int position = token - s.first_query + s.keys - s.queries;
    const int low = max(0, position - a.left) + int(blockIdx.x * a.split_keys);
    const int high = min(min(s.keys, position + a.right + 1), low + int(a.split_keys));
    const bool holds = member * 8 < WIDTH;

    RawEight keys[UNROLLED], values[UNROLLED];
    int begin = low;
#if HEADS == 1
    // Where the first keys lie is known before the latest is there. More heads leave no registers for that.
    uint rows[UNROLLED];
    #pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
        const int key = low + u * STREAMS + stream;
        rows[u] = key < high ? row_of_key(a, s.first_key + key) : 0;
    }
    const auto row_at = [&](int u, int key) { return begin == low ? ulong(rows[u]) : row_of_key(a, s.first_key + key); };
#else
    const auto row_at = [&](int, int key) { return row_of_key(a, s.first_key + key); };
#endif
    const auto read = [&](int from, int to) {
        #pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            const int key = begin + u * STREAMS + stream;
            if (key >= from && key < to && holds) {
                const ulong row = row_at(u, key);
                keys[u] = read_row(a.k + row * a.k_token + key_head * a.k_head + member * 8);
                values[u] = read_row(a.v + row * a.v_token + key_head * a.v_head + member * 8);
            }
        }
    };
    #pragma unroll
    for (int u = 0; u < UNROLLED; u++) { keys[u] = values[u] = {}; }
    // The keys of earlier tokens are there already.
    const int earlier = min(high, s.keys - s.queries);
    read(low, earlier);
    await_previous();
    read(earlier, high);
    Eight query[HEADS];
    Running running[HEADS];
    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        query[h] = {};
        if (holds) { query[h] = widen_eight(a.q + ulong(token) * a.q_token + (first_head + h) * a.q_head + member * 8); }
        running[h] = {-INFINITE, 0.0f, {}};
    }
    while (true) {
        #pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float scores[UNROLLED], top = running[h].highest;
            #pragma unroll
            for (int u = 0; u < UNROLLED; u++) {
                const Eight k = widen_raw(keys[u], ELEMENT());
                float product = 0.0f;
                #pragma unroll
                for (int i = 0; i < 8; i++) { product = fmaf(query[h].v[i], k.v[i], product); }
                #pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) {
                    product += __shfl_xor_sync(0xffffffffu, product, step);
                }
                const int key = begin + u * STREAMS + stream;
                const int real_key = min(key, s.keys - 1);
                const float value = exponent(a, product, first_head + h, token, s.first_key + real_key, key - position);
                scores[u] = key < high ? value : -INFINITE;
                top = fmaxf(top, scores[u]);
            }
            const float base = finite_base(top), factor = power_of_two(running[h].highest - base);
            running[h].highest = top;
            running[h].sum *= factor;
            #pragma unroll
            for (int i = 0; i < 8; i++) { running[h].mixed.v[i] *= factor; }
            #pragma unroll
            for (int u = 0; u < UNROLLED; u++) {
                const Eight v = widen_raw(values[u], ELEMENT());
                const float probability = power_of_two(scores[u] - base);
                running[h].sum += probability;
                #pragma unroll
                for (int i = 0; i < 8; i++) { running[h].mixed.v[i] = fmaf(probability, v.v[i], running[h].mixed.v[i]); }
            }
        }
        begin += STREAMS * UNROLLED;
        if (begin >= high) { break; }
        read(low, high);
    }

    #pragma unroll
    for (int h = 0; h < HEADS; h++) {
        Running &own = running[h];
        #pragma unroll
        for (int step = LANES; step < 32; step *= 2) {
            const float other_highest = __shfl_xor_sync(0xffffffffu, own.highest, step);
            const float other_sum = __shfl_xor_sync(0xffffffffu, own.sum, step);
            Eight other;
            #pragma unroll
            for (int i = 0; i < 8; i++) { other.v[i] = __shfl_xor_sync(0xffffffffu, own.mixed.v[i], step); }
            own.join(other_highest, other_sum, other);
        }
        if (lane < LANES && holds) {
            float *const to = shared[h][warp];
            to[0] = own.highest;
            to[1] = own.sum;
            #pragma unroll
            for (int i = 0; i < 8; i++) { to[2 + member * 8 + i] = own.mixed.v[i]; }
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < HEADS * WIDTH; at += 32 * WARPS) {
        const int h = at / WIDTH, column = at % WIDTH;
        const float(&warps)[WARPS][WIDTH + 2] = shared[h];
        float highest = -INFINITE, sum = 0.0f, value = 0.0f;
        #pragma unroll
        for (int i = 0; i < WARPS; i++) { highest = fmaxf(highest, warps[i][0]); }
        const float base = finite_base(highest);
        #pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float factor = power_of_two(warps[i][0] - base);
            sum += warps[i][1] * factor;
            value += warps[i][2 + column] * factor;
        }
        const ulong row = ulong(token) * a.heads + first_head + h;
        if (a.splits == 1) {
            narrow(sum == 0.0f ? 0.0f : value / sum, a.out + row * WIDTH + column);
            continue;
        }
        float *const part = a.parts + (row * a.splits + blockIdx.x) * (WIDTH + 2);
        part[2 + column] = value;
        if (column == 0) {
            part[0] = highest;
            part[1] = sum;
        }
    }
}

// A thread for each column. The grid is (heads, queries).
extern "C" __global__ void attention_join(const __grid_constant__ Attention a) {
    __shared__ float factors[MOST_SPLITS];
    let_next_begin();
    await_previous();
    const ulong row = ulong(blockIdx.y) * a.heads + blockIdx.x;
    const float *parts = a.parts + row * a.splits * (WIDTH + 2);
    const uint lane = threadIdx.x % 32;
    float highest = -INFINITE, sum = 0.0f;
    for (uint i = lane; i < a.splits; i += 32) { highest = fmaxf(highest, parts[i * (WIDTH + 2)]); }
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) { highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step)); }
    const float base = finite_base(highest);
    for (uint i = lane; i < a.splits; i += 32) {
        const float factor = power_of_two(parts[i * (WIDTH + 2)] - base);
        sum += parts[i * (WIDTH + 2) + 1] * factor;
        if (threadIdx.x < 32) { factors[i] = factor; }
    }
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
    __syncthreads();
    if (threadIdx.x >= WIDTH) {
        return;
    }
    float value = 0.0f;
    #pragma unroll 8
    for (uint i = 0; i < a.splits; i++) { value += parts[i * (WIDTH + 2) + 2 + threadIdx.x] * factors[i]; }
    narrow(sum == 0.0f ? 0.0f : value / sum, a.out + row * WIDTH + threadIdx.x);
}
