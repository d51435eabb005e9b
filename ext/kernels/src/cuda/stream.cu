// The kernel that streams blocks; see `block_streams.cu`.

// Where the first rows of a tile begin, and, of two matrices that are gated, those of the second.
struct Rows {
    const uchar *first, *second;
};
__device__ __forceinline__ Rows rows_of(const Product &p, uint tile, ulong row_bytes) {
    const Place place = place_of(p, tile * OUTPUTS);
    const uchar *first = p.weights[place.matrix] + place.row * row_bytes;
    return {first, GATED ? p.weights[1] + place.row * row_bytes : first + TILE / 2 * row_bytes};
}

// A tile's rows are all of one matrix, or halves of two.
extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) stream_of_blocks(const __grid_constant__ Product p) {
    extern __shared__ uint4 memory[];
    uchar *const stages = (uchar *)memory;
    Shared &shared = *(Shared *)(stages + WARPS * STAGES * TILE * PITCH);
    uint4 *const x = (uint4 *)(&shared + 1);
    const uint blocks = p.inputs / BLOCK, tiles = p.outputs / OUTPUTS;
    float *const sums = (float *)(x + ROWS * blocks * 32);
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const uint row_bytes = blocks * BLOCK_BYTES;
    uchar *const own = stages + warp * STAGES * TILE * PITCH;
    if (threadIdx.x < 8) { shared.zeros[threadIdx.x] = make_uint4(0, 0, 0, 0); }

    // Where a lane's pieces lie: in a stage, and from the first row of the matrix, or of the second one.
    uint to[OWN_PIECES], at[OWN_PIECES];
    #pragma unroll
    for (int i = 0; i < OWN_PIECES; i++) {
        const uint piece = i * 32 + lane, row = piece / PIECES, in_row = piece % PIECES * 16;
        to[i] = row * PITCH + in_row;
        at[i] = (GATED ? row % OUTPUTS : row) * row_bytes + in_row;
    }
    // What is copied next.
    uint next = blockIdx.x, next_block = warp;
    Rows rows = rows_of(p, next, row_bytes);
    const auto copy_next = [&](uint stage) {
        if (next < tiles && warp < blocks) {
            const uint start = next_block * BLOCK_BYTES;
            uchar *const stage_at = own + stage * TILE * PITCH;
            #pragma unroll
            for (int i = 0; i < OWN_PIECES; i++) {
                const uint piece = i * 32 + lane;
                if (ALL_PIECES % 32 == 0 || i + 1 < OWN_PIECES || piece < ALL_PIECES) {
                    const uchar *from = (GATED && piece / PIECES >= OUTPUTS ? rows.second : rows.first) + (at[i] + start);
#if KIND == Q6_K
                    from -= uint(ulong(from)) % 16;
#endif
                    stream_sixteen(stage_at + to[i], from);
                }
            }
            next_block += WARPS;
            if (next_block >= blocks) {
                next_block = warp;
                next += gridDim.x;
                if (next < tiles) { rows = rows_of(p, next, row_bytes); }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    #pragma unroll
    for (int stage = 0; stage < STAGES; stage++) { copy_next(stage); }
#if LOOKED_UP
    for (uint pair = warp; pair < 256; pair += WARPS) {
        shared.pairs[pair][lane] = pack(FOUR_BITS[pair % 16], FOUR_BITS[pair / 16], ELEMENT());
    }
#endif
    __syncthreads();
    if (!p.leads) { let_next_begin(); }
    if (!p.follows) { await_previous(); }
    if (p.leads) { let_next_begin(); }
    take_rows(p, x, sums, warp, lane);

    const bool has_x = group / 2 == member && group % 2 < ROWS;
    const uint4 *const own_x = has_x ? x + group % 2 * blocks * 32 + member * 8 : shared.zeros;
    uint stage = 0, turn = 0;
    for (uint tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn = (turn + 1) % WARPS) {
        uint starts[2] = {};
#if KIND == Q6_K
        const Rows begin = rows_of(p, tile, row_bytes);
        starts[0] = uint(ulong(begin.first)) + group * row_bytes;
        starts[1] = uint(ulong(begin.second)) + group * row_bytes;
#endif
        float totals[2][ROWS] = {};
        for (uint block = warp; block < blocks; block += WARPS) {
            Operands from;
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                from.rows[side] = own + (stage * TILE + group + 8 * side) * PITCH;
                from.offsets[side] = (starts[side] + block * BLOCK_BYTES) % 16;
            }
            from.x = own_x + (has_x ? block * 32 : 0);
            #pragma unroll
            for (int r = 0; r < ROWS; r++) { from.sums[r] = sums + ((r * blocks + block) * 4 + member) * RUNS; }
            from.odd = block % 2;
#if LOOKED_UP
            from.pairs = &shared.pairs[0][lane];
#endif
            asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 1) : "memory");
            __syncwarp();
            add_block(from, member, totals);
            __syncwarp();
            copy_next(stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            #pragma unroll
            for (int r = 0; r < ROWS; r++) {
                totals[side][r] += __shfl_xor_sync(0xffffffffu, totals[side][r], 1);
                totals[side][r] += __shfl_xor_sync(0xffffffffu, totals[side][r], 2);
                if (member == 0) { shared.parts[turn][warp][r][group + 8 * side] = totals[side][r]; }
            }
        }
        // Another warp each time waits for all, and adds up what they have. None comes back to a barrier before it
        // has waited for all at another.
        if (warp != turn) {
            asm volatile("bar.arrive %0, %1;" :: "r"(turn + 1), "n"(WARPS * 32) : "memory");
            continue;
        }
        asm volatile("bar.sync %0, %1;" :: "r"(turn + 1), "n"(WARPS * 32) : "memory");
        if (lane < ROWS * OUTPUTS) {
            const uint r = lane / OUTPUTS, place_in = lane % OUTPUTS, output = tile * OUTPUTS + place_in;
            float sum = 0.0f, up = 0.0f;
            #pragma unroll
            for (int i = 0; i < WARPS; i++) {
                sum += shared.parts[turn][i][r][place_in];
                if (GATED) { up += shared.parts[turn][i][r][TILE - OUTPUTS + place_in]; }
            }
            if (r < p.rows) { finish(p, r, output, place_of(p, output), sum, up); }
        }
    }
    if (p.follows) { await_previous(); }
}
