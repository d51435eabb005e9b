// Attention over packed sequences. ELEMENT, WIDTH (of a head), BIAS, CAPPED, LANES, HEADS, TILE_WARPS, ROW_TILES and
// PLAIN_TILES are defined at run time.
//
// `attention_tiles` gives ROW_TILES times 16 queries of a head to each of a block's TILE_WARPS warps, on tensor cores:
// scores of 64 keys at a time are kept in registers, with a running maximum and sum (half types only;
// TILE_WARPS is 0 for others). `attention_plain_tiles` does the same without them, for all types. `attention_rows` gives one
// query of a head, or of HEADS that have the same keys, to a block, or to several that share its keys, whose parts
// `attention_join` joins.

#define NO_BIAS 0
#define ALIBI 1
#define RELATIVE 2
#define DISENTANGLED 3

struct Attention {
    const ELEMENT *q;
    const ELEMENT *k;
    const ELEMENT *v;
    ELEMENT *out;
    float *parts;               // of attention_rows, where keys are split
    const uint *query_boundaries; // null: one sequence
    const uint *key_boundaries;
    const uint *places;         // the rows of k and v that keys lie in; null: their own numbers
    const float *table;         // slopes, or [heads, distances]
    const ELEMENT *from_query;  // [tokens, heads, buckets]
    const ELEMENT *from_key;
    const uint *query_buckets;  // by distance + zero
    const uint *key_buckets;
    ulong q_token, q_head, k_token, k_head, v_token, v_head; // strides in elements
    uint sequences;
    uint queries; // of the one sequence
    uint keys;
    uint heads;
    uint group; // query heads per key head
    int left;
    int right;
    float scale;
    float soft_cap;
    int zero;
    int query_distances; // of `table` or `query_buckets`
    int key_distances;
    uint query_width; // buckets per row
    uint key_width;
    uint splits;
    uint split_keys;
};

struct Sequence {
    int first_query, queries, first_key, keys;
};

__device__ Sequence sequence_at(const Attention &a, uint index) {
    if (!a.query_boundaries) {
        return {0, int(a.queries), 0, int(a.keys)};
    }
    const int query = a.query_boundaries[index], key = a.key_boundaries[index];
    return {query, int(a.query_boundaries[index + 1]) - query, key, int(a.key_boundaries[index + 1]) - key};
}

__device__ __forceinline__ ulong row_of_key(const Attention &a, uint key) { return a.places ? a.places[key] : key; }

__device__ __forceinline__ int clamped(int distance, int zero, int count) {
    return min(max(distance + zero, 0), count - 1);
}

// Whether an exponent is the plain product times a positive number.
#define PLAIN (BIAS == NO_BIAS && !CAPPED)

// A score as an exponent of two, from the plain product. Tokens are counted over all sequences.
__device__ __forceinline__ float exponent(
    const Attention &a, float product, uint head, int query, int key, int distance
) {
#if PLAIN
    return product * (a.scale * LOG2_E);
#else
    float score = product * a.scale;
#if CAPPED
    score = a.soft_cap * tanhf(score / a.soft_cap);
#endif
#if BIAS == ALIBI
    score -= a.table[head] * fabsf(float(distance));
#elif BIAS == RELATIVE
    score += a.table[head * a.query_distances + clamped(distance, a.zero, a.query_distances)];
#elif BIAS == DISENTANGLED
    if (a.from_query) {
        const uint bucket = a.query_buckets[clamped(distance, a.zero, a.query_distances)];
        score += widen(a.from_query[(ulong(query) * a.heads + head) * a.query_width + bucket]);
    }
    if (a.from_key) {
        const uint bucket = a.key_buckets[clamped(distance, a.zero, a.key_distances)];
        score += widen(a.from_key[(ulong(key) * a.heads + head) * a.key_width + bucket]);
    }
#endif
    return score * LOG2_E;
#endif
}

// What exponents are counted from: a row that has seen nothing has no highest one.
__device__ __forceinline__ float finite_base(float highest) { return highest == -INFINITE ? 0.0f : highest; }

#if TILE_WARPS
#define TILE 64 // keys
#define WARP_ROWS (16 * ROW_TILES)
#define TILE_ROWS (WARP_ROWS * TILE_WARPS)
// As many blocks on a multiprocessor as their registers allow.
#define TILE_BLOCKS (WIDTH > 64 ? 8 / TILE_WARPS : ROW_TILES == 1 ? 4 : PLAIN ? 3 : 2)
#define PITCH (WIDTH + 8) // rows of shared memory that lie in different banks
#define STEPS (WIDTH / 16)
// Whether a warp keeps its queries in registers; otherwise they have shared memory of their own.
#define HOLDS_QUERIES (WIDTH > 64)

__device__ __forceinline__ void load_transposed(uint (&to)[4], const void *from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared_address(from)));
}

#define MULTIPLY(TYPE)                                                                               \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
__device__ __forceinline__ void multiply(float (&sum)[4], const uint (&a)[4], uint b0, uint b1, f16) { MULTIPLY("f16"); }
__device__ __forceinline__ void multiply(float (&sum)[4], const uint (&a)[4], uint b0, uint b1, bf16) { MULTIPLY("bf16"); }

// Copies 64 keys and values; those beyond the sequence are zeros.
__device__ void fetch(const Attention &a, const Sequence &s, uint key_head, int tile, ELEMENT *keys, ELEMENT *values) {
    const uint chunks = WIDTH / 8;
    #pragma unroll 4
    for (uint i = threadIdx.x; i < TILE * chunks; i += 32 * TILE_WARPS) {
        const uint row = i / chunks, column = i % chunks * 8;
        const bool there = tile + int(row) < s.keys;
        const ulong token = row_of_key(a, s.first_key + (there ? tile + row : 0));
        copy_sixteen(shared_address(keys + row * PITCH + column), a.k + token * a.k_token + key_head * a.k_head + column, there);
        copy_sixteen(shared_address(values + row * PITCH + column), a.v + token * a.v_token + key_head * a.v_head + column, there);
    }
}

extern "C" __global__ void __launch_bounds__(32 * TILE_WARPS, TILE_BLOCKS) attention_tiles(const __grid_constant__ Attention a) {
    extern __shared__ uint4 shared[];
    ELEMENT *const buffer = (ELEMENT *)shared; // two stages of keys and values
    await_previous();
    const Sequence s = sequence_at(a, blockIdx.z);
    const int first = blockIdx.x * TILE_ROWS;
    if (first >= s.queries) {
        return;
    }
    const uint head = blockIdx.y, key_head = head / a.group;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
    const int shift = s.keys - s.queries; // from a query's number to its position
    const int low = max(0, first + shift - a.left);
    const int high = min(s.keys, min(first + TILE_ROWS, s.queries) + shift + a.right);
    const int own = first + warp * WARP_ROWS; // the warp's first row
    // Its queries, and its results later.
    ELEMENT *const rows = buffer + (HOLDS_QUERIES ? 0 : 4 * TILE * PITCH) + warp * WARP_ROWS * PITCH;
    const uint chunks = WIDTH / 8;
#if HOLDS_QUERIES
    uint held[STEPS][ROW_TILES][4];
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        #pragma unroll
        for (int i = 0; i < 4 * ROW_TILES; i++) {
            const int row = own + i / 4 * 16 + quad + i % 2 * 8;
            const ELEMENT *from = a.q + ulong(s.first_query + row) * a.q_token + head * a.q_head;
            held[step][i / 4][i % 4] = row < s.queries ? *(const uint *)(from + step * 16 + i % 4 / 2 * 8 + pair * 2) : 0;
        }
    }
#else
    #pragma unroll
    for (uint i = lane; i < WARP_ROWS * chunks; i += 32) {
        const int row = i / chunks, column = i % chunks * 8;
        const bool there = own + row < s.queries;
        const ELEMENT *from = a.q + ulong(s.first_query + (there ? own + row : 0)) * a.q_token + head * a.q_head;
        copy_sixteen(shared_address(rows + row * PITCH + column), from + column, there);
    }
#endif
    int tile = low / TILE * TILE;
    const auto fetch_tile = [&](int at, int stage) {
        ELEMENT *const to = buffer + stage * 2 * TILE * PITCH;
        if (at < high) { fetch(a, s, key_head, at, to, to + TILE * PITCH); }
        asm volatile("cp.async.commit_group;");
    };
    fetch_tile(tile, 0);
    fetch_tile(tile + TILE, 1);

    float mixed[ROW_TILES][2 * STEPS][4] = {};
    float highest[ROW_TILES][2], sums[ROW_TILES][2] = {};
    #pragma unroll
    for (int t = 0; t < ROW_TILES; t++) { highest[t][0] = highest[t][1] = -INFINITE; }
    int stage = 0;
    for (; tile < high; tile += TILE, stage ^= 1) {
        ELEMENT *const keys = buffer + stage * 2 * TILE * PITCH, *const values = keys + TILE * PITCH;
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();

        float scores[ROW_TILES][8][4] = {};
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            uint query[ROW_TILES][4];
            #pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#if HOLDS_QUERIES
                #pragma unroll
                for (int i = 0; i < 4; i++) { query[t][i] = held[step][t][i]; }
#else
                load_matrices(query[t], shared_address(rows + (t * 16 + lane % 16) * PITCH + step * 16 + lane / 16 * 8));
#endif
            }
            #pragma unroll
            for (int block = 0; block < 4; block++) {
                uint b[4];
                load_matrices(b, shared_address(keys + (block * 16 + lane / 16 * 8 + lane % 8) * PITCH + step * 16 + lane / 8 % 2 * 8));
                #pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    multiply(scores[t][2 * block], query[t], b[0], b[1], ELEMENT());
                    multiply(scores[t][2 * block + 1], query[t], b[2], b[3], ELEMENT());
                }
            }
        }

        const int position = own + shift; // of the warp's first row
        const bool edge =
            tile + TILE > s.keys || tile + TILE - 1 > position + a.right || tile < position + WARP_ROWS - 1 - a.left;
        if (edge || !PLAIN) {
            #pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                #pragma unroll
                for (int block = 0; block < 8; block++) {
                    #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int key = tile + block * 8 + pair * 2 + i % 2, row = own + t * 16 + quad + i / 2 * 8;
                        const int distance = key - row - shift;
                        const bool seen = key < s.keys && distance <= a.right && distance >= -a.left;
                        float &score = scores[t][block][i];
#if !PLAIN
                        // A row or key beyond the sequence has no bias to read.
                        const int real_row = min(row, s.queries - 1), real_key = min(key, s.keys - 1);
                        score = exponent(a, score, head, s.first_query + real_row, s.first_key + real_key, distance);
#endif
                        score = seen ? score : -INFINITE;
                    }
                }
            }
        }
        const float scale = PLAIN ? a.scale * LOG2_E : 1.0f;
        #pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            float base[2], factor[2];
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                float top = -INFINITE;
                #pragma unroll
                for (int block = 0; block < 8; block++) {
                    top = fmaxf(top, fmaxf(scores[t][block][2 * i], scores[t][block][2 * i + 1]));
                }
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                top = fmaxf(highest[t][i], top * scale);
                base[i] = finite_base(top);
                factor[i] = power_of_two(highest[t][i] - base[i]);
                highest[t][i] = top;
                sums[t][i] *= factor[i];
            }
            #pragma unroll
            for (int block = 0; block < 8; block++) {
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[t][block][i] = power_of_two(fmaf(scores[t][block][i], scale, -base[i / 2]));
                    sums[t][i / 2] += scores[t][block][i];
                }
            }
            #pragma unroll
            for (int block = 0; block < 2 * STEPS; block++) {
                #pragma unroll
                for (int i = 0; i < 4; i++) { mixed[t][block][i] *= factor[i / 2]; }
            }
        }
        #pragma unroll
        for (int step = 0; step < 4; step++) {
            uint probabilities[ROW_TILES][4];
            #pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const float(&left)[4] = scores[t][2 * step], (&right)[4] = scores[t][2 * step + 1];
                probabilities[t][0] = pack(left[0], left[1], ELEMENT());
                probabilities[t][1] = pack(left[2], left[3], ELEMENT());
                probabilities[t][2] = pack(right[0], right[1], ELEMENT());
                probabilities[t][3] = pack(right[2], right[3], ELEMENT());
            }
            #pragma unroll
            for (int block = 0; block < STEPS; block++) {
                uint b[4];
                load_transposed(b, values + (step * 16 + lane / 8 % 2 * 8 + lane % 8) * PITCH + block * 16 + lane / 16 * 8);
                #pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    multiply(mixed[t][2 * block], probabilities[t], b[0], b[1], ELEMENT());
                    multiply(mixed[t][2 * block + 1], probabilities[t], b[2], b[3], ELEMENT());
                }
            }
        }
        if (tile + 2 * TILE < high) { __syncthreads(); }
        fetch_tile(tile + 2 * TILE, stage);
    }

    asm volatile("cp.async.wait_group 0;");
    if (HOLDS_QUERIES) { __syncthreads(); } else { __syncwarp(); }
    #pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            float &sum = sums[t][i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
            ELEMENT *const to = rows + (t * 16 + quad + i * 8) * PITCH + pair * 2;
            #pragma unroll
            for (int block = 0; block < 2 * STEPS; block++) {
                *(uint *)(to + block * 8) =
                    pack(mixed[t][block][2 * i] * inverse, mixed[t][block][2 * i + 1] * inverse, ELEMENT());
            }
        }
    }
    __syncwarp();
    #pragma unroll
    for (uint i = lane; i < WARP_ROWS * chunks; i += 32) {
        const int row = i / chunks, column = i % chunks * 8;
        if (own + row < s.queries) {
            *(uint4 *)(a.out + (ulong(s.first_query + own + row) * a.heads + head) * WIDTH + column) =
                *(const uint4 *)(rows + row * PITCH + column);
        }
    }
}
#endif

#if PLAIN_TILES
#define TILE 64     // queries and keys
#define COLUMN 68   // of 64 numbers, padded to lie in different banks and stay aligned
#define PARTS ((WIDTH + 63) / 64)

// 64 rows from `first` on, each turned into a column; those beyond the sequence are zeros.
template <typename Rows>
__device__ void fetch_columns(const ELEMENT *from, ulong stride, int first, int count, const Rows &row_at, float *to) {
    for (int i = threadIdx.x; i < TILE * (WIDTH / 8); i += 256) {
        const int row = i % TILE, column = i / TILE * 8;
        Eight values = {};
        if (first + row < count) { values = widen_eight(from + row_at(first + row) * stride + column); }
        #pragma unroll
        for (int j = 0; j < 8; j++) { to[(column + j) * COLUMN + row] = values.v[j]; }
    }
}

// Attention in tiles of full precision: 16 x 16 threads, each with 4 queries x 4 keys and then 4 queries x 4 columns
// of every 64.
extern "C" __global__ void __launch_bounds__(256) attention_plain_tiles(const __grid_constant__ Attention a) {
    extern __shared__ uint4 shared[];
    float *const queries = (float *)shared, *const keys = queries + WIDTH * COLUMN;
    float *const values = keys + WIDTH * COLUMN, *const probabilities = values + TILE * WIDTH;
    await_previous();
    const Sequence s = sequence_at(a, blockIdx.z);
    const int first = blockIdx.x * TILE;
    if (first >= s.queries) {
        return;
    }
    const uint head = blockIdx.y, key_head = head / a.group;
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    const int shift = s.keys - s.queries;
    const int low = max(0, first + shift - a.left);
    const int high = min(s.keys, min(first + TILE, s.queries) + shift + a.right);
    const ELEMENT *const q = a.q + head * a.q_head;
    const ELEMENT *const k = a.k + key_head * a.k_head;
    const ELEMENT *const v = a.v + key_head * a.v_head;
    const auto query_row = [&](int query) { return ulong(s.first_query + query); };
    const auto key_row = [&](int key) { return row_of_key(a, s.first_key + key); };
    fetch_columns(q, a.q_token, first, s.queries, query_row, queries);

    float mixed[4][PARTS][4] = {};
    float highest[4], sums[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; i++) { highest[i] = -INFINITE; }
    for (int tile = low / TILE * TILE; tile < high; tile += TILE) {
        __syncthreads();
        fetch_columns(k, a.k_token, tile, s.keys, key_row, keys);
        for (int i = threadIdx.x; i < TILE * (WIDTH / 8); i += 256) {
            const int row = i / (WIDTH / 8), column = i % (WIDTH / 8) * 8;
            Eight taken = {};
            if (tile + row < s.keys) { taken = widen_eight(v + key_row(tile + row) * a.v_token + column); }
            narrow_eight(taken, values + row * WIDTH + column);
        }
        __syncthreads();
        float scores[4][4] = {};
        #pragma unroll 8
        for (int d = 0; d < WIDTH; d++) {
            const float4 left = *(const float4 *)(queries + d * COLUMN + 4 * down);
            const float4 right = *(const float4 *)(keys + d * COLUMN + 4 * across);
            const float l[4] = {left.x, left.y, left.z, left.w}, r[4] = {right.x, right.y, right.z, right.w};
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) { scores[i][j] = fmaf(l[i], r[j], scores[i][j]); }
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first + 4 * down + i, real_row = min(row, s.queries - 1);
            float top = -INFINITE;
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const int key = tile + 4 * across + j, real_key = min(key, s.keys - 1);
                const int distance = key - row - shift;
                const bool seen = key < s.keys && distance <= a.right && distance >= -a.left;
                const float value =
                    exponent(a, scores[i][j], head, s.first_query + real_row, s.first_key + real_key, distance);
                scores[i][j] = seen ? value : -INFINITE;
                top = fmaxf(top, scores[i][j]);
            }
            #pragma unroll
            for (int step = 8; step > 0; step /= 2) { top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step)); }
            top = fmaxf(highest[i], top);
            const float base = finite_base(top), factor = exp2f(highest[i] - base);
            highest[i] = top;
            sums[i] *= factor;
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const float probability = exp2f(scores[i][j] - base);
                sums[i] += probability;
                probabilities[(4 * across + j) * COLUMN + 4 * down + i] = probability;
            }
            #pragma unroll
            for (int part = 0; part < PARTS; part++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) { mixed[i][part][j] *= factor; }
            }
        }
        __syncthreads();
        #pragma unroll 4
        for (int key = 0; key < TILE; key++) {
            const float4 weights = *(const float4 *)(probabilities + key * COLUMN + 4 * down);
            const float w[4] = {weights.x, weights.y, weights.z, weights.w};
            #pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int column = part * 64 + 4 * across;
                if (column >= WIDTH) { continue; }
                const float4 row = *(const float4 *)(values + key * WIDTH + column);
                const float r[4] = {row.x, row.y, row.z, row.w};
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    #pragma unroll
                    for (int j = 0; j < 4; j++) { mixed[i][part][j] = fmaf(w[i], r[j], mixed[i][part][j]); }
                }
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        #pragma unroll
        for (int step = 8; step > 0; step /= 2) { sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step); }
        const int row = first + 4 * down + i;
        if (row >= s.queries) {
            continue;
        }
        const float inverse = sums[i] == 0.0f ? 0.0f : 1.0f / sums[i];
        ELEMENT *to = a.out + (ulong(s.first_query + row) * a.heads + head) * WIDTH;
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                const int column = part * 64 + 4 * across + j;
                if (column < WIDTH) { narrow(mixed[i][part][j] * inverse, to + column); }
            }
        }
    }
}
#endif
