// Rows of e4m3 times one to three matrices of it, on Hopper's tensor cores, with scales of f32. ELEMENT (a half type, of
// results), TILE_ROWS (128 or 256), GATED, SPLITS, SHARERS, PER_GROUP and ACTIVATION, its
// number, are defined at run time.
//
// One warp copies tiles of both factors STAGES ahead; two warpgroups multiply half of the rows each. Sums of 128 inputs
// are made by tensor cores, which keep few digits of them, and are added up in f32. Two blocks (SHARERS) have the same
// rows, of which each brings half to both; or SPLITS blocks share the depth, and add up what they have at the end.
//
// Matrices lie as blocks of 256 codes behind four scales. Those of an output are all one, or those of every 128 inputs are
// (PER_GROUP), which 64 outputs have in common.

#define TILE_COLUMNS 128
#define HALF_TILE 64 // outputs that are copied at once
#define DEPTH 128 // of a step, in bytes
#define HALVES (TILE_ROWS / 128) // of 64 rows each, of a warpgroup
#define CLUSTER (SPLITS * SHARERS)
#define ROWS_BYTES (TILE_ROWS * DEPTH)
#define HALF_BYTES (HALF_TILE * DEPTH)
#define STAGE_BYTES (ROWS_BYTES + 2 * HALF_BYTES)
#define STAGES (TILE_ROWS == 256 ? 4 : 6)
#define OUTPUTS (GATED ? HALF_TILE : TILE_COLUMNS) // of a tile
#define UNIT 272 // bytes of a block
#define PITCH (64 + 8) // of a warp's results, on their way out
#define SUMS_PITCH (TILE_COLUMNS + 8) // of sums that others add to theirs
#define MATRICES 3
#define CONSUMERS 8 // warps

struct Fp8Product {
    const unsigned char *weights[MATRICES]; // [outputs, inputs] in blocks
    const ELEMENT *biases[MATRICES];        // null: none
    const ELEMENT *residual;                // null: none; as the result
    const float *scales;                    // of rows: [rows], or [depth, pitch]
    ELEMENT *out;                           // [rows, outputs]
    uint ends[MATRICES];  // where each matrix's outputs end among all
    uint tiles[MATRICES]; // where its tiles do
    uint rows, outputs;
    uint depth; // in steps
    uint pitch;
};

// Factors that are copied by place: [place, block, output] of the codes of a matrix.
__device__ __forceinline__ void copy_codes(uint to, const TensorMap &map, int place, int block, int output, uint barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(to), "l"(&map), "r"(place), "r"(block), "r"(output), "r"(barrier) : "memory");
}

// sums of 64 x 128, 32 numbers deep; they are counted from 0 where they do not go `on`.
__device__ __forceinline__ void multiply_floats(float (&sums)[64], ulong a, ulong b, bool on) {
    asm volatile("{.reg .pred on;\nsetp.ne.b32 on, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " SUMS_64 ", %64, %65, on, 1, 1;}"
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 16), SIXTEEN(sums, 32), SIXTEEN(sums, 48)
                 : "l"(a), "l"(b), "r"(int(on)));
}

__device__ __forceinline__ void store_matrices(uint to, uint a, uint b, uint c, uint d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void await_warpgroup(uint group) {
    asm volatile("bar.sync %0, %1;" :: "r"(1 + group), "n"(WARPGROUP) : "memory");
}

// A tile: rows, and outputs of one matrix, or of two that are gated.
struct Place {
    uint row, matrix;
    uint local; // the first output, of its matrix
    uint count; // of outputs of the matrix
    uint first; // output, of all
};
__device__ __forceinline__ Place place_of(const Fp8Product &p, uint down, uint tile, uint block) {
    const uint across = tile / down * SHARERS + block;
    const uint matrix = GATED || across < p.tiles[0] ? 0 : across < p.tiles[1] ? 1 : 2;
    const uint begins = matrix == 0 ? 0 : p.ends[matrix - 1], tiles = matrix == 0 ? 0 : p.tiles[matrix - 1];
    const uint local = (across - tiles) * OUTPUTS, ends = GATED ? p.outputs : p.ends[matrix];
    return {tile % down * TILE_ROWS, matrix, local, ends > begins ? ends - begins : 0, begins + local};
}
// Which of a tile's 128 columns is which output of which matrix.
struct Column {
    uint matrix, row;
    bool there;
};
__device__ __forceinline__ Column column_of(const Place &place, uint column) {
    const uint row = place.local + (GATED ? column % HALF_TILE : column);
    return {GATED ? column / HALF_TILE : place.matrix, row, row < place.count};
}
__device__ __forceinline__ const unsigned char *row_of(const Fp8Product &p, const Column &column) {
    return p.weights[column.matrix] + ulong(column.row) * (p.depth / 2) * UNIT;
}

// What a column is multiplied by and what is added to it, in shared memory.
struct Columns {
    float scales[TILE_COLUMNS], biases[TILE_COLUMNS];
};
__device__ __forceinline__ void take_column(const Fp8Product &p, const Place &place, uint at, Columns &to) {
    const Column column = column_of(place, at);
    const ELEMENT *bias = p.biases[column.matrix];
    to.scales[at] = !PER_GROUP && column.there ? *(const float *)row_of(p, column) : 1.0f;
    to.biases[at] = column.there && bias ? widen(bias[column.row]) : 0.0f;
}

// The scales of 128 inputs of rows `row` and `row + 8` of every half, and of both halves of the columns.
struct Scales {
    float rows[2 * HALVES], columns[2];
};
__device__ __forceinline__ Scales scales_of(const Fp8Product &p, const Place &place, uint row, uint step) {
    Scales out;
    #pragma unroll
    for (int i = 0; i < 2 * HALVES; i++) {
        const uint at = row + i / 2 * 64 + i % 2 * 8;
        out.rows[i] = at < p.rows ? p.scales[ulong(step) * p.pitch + at] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const Column column = column_of(place, i * HALF_TILE);
        out.columns[i] = column.there ? *(const float *)(row_of(p, column) + step / 2 * UNIT + step % 2 * 8) : 0.0f;
    }
    return out;
}

__device__ __forceinline__ float outcome(float sum, float up, float added) {
    float y = activation<ELEMENT>(sum, ACTIVATION);
    if (GATED) { y *= up; }
    return y + added;
}

#if SPLITS == 1
// A warp's 16 x 128 sums: scaled, and stored 128 bytes of a row at a time.
__device__ __forceinline__ void finish(
    const Fp8Product &p, const Place &place, const float (&sums)[64], const Columns &columns, ELEMENT *own, uint row
) {
    const uint lane = threadIdx.x % 32;
    float scales[2];
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint at = row + lane / 4 + 8 * i;
        scales[i] = PER_GROUP ? 1.0f : at < p.rows ? p.scales[at] : 0.0f;
    }
    #pragma unroll
    for (int half = 0; half < OUTPUTS / 64; half++) {
        __syncwarp();
        #pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            uint words[4];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int block = half * 8 + pair * 2 + i / 2;
                const uint column = block * 8 + lane % 4 * 2, at = row + lane / 4 + i % 2 * 8;
                uint residuals = 0;
                if (p.residual && at < p.rows && place.local + column < place.count) {
                    residuals = *(const uint *)(p.residual + ulong(at) * p.outputs + place.first + column);
                }
                float results[2];
                #pragma unroll
                for (int side = 0; side < 2; side++) {
                    const uint of = column + side, other = of + HALF_TILE;
                    const int element = block * 4 + i % 2 * 2 + side;
                    const float sum = fmaf(sums[element] * scales[i % 2], columns.scales[of], columns.biases[of]);
                    const float up = GATED ? fmaf(sums[(element + 32) % 64] * scales[i % 2], columns.scales[other % TILE_COLUMNS], columns.biases[other % TILE_COLUMNS]) : 0.0f;
                    const float added = widen(ELEMENT{(unsigned short)(side ? residuals >> 16 : residuals & 0xffffu)});
                    results[side] = outcome(sum, up, added);
                }
                words[i] = pack(results[0], results[1], ELEMENT());
            }
            store_matrices(shared_address(own + lane % 16 * PITCH + pair * 16 + lane / 16 * 8), words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint at = row + i * 4 + lane / 8, column = half * 64 + lane % 8 * 8;
            const uint4 words = *(const uint4 *)(own + (i * 4 + lane / 8) * PITCH + lane % 8 * 8);
            if (at < p.rows && place.local + column < place.count) {
                *(uint4 *)(p.out + ulong(at) * p.outputs + place.first + column) = words;
            }
        }
    }
}
#else
// Four sums of all blocks of the cluster, in their order.
__device__ __forceinline__ float4 joined(uint at) {
    float4 out = {};
    #pragma unroll
    for (uint block = 0; block < SPLITS; block++) {
        float4 part;
        asm volatile("{.reg .b32 there;\n"
                     "mapa.shared::cluster.u32 there, %4, %5;\n"
                     "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
                     : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w) : "r"(at), "r"(block) : "memory");
        out.x += part.x; out.y += part.y; out.z += part.z; out.w += part.w;
    }
    return out;
}
// Eight results of a row, from what the blocks of the cluster have.
__device__ __forceinline__ void finish_eight(const Fp8Product &p, const Place &place, const Columns &columns, uint sums, uint of, uint column) {
    const uint row = place.row + of;
    const float scale = PER_GROUP ? 1.0f : p.scales[row];
    const ulong at = ulong(row) * p.outputs + place.first + column;
    const Eight added = p.residual ? widen_eight(p.residual + at) : Eight{};
    Eight out;
    #pragma unroll
    for (int four = 0; four < 2; four++) {
        const uint from = column + 4 * four;
        const float4 sum = joined(sums + (of * SUMS_PITCH + from) * 4);
        const float4 up = GATED ? joined(sums + (of * SUMS_PITCH + from + HALF_TILE) * 4) : float4{};
        const float own[4] = {sum.x, sum.y, sum.z, sum.w}, ups[4] = {up.x, up.y, up.z, up.w};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint other = (from + i + HALF_TILE) % TILE_COLUMNS;
            const float whole = fmaf(own[i] * scale, columns.scales[from + i], columns.biases[from + i]);
            const float second = GATED ? fmaf(ups[i] * scale, columns.scales[other], columns.biases[other]) : 0.0f;
            out.v[4 * four + i] = outcome(whole, second, added.v[4 * four + i]);
        }
    }
    narrow_eight(out, p.out + at);
}
#endif

// What a block shares, behind the stages.
struct Shared {
#if SPLITS == 1
    ELEMENT results[CONSUMERS][16 * PITCH];
#endif
    Columns columns[2];
    ulong full[STAGES], empty[STAGES];
};

struct Work {
    uint down, tiles, first, step; // the first tile, and from one to the next
    uint begin, end;               // of the depth
    uint block;                    // among those that share rows
};
__device__ __forceinline__ Work work_of(const Fp8Product &p) {
    const uint down = (p.rows + TILE_ROWS - 1) / TILE_ROWS, across = p.tiles[MATRICES - 1];
    const uint block = CLUSTER > 1 ? block_of_cluster() : 0, split = SPLITS > 1 ? block : 0;
    return {
        down, (across + SHARERS - 1) / SHARERS * down, blockIdx.x / CLUSTER, gridDim.x / CLUSTER,
        p.depth * split / SPLITS, p.depth * (split + 1) / SPLITS, SHARERS > 1 ? block : 0
    };
}

struct Maps {
    const TensorMap *x, *weights[MATRICES];
};

// The codes of a tile's columns; what is beyond the last is zeros.
__device__ __forceinline__ void copy_columns(const Maps &maps, const Place &place, uint step, uint to, uint barrier) {
    #pragma unroll
    for (uint half = 0; half < 2; half++) {
        const TensorMap &map = *maps.weights[GATED ? half : place.matrix];
        const uint output = place.local + (GATED ? 0 : half * HALF_TILE);
        copy_codes(to + half * HALF_BYTES, map, step % 2 * DEPTH, step / 2, output, barrier);
    }
}
__device__ __forceinline__ void copy_rows(const Maps &maps, const Place &place, const Work &work, uint step, uint to, uint barrier) {
#if SHARERS > 1
    const uint part = TILE_ROWS / SHARERS;
    copy_tile_to_all(to + work.block * part * DEPTH, *maps.x, step * DEPTH, place.row + work.block * part, barrier, (1 << SHARERS) - 1);
#else
    copy_tile(to, *maps.x, step * DEPTH, place.row, barrier);
#endif
}

// Copies all steps of all tiles, as their stages become empty. Matrices are there before what comes ahead of this launch has
// ended, rows after it.
__device__ __forceinline__ void bring(const Fp8Product &p, const Maps &maps, const Work &work, uint stages, uint full, uint empty) {
    uint count = 0;
    const uint depth = work.end - work.begin, early = min(uint(STAGES), depth);
    if (work.first < work.tiles) {
        const Place place = place_of(p, work.down, work.first, work.block);
        for (uint i = 0; i < early; i++) {
            expect_bytes(full + 8 * i, STAGE_BYTES);
            copy_columns(maps, place, work.begin + i, stages + i * STAGE_BYTES + ROWS_BYTES, full + 8 * i);
        }
    }
    await_previous();
    for (uint tile = work.first; tile < work.tiles; tile += work.step) {
        const Place place = place_of(p, work.down, tile, work.block);
        for (uint step = work.begin; step < work.end; step++, count++) {
            const uint stage = count % STAGES, to = stages + stage * STAGE_BYTES, barrier = full + 8 * stage;
            if (count >= early) {
                await_phase(empty + 8 * stage, count / STAGES + 1 & 1);
                expect_bytes(barrier, STAGE_BYTES);
                copy_columns(maps, place, step, to + ROWS_BYTES, barrier);
            }
            copy_rows(maps, place, work, step, to, barrier);
        }
    }
}

extern "C" __global__ void
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
__launch_bounds__(3 * WARPGROUP, 1) fp8_product(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap first, const __grid_constant__ TensorMap second,
    const __grid_constant__ TensorMap third, const __grid_constant__ Fp8Product p
) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Shared &own = *(Shared *)(shared + STAGES * STAGE_BYTES);
    const uint stages = shared_address(shared), full = shared_address(own.full), empty = shared_address(own.empty);
    const uint group = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            make_barrier(full + 8 * i, 1);
            make_barrier(empty + 8 * i, CONSUMERS * SHARERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
#if CLUSTER > 1
    await_cluster();
#else
    __syncthreads();
#endif
    let_next_begin();
    const Work work = work_of(p);
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            const Maps maps = {&x, {&first, &second, &third}};
            bring(p, maps, work, stages, full, empty);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const uint thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = thread % 32, member = group - 1;
        Columns &columns = own.columns[member];
        await_previous();
        uint count = 0;
        for (uint tile = work.first; tile < work.tiles; tile += work.step) {
            const Place place = place_of(p, work.down, tile, work.block);
            const uint own_row = member * (TILE_ROWS / 2) + warp * 16;
            await_warpgroup(member);
            take_column(p, place, thread, columns);
            float sums[HALVES][64] = {};
#if PER_GROUP
            Scales next = scales_of(p, place, place.row + own_row + lane / 4, work.begin);
#endif
            for (uint step = work.begin; step < work.end; step++, count++) {
                const uint stage = count % STAGES;
#if PER_GROUP
                const Scales scales = next;
                if (step + 1 < work.end) { next = scales_of(p, place, place.row + own_row + lane / 4, step + 1); }
#endif
                await_phase(full + 8 * stage, count / STAGES & 1);
                const ulong a = factor(stages + stage * STAGE_BYTES + member * (ROWS_BYTES / 2));
                const ulong b = factor(stages + stage * STAGE_BYTES + ROWS_BYTES);
                #pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    float part[64];
                    begin_products();
                    #pragma unroll
                    for (int deep = 0; deep < DEPTH / 32; deep++) {
                        // 32 bytes a step, in units of 16; 64 rows below lie 8,192 bytes on.
                        multiply_floats(part, a + 512 * half + 2 * deep, b + 2 * deep, deep > 0);
                    }
                    end_products();
                    await_products<0>();
                    settle(part);
                    if (half == HALVES - 1 && lane < SHARERS) {
#if SHARERS > 1
                        arrive_in(empty + 8 * stage, lane);
#else
                        arrive_at(empty + 8 * stage);
#endif
                    }
                    #pragma unroll
                    for (int i = 0; i < 64; i++) {
#if PER_GROUP
                        sums[half][i] = fmaf(part[i], scales.rows[2 * half + i / 2 % 2] * scales.columns[i / 32], sums[half][i]);
#else
                        sums[half][i] += part[i];
#endif
                    }
                }
            }
            await_warpgroup(member);
#if SPLITS == 1
            #pragma unroll
            for (int half = 0; half < HALVES; half++) {
                finish(p, place, sums[half], columns, own.results[member * 4 + warp], place.row + own_row + 64 * half);
            }
#else
            // Every stage was read by both, and nothing more is copied: sums take their place.
            asm volatile("bar.sync 3, %0;" :: "n"(2 * WARPGROUP) : "memory");
            float *const parts = (float *)shared;
            #pragma unroll
            for (int half = 0; half < HALVES; half++) {
                #pragma unroll
                for (int i = 0; i < 64; i += 2) {
                    const uint at = own_row + half * 64 + lane / 4 + i / 2 % 2 * 8;
                    *(float2 *)(parts + at * SUMS_PITCH + i / 4 * 8 + lane % 4 * 2) = make_float2(sums[half][i], sums[half][i + 1]);
                }
            }
#endif
        }
    }
#if CLUSTER > 1
    await_cluster();
#endif
#if SPLITS > 1
    if (group > 0) {
        const Place place = place_of(p, work.down, work.first, 0);
        const uint split = block_of_cluster(), each = TILE_ROWS / SPLITS;
        for (uint i = threadIdx.x - WARPGROUP; i < each * (OUTPUTS / 8); i += 2 * WARPGROUP) {
            const uint of = split * each + i / (OUTPUTS / 8), column = i % (OUTPUTS / 8) * 8;
            if (place.row + of < p.rows && place.local + column < place.count) {
                finish_eight(p, place, own.columns[0], stages, of, column);
            }
        }
    }
    // Others may still read this block's sums.
    await_cluster();
#endif
}
