// Matrices of quantized blocks times up to 64 rows at a time, on tensor cores. ELEMENT (a half type), KIND, BLOCK_BYTES,
// BLOCK_ELEMENTS, ROWS, GATED, SPLITS and STAGES are defined at run time.
//
// A thread block makes a panel of outputs from 128 rows of weights; a cluster of SPLITS of them shares the panel's depth.
// Blocks and x are copied to shared memory some steps of 256 elements ahead. Every warp unpacks 16 rows of weights into
// registers, rounded to ELEMENT as an expanded matrix is, in the order in which tensor cores take them.

#define WARPS 8
#define PANEL (16 * WARPS)
#define OUTPUTS (GATED ? PANEL / 2 : PANEL)
#define TILES (ROWS / 8)
#define DEPTH 256 // elements of a step

// Copies begin at a multiple of 16 bytes. Where steps don't, one reaches from before its first byte to beyond its last.
#define COPIES (GROUP_BYTES % 16 ? GROUP_BYTES / 16 + 2 : GROUP_BYTES / 16)
#define PITCH (16 * (COPIES | 1))
#define WEIGHT_BYTES (PANEL * PITCH)
#define STAGE_BYTES (WEIGHT_BYTES + ROWS * DEPTH * 2)
#define SUMS_PITCH (ROWS + 1)

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int STILL>
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" :: "n"(STILL) : "memory"); }
// As `copy_sixteen`, of the first so many bytes.
__device__ __forceinline__ void copy_some(uint to, const void *from, uint bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes));
}

// Where a row of the panel begins, and where its matrix ends.
struct Start {
    const uchar *from, *end;
};

// Gated, the first half of a warp's rows are of the gate, and the other of the same outputs of the other matrix.
__device__ __forceinline__ uint output_of(uint row) { return GATED ? row / 16 * 8 + row % 8 : row; }
__device__ __forceinline__ Start start_of(const Product &p, uint first, uint row) {
    const ulong row_bytes = ulong(p.inputs / DEPTH) * GROUP_BYTES;
    // Outputs beyond the last repeat it, and are not stored.
    Place place = place_of(p, min(first + output_of(row), p.outputs - 1));
    if (GATED) { place.matrix = row % 16 / 8; }
    const uint begins = GATED || place.matrix == 0 ? 0 : p.ends[place.matrix - 1];
    const uint rows = GATED ? p.outputs : p.ends[place.matrix] - begins;
    const uchar *matrix = p.weights[place.matrix];
    return {matrix + place.row * row_bytes, matrix + rows * row_bytes};
}

// Parts of 16 bytes of a row of x are exchanged, so that a warp's lanes read from different banks.
__device__ __forceinline__ uint place_of_part(uint row, uint part) { return part ^ (part >> 3 & 1) ^ (row & 1 ? 7 : 0); }

__device__ __forceinline__ void copy_weights(const Start *starts, uint step, uint to) {
    for (uint i = threadIdx.x; i < PANEL * COPIES; i += 32 * WARPS) {
        const Start &row = starts[i / COPIES];
        const uchar *first = (const uchar *)(ulong(row.from + ulong(step) * GROUP_BYTES) & ~15ul), *from = first + i % COPIES * 16;
        const ulong left = from < row.end ? row.end - from : 0;
        copy_some(to + i / COPIES * PITCH + i % COPIES * 16, left ? from : first, left < 16 ? uint(left) : 16);
    }
}

__device__ __forceinline__ void copy_rows(const Product &p, uint first, uint step, uint to) {
    #pragma unroll
    for (uint i = threadIdx.x; i < ROWS * (DEPTH / 8); i += 32 * WARPS) {
        const uint row = i / (DEPTH / 8), part = i % (DEPTH / 8);
        // Rows beyond the last repeat it, and are not stored.
        const ELEMENT *from = p.x + ulong(min(first + row, p.rows - 1)) * p.inputs + step * DEPTH + part * 8;
        copy_some(to + row * (DEPTH * 2) + place_of_part(row, part) * 16, from, 16);
    }
}

// What a lane multiplies of a row of weights: 32 elements, in pairs.
struct Unpacked {
    uint pairs[RUN];
};
__device__ __forceinline__ Unpacked unpack(const Run (&runs)[2]) {
    Unpacked out;
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        #pragma unroll
        for (int i = 0; i < RUN; i += 2) {
            const float low = fmaf(runs[run].scale, runs[run].codes[i], runs[run].minimum);
            const float high = fmaf(runs[run].scale, runs[run].codes[i + 1], runs[run].minimum);
            out.pairs[run * RUN / 2 + i / 2] = pack(low, high, ELEMENT());
        }
    }
    return out;
}

// Adds the products of a step: of each 128 elements, a lane has 32 of two rows of weights, and of a row of every tile of x.
__device__ __forceinline__ void add_step(const uchar *weights, const uchar *x, const uint (&skips)[2], Tile (&sums)[TILES]) {
    const uint warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        Unpacked sides[2];
        uint firsts[2];
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            Run runs[2];
            take(weights + (16 * warp + 8 * side + group) * PITCH + skips[side], 4 * half + member, runs);
            sides[side] = unpack(runs);
            firsts[0] = runs[0].first;
            firsts[1] = runs[1].first;
        }
        #pragma unroll
        for (int eight = 0; eight < 4; eight++) {
            const uint part = firsts[eight / 2] / 8 + eight % 2;
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const uint row = 8 * tile + group;
                const uint4 b = *(const uint4 *)(x + row * (DEPTH * 2) + place_of_part(row, part) * 16);
                const uint *const one = sides[0].pairs + 4 * eight, *const other = sides[1].pairs + 4 * eight;
                multiply(sums[tile], {one[0], other[0], one[1], other[1]}, make_uint2(b.x, b.y), ELEMENT());
                multiply(sums[tile], {one[2], other[2], one[3], other[3]}, make_uint2(b.z, b.w), ELEMENT());
            }
        }
    }
}

// The sum of all blocks of the cluster, in their order.
__device__ __forceinline__ float joined(uint sums, uint row, uint column) {
    const uint at = sums + (row * SUMS_PITCH + column) * 4;
#if SPLITS > 1
    float sum = 0.0f;
    #pragma unroll
    for (uint block = 0; block < SPLITS; block++) { sum += read_in(at, block); }
    return sum;
#else
    float sum;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : "r"(at) : "memory");
    return sum;
#endif
}

extern "C" __global__ void
#if SPLITS > 1
__cluster_dims__(1, SPLITS, 1)
#endif
__launch_bounds__(32 * WARPS, 2) panels_of_blocks(const __grid_constant__ Product p) {
    extern __shared__ __align__(128) uchar shared[];
    __shared__ Start starts[PANEL];
    let_next_begin();
    const uint first = blockIdx.x * OUTPUTS, rows = blockIdx.z * ROWS, split = SPLITS > 1 ? blockIdx.y : 0;
    if (threadIdx.x < PANEL) { starts[threadIdx.x] = start_of(p, first, threadIdx.x); }
    lay_out_levels();
    __syncthreads();
    const uint steps = p.inputs / DEPTH, begin = steps * split / SPLITS, end = steps * (split + 1) / SPLITS;
    const uint stages = shared_address(shared);
    const auto stage_of = [&](uint step) { return (step - begin) % STAGES * STAGE_BYTES; };
    for (uint step = begin; step < begin + STAGES - 1 && step < end; step++) { copy_weights(starts, step, stages + stage_of(step)); }
    await_previous();
    for (uint step = begin; step < begin + STAGES - 1; step++) {
        if (step < end) { copy_rows(p, rows, step, stages + stage_of(step) + WEIGHT_BYTES); }
        commit_copies();
    }
    const uint own = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    Tile sums[TILES] = {};
    for (uint step = begin; step < end; step++) {
        await_copies<STAGES - 2>();
        __syncthreads();
        const uint next = step + STAGES - 1;
        if (next < end) {
            copy_weights(starts, next, stages + stage_of(next));
            copy_rows(p, rows, next, stages + stage_of(next) + WEIGHT_BYTES);
        }
        commit_copies();
        const uchar *const stage = shared + stage_of(step);
        const uint skips[2] = {
            uint(ulong(starts[own].from + ulong(step) * GROUP_BYTES) & 15), uint(ulong(starts[own + 8].from + ulong(step) * GROUP_BYTES) & 15)
        };
        add_step(stage, stage + WEIGHT_BYTES, skips, sums);
    }
    // The sums take the place of what was copied.
    __syncthreads();
    float *const parts = (float *)shared;
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            parts[(own + i / 2 * 8) * SUMS_PITCH + 8 * tile + threadIdx.x % 4 * 2 + i % 2] = sums[tile].v[i];
        }
    }
#if SPLITS > 1
    await_cluster();
#else
    __syncthreads();
#endif
    const uint each = (OUTPUTS + SPLITS - 1) / SPLITS;
    for (uint i = threadIdx.x; i < each * ROWS; i += 32 * WARPS) {
        const uint at = split * each + i % each, row = i / each, output = first + at;
        if (rows + row >= p.rows || output >= p.outputs) { continue; }
        const uint of = GATED ? at / 8 * 16 + at % 8 : at;
        const float sum = joined(stages, of, row), up = GATED ? joined(stages, of + 8, row) : 0.0f;
        finish(p, rows + row, output, place_of(p, output), sum, up);
    }
#if SPLITS > 1
    // Others may still read this block's sums.
    await_cluster();
#endif
}
