// Matrices of large quantized blocks, or of groups, four of which count as a block, times one or two rows, as fast as
// they can be read. ELEMENT (a half type), KIND, BLOCK_BYTES, ROWS and GATED are defined at run time. The kernel itself
// is in `stream.cu`, and what it does with groups in `group_streams.cu`.
//
// Every warp copies blocks of 16 rows of the matrix into shared memory ahead of its work; a thread block's warps
// share the blocks of a row, and it goes on to the next rows without a pause. Products are made on tensor cores: a
// lane has 64 elements of a block of two outputs, `group` and `group + 8`. Column 2 member + row of the other factor
// has those elements of x that the lanes of that `member` have, and zeros otherwise, so that each lane gets its own
// sums, to which scales apply. Codes are small integers, which half types hold exactly.

#define WARPS 8
#define STAGES 2
#define TILE 16 // rows of the matrix
#define TAKEN 4 // blocks of x that a warp reads at a time
#define OUTPUTS (GATED ? TILE / 2 : TILE)
// Bytes from one row to the next in shared memory: an odd multiple of 16, for lanes of eight rows to read from
// different banks. Blocks of Q6_K begin at any even address, and are copied from the multiple of 16 before.
#define PITCH (KIND == Q6_K ? 240 : BLOCK_BYTES)
// Elements of a lane that share a scale, and how many such runs it has.
#define GROUPED (KIND >= NF4)
#define RUN (GROUPED ? 64 / SCALES : KIND == Q6_K ? 16 : 32)
#define RUNS (64 / RUN)
// 16 bytes each, of a block of one row and of all; those that a lane copies.
#define PIECES ((PITCH + 15) / 16 - (KIND == Q6_K))
#define ALL_PIECES (TILE * PIECES)
#define OWN_PIECES ((ALL_PIECES + 31) / 32)

// Four codes, a byte each, as numbers: the first and third in one register, the others in another. `excess` is what they
// are too large by, those of Q6_K less 32.
#if GROUPED
__device__ __forceinline__ float excess();
#else
__device__ __forceinline__ float excess() { return power(ELEMENT()) + (KIND == Q6_K ? 32.0f : 0.0f); }
#endif
__device__ __forceinline__ uint first_and_third(uint codes) { return __byte_perm(codes, power_bits(ELEMENT()), 0x7250); }
__device__ __forceinline__ uint second_and_fourth(uint codes) { return __byte_perm(codes, power_bits(ELEMENT()), 0x7351); }

__device__ __forceinline__ void stream_sixteen(void *to, const uchar *from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from) : "memory");
}

// What all warps of a thread block share, after their stages.
struct Shared {
    float parts[WARPS][WARPS][ROWS][TILE]; // of as many tiles in turn
    uint4 zeros[8];
#if LOOKED_UP
    uint pairs[256][32]; // the levels of two codes, for every lane in a bank of its own
#endif
};

__device__ __forceinline__ float sum_of(uint word) {
    return widen(ELEMENT{(unsigned short)word}) + widen(ELEMENT{(unsigned short)(word >> 16)});
}

// Eight neighbours of x in the order in which `codes_of` has their codes, where that is another.
// `fresh`: from where all see it.
__device__ __forceinline__ uint4 words_of(const ELEMENT *from, uint slot, bool fresh) {
#if KIND == Q6_K
    const uint block = slot / 32, member = slot / 8 % 4, run = slot / 2 % 4;
    const uint first = block * BLOCK + member / 2 * 128 + run * 32 + member % 2 * RUN;
    const uint one = 4 * ((slot % 2 * 2 + member) % 4), two = 4 * ((slot % 2 * 2 + 1 + member) % 4), back = block % 2 * 14;
    const auto word = [&](uint at) {
        const ELEMENT *two = from + first + (at + back) % RUN;
        return fresh ? read_shared_word(two) : *(const uint *)two;
    };
    return make_uint4(word(one), word(one + 2), word(two), word(two + 2));
#else
    return fresh ? read_shared(from + slot * 8) : *(const uint4 *)(from + slot * 8);
#endif
}

// Puts x where lanes read it, 128 bytes for each block and member, run after run, and the sums of its runs: the blocks of
// a warp, which nothing else reads.
__device__ __forceinline__ void take_rows(const Product &p, uint4 *x, float *sums, uint warp, uint lane) {
    const uint blocks = p.inputs / BLOCK;
    for (uint row = 0; row < ROWS; row++) {
        // Rows beyond the last repeat it, and are not stored.
        const ELEMENT *from = p.x + ulong(min(row, p.rows - 1)) * p.inputs;
        for (uint first = warp; first < blocks; first += TAKEN * WARPS) {
            uint4 all[TAKEN];
            #pragma unroll
            for (int i = 0; i < TAKEN; i++) {
                const uint block = first + i * WARPS;
                if (block < blocks) { all[i] = words_of(from, block * 32 + lane, p.follows); }
            }
            #pragma unroll
            for (int i = 0; i < TAKEN; i++) {
                const uint block = first + i * WARPS, at = (row * blocks + block) * 32 + lane;
                if (block >= blocks) { break; }
                const uint4 words = all[i];
                // Looked up levels come as neighbours.
                const uint2 low = in_pairs(words.x, words.y), high = in_pairs(words.z, words.w);
                x[at] = LOOKED_UP ? words : make_uint4(low.x, low.y, high.x, high.y);
                float sum = (sum_of(words.x) + sum_of(words.y)) + (sum_of(words.z) + sum_of(words.w));
                #pragma unroll
                for (int step = 1; step < RUN / 8; step *= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, step); }
                if (at % (RUN / 8) == 0) { sums[at / (RUN / 8)] = sum; }
            }
        }
    }
    __syncwarp();
}

// What a lane multiplies x by: where a block of its two outputs lies, and how far from there it begins.
struct Operands {
    const uchar *rows[2];
    uint offsets[2];
    const uint4 *x;       // its block's, or zeros
    const float *sums[ROWS]; // its block's
    bool odd;             // a block with an odd number
    const uint *pairs;    // the lane's
};

// What the products of a run are too large by, for them to begin with.
__device__ __forceinline__ Tile begin_run(const Operands &from, int run) {
    Tile out = {};
    #pragma unroll
    for (int row = 0; row < ROWS; row++) { out.v[row] = out.v[2 + row] = -excess() * from.sums[row][run]; }
    return out;
}

#if KIND == Q4_K || KIND == Q5_K
#define CODES (KIND == Q5_K ? 48 : 16)

// Scales and minimums are six bits each: those of the first four groups, and of the last. The bytes of the result are the
// scales and the minimums of a lane's two runs.
__device__ __forceinline__ uint levels_of(uint4 header, uint member) {
    const bool last = member >= 2;
    const uint low = last ? 0x0f0f0f0fu : 0x3f3f3f3fu, high = last ? 0x30303030u : 0;
    const uint scales = ((last ? header.w : header.y) & low) | (header.y >> 2 & high);
    const uint minimums = ((last ? header.w >> 4 : header.z) & low) | (header.z >> 2 & high);
    return __byte_perm(scales, minimums, member % 2 ? 0x7632 : 0x5410);
}

__device__ __forceinline__ void add_block(const Operands &from, uint member, float (&totals)[2][ROWS]) {
    uint codes[2][8];
#if KIND == Q5_K
    uint fifths[2][8];
#endif
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        #pragma unroll
        for (int part = 0; part < 2; part++) {
            *(uint4 *)(codes[side] + 4 * part) = *(const uint4 *)(from.rows[side] + CODES + 32 * member + 16 * part);
#if KIND == Q5_K
            *(uint4 *)(fifths[side] + 4 * part) = *(const uint4 *)(from.rows[side] + 16 + 16 * part);
#endif
        }
    }
    Tile products[RUNS];
    #pragma unroll
    for (int run = 0; run < RUNS; run++) {
        products[run] = begin_run(from, run);
        #pragma unroll
        for (int word = 0; word < 8; word++) {
            const uint4 x = from.x[run * 4 + word / 2];
            uint a[4];
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                uint four = codes[side][word] >> (4 * run) & 0x0f0f0f0fu;
#if KIND == Q5_K
                const uint bits = fifths[side][word];
                four |= __funnelshift_l(bits, bits, 4 - int(2 * member + run)) & 0x10101010u;
#endif
                a[side] = first_and_third(four);
                a[2 + side] = second_and_fourth(four);
            }
            multiply(products[run], a, word % 2 ? make_uint2(x.z, x.w) : make_uint2(x.x, x.y), ELEMENT());
        }
    }
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        const uint4 header = *(const uint4 *)from.rows[side];
        const uint levels = levels_of(header, member);
        const float whole = half_of(header.x & 0xffffu), lowest = half_of(header.x >> 16);
        #pragma unroll
        for (int run = 0; run < RUNS; run++) {
            const float scale = whole * float(levels >> (8 * run) & 255u), minimum = lowest * float(levels >> (16 + 8 * run) & 255u);
            #pragma unroll
            for (int row = 0; row < ROWS; row++) {
                totals[side][row] = fmaf(scale, products[run].v[2 * side + row], totals[side][row]);
                totals[side][row] = fmaf(-minimum, from.sums[row][run], totals[side][row]);
            }
        }
    }
}
#elif KIND == Q6_K
// 16 bytes of a block that begins with a whole word or half of one. Each member begins with another word, for the
// lanes to read from different banks. Of a block that begins with half a word, the first word is what is left of the
// last and the first half, so that the codes of word i are those of elements 4i - 2 to 4i + 1.
__device__ __forceinline__ void codes_of(const uchar *from, uint member, bool odd, uint (&codes)[4]) {
    const uint end = *(const uint *)(from + 16);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint word = (i + member) % 4;
        codes[i] = __byte_perm(*(const uint *)(from + 4 * word), end, odd && word == 0 ? 0x3254 : 0x3210);
    }
}

__device__ __forceinline__ void add_block(const Operands &from, uint member, float (&totals)[2][ROWS]) {
    uint low[2][2][4], high[2][4];
    const uint half = member / 2, place = member % 2 * RUN;
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        const uchar *words = from.rows[side] + (from.offsets[side] & 12);
        codes_of(words + half * 64 + place, member, from.odd, low[side][0]);
        codes_of(words + half * 64 + 32 + place, member, from.odd, low[side][1]);
        codes_of(words + 128 + half * 32 + place, member, from.odd, high[side]);
    }
    Tile products[RUNS];
    #pragma unroll
    for (int run = 0; run < RUNS; run++) {
        products[run] = begin_run(from, run);
        #pragma unroll
        for (int word = 0; word < 4; word++) {
            const uint4 x = from.x[run * 2 + word / 2];
            uint a[4];
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                const uint bits = high[side][word];
                const uint four = (low[side][run % 2][word] >> (run / 2 * 4) & 0x0f0f0f0fu)
                    | ((run < 2 ? bits << (4 - 2 * run) : bits >> (2 * run - 4)) & 0x30303030u);
                a[side] = first_and_third(four);
                a[2 + side] = second_and_fourth(four);
            }
            multiply(products[run], a, word % 2 ? make_uint2(x.z, x.w) : make_uint2(x.x, x.y), ELEMENT());
        }
    }
    #pragma unroll
    for (int side = 0; side < 2; side++) {
        const uchar *block = from.rows[side] + from.offsets[side];
        const float whole = half_of(*(const unsigned short *)(block + 208));
        float scaled[ROWS] = {};
        #pragma unroll
        for (int run = 0; run < RUNS; run++) {
            const uint both = *(const unsigned short *)(block + 192 + 8 * half + 2 * run);
            const float scale = float((signed char)(both >> (member % 2 * 8)));
            #pragma unroll
            for (int row = 0; row < ROWS; row++) { scaled[row] = fmaf(scale, products[run].v[2 * side + row], scaled[row]); }
        }
        #pragma unroll
        for (int row = 0; row < ROWS; row++) { totals[side][row] = fmaf(whole, scaled[row], totals[side][row]); }
    }
}
#endif
