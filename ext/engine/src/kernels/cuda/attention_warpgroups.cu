// `attention_warpgroups`: heads of 64 numbers, side by side, without bias or cap, on Hopper's tensor cores. A block has
// two warpgroups with 64 queries each, which share tiles of 64 keys and values; these are copied STAGES - 1 ahead.

#define THREADS (2 * WARPGROUP)
#define BLOCK_ROWS 128
#define KEYS 64
#define STAGES 4
#define TILE_BYTES (64 * WIDTH * 2)

// Where 16 bytes of a tile lie.
__device__ __forceinline__ uint place(uint row, uint part) { return row * 128 + ((part ^ row % 8) << 4); }

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_warpgroups(
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
    const uint head = blockIdx.y, key_head = head / a.group;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
    const int shift = s.keys - s.queries; // from a query's number to its position
    const int low = max(0, first + shift - a.left) / KEYS * KEYS;
    const int high = min(s.keys, min(first + BLOCK_ROWS, s.queries) + shift + a.right);
    const int own = first + warp * 16; // the warp's first row
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
    uint stage = 0, phase = 0;
    for (int tile = low; tile < high; tile += KEYS) {
        if (tile + (STAGES - 1) * KEYS < high) {
            // All are done with the tile before, whose place the next takes.
            __syncthreads();
            if (threadIdx.x == 0) { copy_keys(tile + (STAGES - 1) * KEYS, (stage + STAGES - 1) % STAGES); }
        }
        const uint at = stages + stage * 2 * TILE_BYTES;
        await_phase(full + 8 * stage, phase);
        if (tile + KEYS > s.keys) {
            // What lies beyond the sequence may be anything, and a product of 0 with it too.
            for (uint i = threadIdx.x; i < 8 * uint(tile + KEYS - s.keys); i += THREADS) {
                const uint to = at + TILE_BYTES + (KEYS - 1 - i / 8) * 128 + i % 8 * 16;
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" :: "r"(to), "r"(0) : "memory");
            }
            asm volatile("fence.proxy.async;" ::: "memory");
            __syncthreads();
        }
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
        uint queries[WIDTH / 16][4];
        #pragma unroll
        for (int step = 0; step < WIDTH / 16; step++) {
            load_matrices(queries[step], own_tiles + place(warp * 16 + lane % 16, step * 2 + lane / 16));
        }
        const ulong keys = factor(at), values = keys + (TILE_BYTES >> 4);
        float scores[32];
        begin_products();
        #pragma unroll
        for (int step = 0; step < WIDTH / 16; step++) {
            multiply_64<0>(scores, queries[step], keys + 2 * step, step > 0, ELEMENT());
        }
        end_products();
        await_products<0>();
        settle(scores);

        const int position = own + shift;
        if (tile + KEYS > s.keys || tile + KEYS - 1 > position + a.right || tile < position + 15 - a.left) {
            #pragma unroll
            for (int i = 0; i < 32; i++) {
                const int key = tile + i / 4 * 8 + pair * 2 + i % 2, distance = key - (position + quad + i / 2 % 2 * 8);
                const bool seen = key < s.keys && distance <= a.right && distance >= -a.left;
                scores[i] = seen ? scores[i] : -INFINITE;
            }
        }
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITE;
            #pragma unroll
            for (int block = 0; block < 8; block++) {
                top = fmaxf(top, fmaxf(scores[block * 4 + half * 2], scores[block * 4 + half * 2 + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            top = fmaxf(highest[half], top * scale);
            const float base = finite_base(top), factor = power_of_two(highest[half] - base);
            highest[half] = top;
            sums[half] *= factor;
            #pragma unroll
            for (int block = 0; block < 8; block++) {
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &score = scores[block * 4 + half * 2 + i];
                    score = power_of_two(fmaf(score, scale, -base));
                    sums[half] += score;
                    mixed[block * 4 + half * 2 + i] *= factor;
                }
            }
        }
        uint probabilities[4][4];
        #pragma unroll
        for (int i = 0; i < 16; i++) {
            probabilities[i / 4][i % 4] = pack(scores[2 * i], scores[2 * i + 1], ELEMENT());
        }
        settle(mixed);
        begin_products();
        #pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            // 16 rows of values lie 2,048 bytes on.
            multiply_64<1>(mixed, probabilities[step], values + 128 * step, true, ELEMENT());
        }
        end_products();
        await_products<0>();
        settle(mixed);
    }

    // Results go out by way of the warp's queries, which nobody else reads.
    __syncwarp();
    unsigned char *const rows = shared + STAGES * 2 * TILE_BYTES;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sums[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        #pragma unroll
        for (int block = 0; block < 8; block++) {
            const float *from = mixed + block * 4 + half * 2;
            *(uint *)(rows + place(warp * 16 + quad + half * 8, block) + pair * 4) = pack(from[0] * inverse, from[1] * inverse, ELEMENT());
        }
    }
    __syncwarp();
    #pragma unroll
    for (uint i = lane; i < 16 * 8; i += 32) {
        const int row = i / 8;
        if (own + row < s.queries) {
            ELEMENT *const to = a.out + (ulong(s.first_query + own + row) * a.heads + head) * WIDTH + i % 8 * 8;
            *(uint4 *)to = *(const uint4 *)(rows + place(warp * 16 + row, i % 8));
        }
    }
}
