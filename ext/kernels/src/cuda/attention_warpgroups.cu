// Heads of 64 numbers, side by side, without bias or cap, on Hopper's tensor cores.
//
// `attention_warpgroups`: a block has two warpgroups with 64 queries each, which share tiles of 64 keys and values; these
// are copied STAGES - 1 ahead. `attention_short`: a block of one warpgroup has a sequence of up to 128 tokens, 64 queries
// after the other, whose scores all are in registers at once; four such blocks on a multiprocessor wait and multiply by
// turns.

#define KEYS 64
#define STAGES 4
#define BLOCK_ROWS 128
#define TILE_BYTES (64 * WIDTH * 2)

// Where 16 bytes of a tile lie.
__device__ __forceinline__ uint place(uint row, uint part) { return row * 128 + ((part ^ row % 8) << 4); }

// Lets the 16 rows from a position on have no scores of keys from `tile` on that they do not see.
template <int COUNT>
__device__ __forceinline__ void hide_unseen(float (&scores)[COUNT], const Attention &a, int keys, int tile, int position) {
    const int quad = threadIdx.x % 32 / 4, pair = threadIdx.x % 4, width = COUNT * 2;
    if (tile + width <= keys && tile + width - 1 <= position + a.right && tile >= position + 15 - a.left) {
        return;
    }
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int key = tile + i / 4 * 8 + pair * 2 + i % 2, distance = key - (position + quad + i / 2 % 2 * 8);
        const bool seen = key < keys && distance <= a.right && distance >= -a.left;
        scores[i] = seen ? scores[i] : -INFINITE;
    }
}

// Clears a tile of values beyond the last key: what lies there may be anything, and a product of 0 with it too.
__device__ __forceinline__ void clear_beyond(uint values, int keys, int rows) {
    for (uint i = threadIdx.x; i < 8 * uint(rows - keys); i += blockDim.x) {
        const uint to = values + (rows - 1 - i / 8) * 128 + i % 8 * 16;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" :: "r"(to), "r"(0) : "memory");
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
}

// The highest of a row's scores that a thread has, and of those that its neighbours have.
template <int COUNT>
__device__ __forceinline__ float highest_of(const float (&scores)[COUNT], int half) {
    float top = -INFINITE;
    #pragma unroll
    for (int block = 0; block < COUNT / 4; block++) {
        top = fmaxf(top, fmaxf(scores[block * 4 + half * 2], scores[block * 4 + half * 2 + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

// Makes powers of two of a row's scores and returns their sum.
template <int COUNT>
__device__ __forceinline__ float raise(float (&scores)[COUNT], int half, float scale, float base) {
    float sum = 0;
    #pragma unroll
    for (int block = 0; block < COUNT / 4; block++) {
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            float &score = scores[block * 4 + half * 2 + i];
            score = power_of_two(fmaf(score, scale, -base));
            sum += score;
        }
    }
    return sum;
}

// Adds probabilities times values, whose tiles follow each other.
template <int COUNT>
__device__ __forceinline__ void mix(float (&mixed)[32], const float (&scores)[COUNT], ulong values, bool on) {
    uint probabilities[COUNT / 8][4];
    #pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        probabilities[i / 4][i % 4] = pack(scores[2 * i], scores[2 * i + 1], ELEMENT());
    }
    settle(mixed);
    begin_products();
    #pragma unroll
    for (int step = 0; step < COUNT / 8; step++) {
        // 16 rows of values lie 2,048 bytes on.
        multiply_turned(mixed, probabilities[step], values + 128 * step, on || step > 0, ELEMENT());
    }
    end_products();
    await_products<0>();
    settle(mixed);
}

// Divides a warp's 16 rows, from query `own` on, by their sums and writes them, by way of its part of a tile that nobody
// reads any more.
__device__ __forceinline__ void write_rows(
    const Attention &a, const Sequence &s, int own, const float (&mixed)[32], const float (&sums)[2], unsigned char *tile
) {
    const int lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4, first = threadIdx.x % WARPGROUP / 32 * 16;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sums[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        #pragma unroll
        for (int block = 0; block < 8; block++) {
            const float *from = mixed + block * 4 + half * 2;
            *(uint *)(tile + place(first + quad + half * 8, block) + pair * 4) = pack(from[0] * inverse, from[1] * inverse, ELEMENT());
        }
    }
    __syncwarp();
    #pragma unroll
    for (uint i = lane; i < 16 * 8; i += 32) {
        const int row = i / 8;
        if (own + row < s.queries) {
            ELEMENT *const to = a.out + (ulong(s.first_query + own + row) * a.heads + blockIdx.y) * WIDTH + i % 8 * 8;
            *(uint4 *)to = *(const uint4 *)(tile + place(first + row, i % 8));
        }
    }
}

extern "C" __global__ void __launch_bounds__(2 * WARPGROUP, 2) attention_warpgroups(
    const __grid_constant__ Attention a, const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
    const __grid_constant__ TensorMap v
) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint stages = shared_address(shared), own_tiles = stages + STAGES * 2 * TILE_BYTES;
    const uint full = own_tiles + 2 * TILE_BYTES, own_full = full + 8 * STAGES;
    await_previous();
    const Sequence s = sequence_at(a, blockIdx.z);
    const int first = blockIdx.x * BLOCK_ROWS;
    if (first >= s.queries) {
        return;
    }
    const uint head = blockIdx.y, key_head = head / a.group, group = threadIdx.x / WARPGROUP;
    const int shift = s.keys - s.queries; // from a query's number to its position
    const int low = max(0, first + shift - a.left) / KEYS * KEYS;
    const int high = min(s.keys, min(first + BLOCK_ROWS, s.queries) + shift + a.right);
    const int own = first + threadIdx.x / 32 * 16; // the warp's first row
    const auto copy_keys = [&](int tile, uint stage) {
        const uint to = stages + stage * 2 * TILE_BYTES, barrier = full + 8 * stage;
        expect_bytes(barrier, 2 * TILE_BYTES);
        copy_tile(to, k, key_head * WIDTH, s.first_key + tile, barrier);
        copy_tile(to + TILE_BYTES, v, key_head * WIDTH, s.first_key + tile, barrier);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i <= STAGES; i++) { make_barrier(full + 8 * i, 1); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect_bytes(own_full, 2 * TILE_BYTES);
        copy_tile(own_tiles, q, head * WIDTH, s.first_query + first, own_full);
        copy_tile(own_tiles + TILE_BYTES, q, head * WIDTH, s.first_query + first + 64, own_full);
        for (int i = 0; i < STAGES - 1 && low + i * KEYS < high; i++) { copy_keys(low + i * KEYS, i); }
    }
    __syncthreads();
    await_phase(own_full, 0);

    float mixed[32] = {}, highest[2] = {-INFINITE, -INFINITE}, sums[2] = {};
    const float scale = a.scale * LOG2_E;
    const ulong queries = factor(own_tiles + group * TILE_BYTES);
    uint stage = 0, phase = 0;
    for (int tile = low; tile < high; tile += KEYS) {
        if (tile + (STAGES - 1) * KEYS < high) {
            // All are done with the tile before, whose place the next takes.
            __syncthreads();
            if (threadIdx.x == 0) { copy_keys(tile + (STAGES - 1) * KEYS, (stage + STAGES - 1) % STAGES); }
        }
        const uint at = stages + stage * 2 * TILE_BYTES;
        await_phase(full + 8 * stage, phase);
        if (tile + KEYS > s.keys) { clear_beyond(at + TILE_BYTES, s.keys - tile, KEYS); }
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
        const ulong keys = factor(at);
        float scores[32];
        begin_products();
        #pragma unroll
        for (int step = 0; step < WIDTH / 16; step++) {
            multiply_64(scores, queries + 2 * step, keys + 2 * step, step > 0, ELEMENT());
        }
        end_products();
        await_products<0>();
        settle(scores);
        hide_unseen(scores, a, s.keys, tile, own + shift);
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const float top = fmaxf(highest[half], highest_of(scores, half) * scale);
            const float base = finite_base(top), factor = power_of_two(highest[half] - base);
            highest[half] = top;
            sums[half] = sums[half] * factor + raise(scores, half, scale, base);
            #pragma unroll
            for (int i = 0; i < 16; i++) { mixed[i / 2 * 4 + half * 2 + i % 2] *= factor; }
        }
        mix(mixed, scores, keys + (TILE_BYTES >> 4), true);
    }
    // Until all of its warps have multiplied with the queries.
    asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(WARPGROUP) : "memory");
    write_rows(a, s, own, mixed, sums, shared + (STAGES * 2 + group) * TILE_BYTES);
}

extern "C" __global__ void __launch_bounds__(WARPGROUP, 4) attention_short(
    const __grid_constant__ Attention a, const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
    const __grid_constant__ TensorMap v
) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint key_tiles = shared_address(shared), value_tiles = key_tiles + 2 * TILE_BYTES, own_tiles = value_tiles + 2 * TILE_BYTES;
    const uint keys_full = own_tiles + 2 * TILE_BYTES, values_full = keys_full + 8;
    await_previous();
    const Sequence s = sequence_at(a, blockIdx.z);
    if (s.queries <= 0) {
        return;
    }
    const uint head = blockIdx.y, key_head = head / a.group;
    const int shift = s.keys - s.queries;
    if (threadIdx.x == 0) {
        make_barrier(keys_full, 1);
        make_barrier(values_full, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        const int key_halves = s.keys > KEYS ? 2 : 1, own_halves = s.queries > 64 ? 2 : 1;
        expect_bytes(keys_full, (key_halves + own_halves) * TILE_BYTES);
        for (int i = 0; i < own_halves; i++) { copy_tile(own_tiles + i * TILE_BYTES, q, head * WIDTH, s.first_query + i * 64, keys_full); }
        for (int i = 0; i < key_halves; i++) { copy_tile(key_tiles + i * TILE_BYTES, k, key_head * WIDTH, s.first_key + i * KEYS, keys_full); }
        expect_bytes(values_full, key_halves * TILE_BYTES);
        for (int i = 0; i < key_halves; i++) { copy_tile(value_tiles + i * TILE_BYTES, v, key_head * WIDTH, s.first_key + i * KEYS, values_full); }
    }
    __syncthreads();
    const float scale = a.scale * LOG2_E;
    const ulong keys = factor(key_tiles), values = factor(value_tiles);
    await_phase(keys_full, 0);
    #pragma unroll 1
    for (int part = 0; part * 64 < s.queries; part++) {
        const int own = part * 64 + threadIdx.x / 32 * 16;
        const ulong queries = factor(own_tiles + part * TILE_BYTES);
        // What was in these registers before is not to be kept.
        float scores[64] = {}, mixed[32] = {}, sums[2];
        begin_products();
        #pragma unroll
        for (int step = 0; step < WIDTH / 16; step++) {
            multiply_128(scores, queries + 2 * step, keys + 2 * step, step > 0, ELEMENT());
        }
        end_products();
        await_products<0>();
        settle(scores);
        hide_unseen(scores, a, s.keys, 0, own + shift);
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            sums[half] = raise(scores, half, scale, finite_base(highest_of(scores, half) * scale));
        }
        await_phase(values_full, 0);
        if (part == 0 && s.keys < 2 * KEYS) { clear_beyond(value_tiles, s.keys, 2 * KEYS); }
        mix(mixed, scores, values, false);
        __syncthreads();
        write_rows(a, s, own, mixed, sums, shared + (4 + part) * TILE_BYTES);
    }
}
