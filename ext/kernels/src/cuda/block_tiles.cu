// Matrices of quantized blocks times up to 32 rows, on tensor cores. ELEMENT (a half type), KIND, BLOCK_BYTES,
// ROWS and GATED are defined at run time.
//
// A thread block makes 16 outputs; its warps share the blocks of 256 elements that their rows are made of. Codes are
// small integers, which half types hold exactly; scales are applied to the sums of products that share them.

#define WARPS 8
#define OUTPUTS 16
#define TILES ((ROWS + 7) / 8)

// Words of a row in shared memory, so that a warp's lanes read from different banks.
#define PITCH 60

// Whether a warp reads a block while it computes the one before. It costs registers, and with them warps that
// could compute meanwhile: blocks that pass through shared memory gain by it.
#define AHEAD (KIND == Q6_K)
#define RESIDENT (AHEAD || TILES > 1 ? 2 : 3)

// Codes in the low bits of two halves.
template <typename T>
__device__ __forceinline__ uint set(uint codes, T kind) { return codes | power_bits(kind); }

// The same less 32, exactly.
__device__ __forceinline__ uint centered(uint codes, f16 kind) {
    uint out;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(set(codes, kind)), "r"(0xe420e420u));
    return out;
}
__device__ __forceinline__ uint centered(uint codes, bf16 kind) {
    uint out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(set(codes, kind)), "r"(0x3f803f80u), "r"(0xc320c320u));
    return out;
}

__device__ __forceinline__ uint ones(f16) { return 0x3c003c00u; }
__device__ __forceinline__ uint ones(bf16) { return 0x3f803f80u; }

__device__ __forceinline__ float byte_of(uint word, int i) { return float(word >> (8 * i) & 255u); }
__device__ __forceinline__ float signed_byte_of(uint word, int i) { return float((signed char)(word >> (8 * i) & 255u)); }

template <typename T>
__device__ __forceinline__ T streamed(const uchar *from) { return __ldg((const T *)from); }

// What a warp multiplies: the blocks of two outputs for each lane, and the rows of x for each tile.
struct Operands {
    const uchar *weights[2];
    uint odd; // a bit for each output whose row does not begin with a word
    const ELEMENT *x[TILES];
};

#if KIND == Q4_K || KIND == Q5_K
#define CODES (KIND == Q5_K ? 48 : 16)

// What a lane reads of a block of its two outputs.
struct Raw {
    uint4 headers[2];
    uint2 codes[2][4];
#if KIND == Q5_K
    uint2 fifths[2];
#endif
};

__device__ __forceinline__ Raw fetch(const Operands &from, uint block, uint lane) {
    const uint member = lane % 4;
    Raw raw;
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        const uchar *at = from.weights[side] + ulong(block) * BLOCK_BYTES;
        raw.headers[side] = streamed<uint4>(at);
#if KIND == Q5_K
        raw.fifths[side] = streamed<uint2>(at + 16 + 8 * member);
#endif
        #pragma unroll
        for (int pair = 0; pair < 4; pair++) { raw.codes[side][pair] = streamed<uint2>(at + CODES + 32 * pair + 8 * member); }
    }
    return raw;
}

__device__ __forceinline__ void add_block(const Raw &raw, const Operands &from, uint block, uint lane, uint *, Tile (&sums)[TILES]) {
    const uint member = lane % 4;
    // Six bits each: scales and minimums of the first four groups, and of the last.
    uint scales[2][2], minimums[2][2];
    float whole[2], lowest[2];
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        const uint4 h = raw.headers[side];
        whole[side] = half_of(h.x & 0xffffu);
        lowest[side] = half_of(h.x >> 16);
        scales[side][0] = h.y & 0x3f3f3f3fu;
        minimums[side][0] = h.z & 0x3f3f3f3fu;
        scales[side][1] = (h.w & 0x0f0f0f0fu) | (h.y >> 2 & 0x30303030u);
        minimums[side][1] = (h.w >> 4 & 0x0f0f0f0fu) | (h.z >> 2 & 0x30303030u);
    }
    const uint one[4] = {ones(ELEMENT()), ones(ELEMENT()), ones(ELEMENT()), ones(ELEMENT())};
    #pragma unroll
    for (int group = 0; group < 8; group++) {
        float scale[2], minimum[2];
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            scale[side] = whole[side] * byte_of(scales[side][group / 4], group % 4);
            minimum[side] = lowest[side] * byte_of(minimums[side][group / 4], group % 4);
            minimum[side] = fmaf(power(ELEMENT()), scale[side], minimum[side]);
        }
        // Elements 8 member to 8 member + 7 of the group, four at a time.
        uint a[2][4];
        #pragma unroll
        for (int part = 0; part < 2; part++) {
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                const uint2 both = raw.codes[side][group / 2];
                const uint word = (part ? both.y : both.x) >> (group % 2 * 4);
                uint even = word & 0x000f000fu, odd = word >> 8 & 0x000f000fu;
#if KIND == Q5_K
                const uint above = (part ? raw.fifths[side].y : raw.fifths[side].x) >> group;
                even |= (above & 0x00010001u) << 4;
                odd |= (above >> 8 & 0x00010001u) << 4;
#endif
                a[part][side] = set(even, ELEMENT());
                a[part][2 + side] = set(odd, ELEMENT());
            }
        }
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const uint4 x = *(const uint4 *)(from.x[tile] + block * BLOCK + group * 32 + 8 * member);
            const uint2 b[2] = {in_pairs(x.x, x.y), in_pairs(x.z, x.w)};
            Tile products = {}, plain = {};
            #pragma unroll
            for (int part = 0; part < 2; part++) {
                multiply(products, a[part], b[part], ELEMENT());
                multiply(plain, one, b[part], ELEMENT());
            }
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                float &sum = sums[tile].v[i];
                sum = fmaf(scale[i / 2], products.v[i], sum);
                sum = fmaf(-minimum[i / 2], plain.v[i], sum);
            }
        }
    }
}
#elif KIND == Q6_K
// Blocks of 210 bytes begin at any even address: a warp reads the words that those of its outputs lie in, and
// puts them where each begins with a whole one.
#define BLOCK_WORDS 53

struct Raw {
    uint words[OUTPUTS][2];
};

// Where a lane's output begins, for all lanes.
__device__ __forceinline__ ulong start_of(const Operands &from, int output, uint block) {
    const ulong own = ulong(output < 8 ? from.weights[0] : from.weights[1]);
    return __shfl_sync(0xffffffffu, own, output % 8 * 4) + ulong(block) * BLOCK_BYTES;
}

__device__ __forceinline__ Raw fetch(const Operands &from, uint block, uint lane) {
    Raw raw;
    #pragma unroll
    for (int output = 0; output < OUTPUTS; output++) {
        const ulong start = start_of(from, output, block);
        const uint *words = (const uint *)(start & ~3ul);
        // Nothing beyond the block is read: it may be the last. Where it begins with a word, it ends with half of one.
        const uint whole = start & 2 ? BLOCK_WORDS : BLOCK_WORDS - 1;
        raw.words[output][0] = __ldg(words + lane);
        raw.words[output][1] = 0;
        if (lane + 32 < whole) {
            raw.words[output][1] = __ldg(words + lane + 32);
        } else if (lane + 32 == whole && whole < BLOCK_WORDS) {
            raw.words[output][1] = __ldg((const unsigned short *)(words + lane + 32));
        }
    }
    return raw;
}

__device__ __forceinline__ void add_block(const Raw &raw, const Operands &from, uint block, uint lane, uint *shared, Tile (&sums)[TILES]) {
    const uint group = lane / 4, member = lane % 4;
    __syncwarp();
    #pragma unroll
    for (int output = 0; output < OUTPUTS; output++) {
        const uint shift = ((from.odd >> output ^ block * (BLOCK_BYTES / 2)) & 1) * 16;
        const uint first = raw.words[output][0], second = raw.words[output][1];
        const uint after = __shfl_sync(0xffffffffu, lane ? first : second, (lane + 1) % 32);
        const uint end = __shfl_down_sync(0xffffffffu, second, 1);
        shared[output * PITCH + lane] = __funnelshift_r(first, after, shift);
        if (lane + 32 < BLOCK_WORDS) { shared[output * PITCH + lane + 32] = __funnelshift_r(second, end, shift); }
    }
    __syncwarp();
    const uint *const own[2] = {shared + group * PITCH, shared + (group + 8) * PITCH};
    float whole[2];
    #pragma unroll
    for (int side = 0; side < 2; side++) { whole[side] = half_of(own[side][52] & 0xffffu); }
    Tile scaled[TILES] = {};
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        #pragma unroll
        for (int run = 0; run < 2; run++) {
            uint high[2];
            #pragma unroll
            for (int side = 0; side < 2; side++) { high[side] = own[side][32 + half * 8 + run * 4 + member]; }
            #pragma unroll
            for (int column = 0; column < 2; column++) {
                uint low[2];
                #pragma unroll
                for (int side = 0; side < 2; side++) { low[side] = own[side][half * 16 + column * 8 + run * 4 + member]; }
                #pragma unroll
                for (int nibble = 0; nibble < 2; nibble++) {
                    const uint first = half * 128 + nibble * 64 + column * 32 + run * 16;
                    const int above = 2 * column + 4 * nibble;
                    uint a[4];
                    float scale[2];
                    #pragma unroll
                    for (int side = 0; side < 2; side++) {
                        const uint word = low[side] >> (4 * nibble), bits = high[side] >> above;
                        const uint even = (word & 0x000f000fu) | (bits & 0x00030003u) << 4;
                        const uint odd = (word >> 8 & 0x000f000fu) | (bits >> 8 & 0x00030003u) << 4;
                        a[side] = centered(even, ELEMENT());
                        a[2 + side] = centered(odd, ELEMENT());
                        scale[side] = signed_byte_of(own[side][48 + first / 64], first / 16 % 4);
                    }
                    #pragma unroll
                    for (int tile = 0; tile < TILES; tile++) {
                        const uint2 x = *(const uint2 *)(from.x[tile] + block * BLOCK + first + 4 * member);
                        Tile products = {};
                        multiply(products, a, in_pairs(x.x, x.y), ELEMENT());
                        #pragma unroll
                        for (int i = 0; i < 4; i++) { scaled[tile].v[i] = fmaf(scale[i / 2], products.v[i], scaled[tile].v[i]); }
                    }
                }
            }
        }
    }
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) { sums[tile].v[i] = fmaf(whole[i / 2], scaled[tile].v[i], sums[tile].v[i]); }
    }
}
#endif

// The sums of all warps for one output and row.
__device__ __forceinline__ float joined(const float *parts, uint tile, uint output, uint row) {
    const uint lane = output % 8 * 4 + row / 2, place = output / 8 * 2 + row % 2;
    float sum = 0.0f;
    #pragma unroll
    for (int warp = 0; warp < WARPS; warp++) { sum += parts[((warp * TILES + tile) * 4 + place) * 32 + lane]; }
    return sum;
}

template <typename Rows>
__device__ __forceinline__ void multiply_tiles(const Product &p, const Rows &rows) {
    __shared__ uint staged[AHEAD ? WARPS * OUTPUTS * PITCH : 1];
    __shared__ float parts[WARPS * TILES * 4 * 32];
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4;
    const uint first = blockIdx.x * OUTPUTS;
    const ulong row_bytes = ulong(p.inputs / BLOCK) * BLOCK_BYTES;
    Operands from;
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        // Rows beyond the last repeat it, and are not stored.
        from.x[tile] = rows.x(p, min(tile * 8 + group, p.rows - 1));
    }
    float totals[TILES], ups[TILES];
    #pragma unroll
    for (int matrix = 0; matrix <= GATED; matrix++) {
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            // Outputs beyond the last repeat it too.
            const Place place = place_of(p, min(first + group + 8 * side, p.outputs - 1));
            from.weights[side] = p.weights[matrix ? 1 : place.matrix] + place.row * row_bytes;
        }
        // The first lane of every four has the outputs of all of them.
        const uint odd[2] = {__ballot_sync(0xffffffffu, ulong(from.weights[0]) & 2), __ballot_sync(0xffffffffu, ulong(from.weights[1]) & 2)};
        from.odd = 0;
        #pragma unroll
        for (int output = 0; output < OUTPUTS; output++) { from.odd |= (odd[output / 8] >> (output % 8 * 4) & 1) << output; }
        Tile sums[TILES] = {};
        const uint blocks = p.inputs / BLOCK;
        uint *own = staged + (AHEAD ? warp * OUTPUTS * PITCH : 0);
#if AHEAD
        Raw next;
        if (warp < blocks) { next = fetch(from, warp, lane); }
        for (uint block = warp; block < blocks; block += WARPS) {
            const Raw raw = next;
            if (block + WARPS < blocks) { next = fetch(from, block + WARPS, lane); }
            add_block(raw, from, block, lane, own, sums);
        }
#else
        for (uint block = warp; block < blocks; block += WARPS) {
            add_block(fetch(from, block, lane), from, block, lane, own, sums);
        }
#endif
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) { parts[((warp * TILES + tile) * 4 + i) * 32 + lane] = sums[tile].v[i]; }
        }
        __syncthreads();
        // Half a thread block has an output of a tile each.
        if (threadIdx.x < OUTPUTS * 8) {
            #pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const float sum = joined(parts, tile, threadIdx.x % OUTPUTS, threadIdx.x / OUTPUTS);
                if (matrix) { ups[tile] = sum; } else { totals[tile] = sum; }
            }
        }
        __syncthreads();
    }
    const uint output = first + threadIdx.x % OUTPUTS;
    if (threadIdx.x >= OUTPUTS * 8 || output >= p.outputs) {
        return;
    }
    const Place place = place_of(p, output);
    #pragma unroll
    for (uint tile = 0; tile < TILES; tile++) {
        const uint row = tile * 8 + threadIdx.x / OUTPUTS;
        if (row < p.rows) { finish(p, rows.out(row), output, place, totals[tile], GATED ? ups[tile] : 0.0f); }
    }
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) tiles_of_blocks(const __grid_constant__ Product p) {
    let_next_begin();
    await_previous();
    multiply_tiles(p, NextRows());
}

extern "C" __global__ void __launch_bounds__(256, RESIDENT) expert_tiles_of_blocks(
    const __grid_constant__ Product all, const __grid_constant__ Choices choices
) {
    let_next_begin();
    await_previous();
    Product p = all;
    ChosenTile rows;
    if (rows.take(p, choices)) { multiply_tiles(p, rows); }
}
