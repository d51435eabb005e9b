// Matrices of experts times the rows that chose them, on tensor cores. ELEMENT (a half type), ROWS (a multiple of 8),
// GATED and SHARERS (1, or all warps of a thread block) are defined at run time.
//
// A warp makes 32 outputs of the rows of a tile, or 16 of gate and up; SHARERS warps make them together, so that few rows
// have enough warps. A warp reads weights as they lie, 64 bytes of eight outputs at a time, and keeps some of those reads
// ahead of the products. The rows of x are in the first cache.

#define WARPS 4
#define OUTPUTS (GATED ? 16 : 32) // of a warp
#define SIDES 4 // rows of weights that a lane reads
#define TILES (ROWS / 8)
#define DEPTH 32 // elements of a row that a warp reads at a time
#define AHEAD 2
#define STRIDE (SHARERS * AHEAD * DEPTH)

struct Weights {
    uint4 words[AHEAD][SIDES];
};

__device__ __forceinline__ Weights read_weights(const ELEMENT *const (&from)[SIDES], uint begin, uint end) {
    Weights out;
    #pragma unroll
    for (int step = 0; step < AHEAD; step++) {
        #pragma unroll
        for (int side = 0; side < SIDES; side++) {
            out.words[step][side] = make_uint4(0, 0, 0, 0);
            const uint at = begin + step * DEPTH;
            if (at < end) { out.words[step][side] = stream_sixteen(from[side] + at); }
        }
    }
    return out;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) expert_tiles(
    const __grid_constant__ Product all, const __grid_constant__ Choices choices
) {
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const uint first = (blockIdx.x * WARPS + warp) / SHARERS * OUTPUTS;
    let_next_begin();
    await_previous();
    Product p = all;
    ChosenTile rows;
    if (!rows.take(p, choices)) { return; }
    const ELEMENT *weights[SIDES];
    #pragma unroll
    for (int side = 0; side < SIDES; side++) {
        // Outputs beyond the last repeat it, and are not stored.
        const Place place = place_of(p, min(first + group + (GATED ? side % 2 : side) * 8, p.outputs - 1));
        weights[side] = p.weights[GATED ? side / 2 : place.matrix] + ulong(place.row) * p.inputs;
    }
    const uint tiles = (p.rows + 7) / 8;
    const ELEMENT *x[TILES];
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) { x[tile] = rows.x(p, min(tile * 8 + group, p.rows - 1)); }

    Tile sums[2][TILES] = {};
    uint begin = warp % SHARERS * (AHEAD * DEPTH) + member * 8;
    Weights next = read_weights(weights, begin, p.inputs);
    for (; begin < p.inputs + member * 8; begin += STRIDE) {
        const Weights now = next;
        next = read_weights(weights, begin + STRIDE, p.inputs);
#if SHARERS == 1 && TILES >= 4
        // So that one warp's rows of x are still in the first cache when the others read them.
        __syncthreads();
#endif
        #pragma unroll
        for (int step = 0; step < AHEAD; step++) {
            const uint at = begin + step * DEPTH;
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                if (tile >= tiles) { break; }
                uint4 b = make_uint4(0, 0, 0, 0);
                if (at < p.inputs) { b = *(const uint4 *)(x[tile] + at); }
                #pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    const uint4 upper = now.words[step][2 * pair], lower = now.words[step][2 * pair + 1];
                    multiply(sums[pair][tile], {upper.x, lower.x, upper.y, lower.y}, make_uint2(b.x, b.y), ELEMENT());
                    multiply(sums[pair][tile], {upper.z, lower.z, upper.w, lower.w}, make_uint2(b.z, b.w), ELEMENT());
                }
            }
        }
    }

#if SHARERS > 1
    __shared__ Tile parts[SHARERS][2][TILES][32];
    #pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) { parts[warp][pair][tile][lane] = sums[pair][tile]; }
    }
    __syncthreads();
    if (warp > 0) { return; }
    #pragma unroll
    for (int other = 1; other < SHARERS; other++) {
        #pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                #pragma unroll
                for (int i = 0; i < 4; i++) { sums[pair][tile].v[i] += parts[other][pair][tile][lane].v[i]; }
            }
        }
    }
#endif

    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint row = tile * 8 + 2 * member + i % 2;
            if (row >= p.rows) { continue; }
            #pragma unroll
            for (int pair = 0; pair < (GATED ? 1 : 2); pair++) {
                const uint output = first + pair * 16 + i / 2 * 8 + group;
                if (output >= p.outputs) { continue; }
                finish(p, rows.out(row), output, place_of(p, output), sums[pair][tile].v[i], sums[1][tile].v[i]);
            }
        }
    }
}
