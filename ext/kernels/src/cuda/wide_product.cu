// activation(x · weightᵀ + bias) of many rows, on Hopper's tensor cores. ELEMENT and ACTIVATION, its number, are defined at run time.
//
// One warp copies tiles of both factors, STAGES ahead; two warpgroups take turns with tiles of 128 x 128 results: while one
// multiplies, the other adds the bias, activates and stores. Two blocks, a cluster, have neighbouring rows and the
// same weights, of which each brings half to both.

#define TILE_ROWS 128
#define TILE_COLUMNS 128
#define CLUSTER 2
#define STAGES 6
#define ROWS_BYTES (TILE_ROWS * TILE_DEPTH * 2)
#define WEIGHTS_BYTES (TILE_COLUMNS * TILE_DEPTH * 2)
#define STAGE_BYTES (ROWS_BYTES + WEIGHTS_BYTES)
#define PITCH (64 + 8) // of a warp's results, on their way out
#define WARP_RESULTS (16 * PITCH)

struct WideProduct {
    const ELEMENT *bias; // null: none
    ELEMENT *out;
    uint rows, outputs, depth; // depth in tiles
};

__device__ __forceinline__ void store_matrices(uint to, uint a, uint b, uint c, uint d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// The warpgroups multiply one after the other, so that neither takes the other's stages for its own.
__device__ __forceinline__ void await_turn(uint turn) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + turn), "n"(2 * WARPGROUP) : "memory");
}
__device__ __forceinline__ void pass_turn(uint turn) {
    asm volatile("bar.arrive %0, %1;" :: "r"(1 + turn), "n"(2 * WARPGROUP) : "memory");
}

// A warp's 16 x 128 results: activated, and stored 128 bytes of a row at a time.
__device__ __forceinline__ void finish(
    const WideProduct &p, const float (&sums)[64], const uint (&biases)[16], ELEMENT *own, uint row, uint column
) {
    const uint lane = threadIdx.x % 32;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        __syncwarp();
        #pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint words[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int block = half * 8 + pair * 2 + i / 2;
                const float *sum = sums + block * 4 + i % 2 * 2;
                const float low = widen(ELEMENT{(unsigned short)(biases[block] & 0xffff)});
                const float high = widen(ELEMENT{(unsigned short)(biases[block] >> 16)});
                words[i] = pack(activation<ELEMENT>(sum[0] + low, ACTIVATION), activation<ELEMENT>(sum[1] + high, ACTIVATION), ELEMENT());
            }
            store_matrices(shared_address(own + lane % 16 * PITCH + pair * 16 + lane / 16 * 8), words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint at = row + i * 4 + lane / 8, to = column + half * 64 + lane % 8 * 8;
            const uint4 words = *(const uint4 *)(own + (i * 4 + lane / 8) * PITCH + lane % 8 * 8);
            if (at < p.rows && to < p.outputs) { *(uint4 *)(p.out + ulong(at) * p.outputs + to) = words; }
        }
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(3 * WARPGROUP, 1)
wide_product(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const __grid_constant__ WideProduct p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint stages = shared_address(shared);
    ELEMENT *const results = (ELEMENT *)(shared + STAGES * STAGE_BYTES);
    const uint full = stages + STAGES * STAGE_BYTES + 8 * WARP_RESULTS * 2, empty = full + 8 * STAGES;
    const uint block = block_of_cluster(), group = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            make_barrier(full + 8 * i, 1);
            make_barrier(empty + 8 * i, CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    await_cluster();
    await_previous();
    let_next_begin();

    const uint across = (p.outputs + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const uint down = (p.rows + CLUSTER * TILE_ROWS - 1) / (CLUSTER * TILE_ROWS);
    const uint tiles = across * down, clusters = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            uint stage = 0, phase = 1;
            for (uint tile = first; tile < tiles; tile += clusters) {
                const int row = (tile / across * CLUSTER + block) * TILE_ROWS;
                const int column = tile % across * TILE_COLUMNS + block * (TILE_COLUMNS / CLUSTER);
                for (uint step = 0; step < p.depth; step++) {
                    await_phase(empty + 8 * stage, phase);
                    const uint to = stages + stage * STAGE_BYTES, barrier = full + 8 * stage;
                    expect_bytes(barrier, STAGE_BYTES);
                    copy_tile(to, x, step * TILE_DEPTH, row, barrier);
                    copy_tile_to_all(
                        to + ROWS_BYTES + block * (WEIGHTS_BYTES / CLUSTER), weight, step * TILE_DEPTH, column, barrier, (1 << CLUSTER) - 1
                    );
                    if (++stage == STAGES) { stage = 0; phase ^= 1; }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const uint thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32, turn = group - 1;
        ELEMENT *const own = results + (turn * 4 + warp) * WARP_RESULTS;
        uint step = turn * p.depth; // counted over all tiles of both
        if (turn == 1) { pass_turn(0); }
        for (uint tile = first + turn * clusters; tile < tiles; tile += 2 * clusters, step += p.depth) {
            const uint row = (tile / across * CLUSTER + block) * TILE_ROWS, column = tile % across * TILE_COLUMNS;
            uint biases[16];
            #pragma unroll
            for (int i = 0; i < 16; i++) {
                const uint at = column + i * 8 + lane % 4 * 2;
                biases[i] = p.bias && at < p.outputs ? *(const uint *)(p.bias + at) : 0;
            }
            float upper[64], lower[64];
            await_turn(turn);
            uint before = 0;
            for (uint i = 0; i < p.depth; i++, step++) {
                const uint stage = step % STAGES;
                await_phase(full + 8 * stage, step / STAGES & 1);
                const ulong a = factor(stages + stage * STAGE_BYTES), b = factor(stages + stage * STAGE_BYTES + ROWS_BYTES);
                begin_products();
                #pragma unroll
                for (int deep = 0; deep < TILE_DEPTH / 16; deep++) {
                    // 32 bytes a step, in units of 16; 64 rows below lie 8,192 bytes on.
                    multiply_128(upper, a + 2 * deep, b + 2 * deep, i > 0 || deep > 0, ELEMENT());
                    multiply_128(lower, a + 512 + 2 * deep, b + 2 * deep, i > 0 || deep > 0, ELEMENT());
                }
                end_products();
                await_products<1>();
                if (i > 0 && thread < CLUSTER) { arrive_in(empty + 8 * before, thread); }
                before = stage;
            }
            pass_turn(turn ^ 1);
            await_products<0>();
            if (thread < CLUSTER) { arrive_in(empty + 8 * before, thread); }
            finish(p, upper, biases, own, row + warp * 16, column);
            finish(p, lower, biases, own, row + 64 + warp * 16, column);
        }
    }
    await_cluster();
}
