// What `stream_of_blocks` does with groups: a lane has a whole one of each of its two outputs.
#if GROUPED

#define GROUP_BYTES (BLOCK_BYTES / 4)
// Words that are read at once, as codes are aligned.
#define TOGETHER (SCALES_FIRST ? 4 : SCALES == 4 ? 2 : GROUP_BYTES % 16 == 0 ? 4 : GROUP_BYTES % 8 == 0 ? 2 : 1)
// Sums of a run that take turns, and don't wait for each other.
#define TURNS (RUNS == 1 ? 2 : 1)
// Words of codes of a run.
#define RUN_WORDS (RUN * (EIGHT_BITS ? 8 : 4) / 32)

// Numbers of two halves, in each the sign of a byte and what follows it, are what the bytes stand for once multiplied by
// this: bf16 has more bits of exponent than e4m3 and e5m2, and f16 more than e4m3.
__device__ __forceinline__ uint raised(uint v, bf16) {
    uint out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(v), "r"(KIND == FP8 ? 0x7b807b80u : 0x77807780u), "r"(0x80008000u));
    return out;
}

// Bytes `first` and `second` of a word as the upper halves of two halves.
template <int first, int second>
__device__ __forceinline__ uint upper_bytes(uint word) {
    return __byte_perm(word, 0, 0x0404 | first << 4 | second << 12);
}

// Two floats of eight bits.
template <int first, int second>
__device__ __forceinline__ uint floats_of(uint word, f16) {
#if KIND == FP8
#if __CUDA_ARCH__ >= 890
    uint out;
    const unsigned short both = (unsigned short)__byte_perm(word, 0, 0x4400 | first | second << 4);
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(both));
    return out;
#else
    const uint v = upper_bytes<first, second>(word);
    return (v >> 1 & 0x3f803f80u) | (v & 0x80008000u);
#endif
#else
    return upper_bytes<first, second>(word);
#endif
}
template <int first, int second>
__device__ __forceinline__ uint floats_of(uint word, bf16) {
    const uint v = upper_bytes<first, second>(word);
    const uint small = KIND == FP8 ? v >> 4 & 0x07f007f0u : v >> 3 & 0x0fe00fe0u;
    return raised(small | (v & 0x80008000u), bf16());
}
// What is left to multiply floats by.
__device__ __forceinline__ float factor(f16) {
#if KIND == FP8 && __CUDA_ARCH__ < 890
    return 256.0f;
#else
    return 1.0f;
#endif
}
__device__ __forceinline__ float factor(bf16) { return 1.0f; }

// Two codes of eight bits. In bf16 there is no room for them in the mantissa of a power: 128 less than they are is exact.
template <int first, int second>
__device__ __forceinline__ uint bytes_of(uint word, f16) { return __byte_perm(word, power_bits(f16()), 0x5050 | first | second << 8); }
template <int first, int second>
__device__ __forceinline__ uint bytes_of(uint word, bf16) {
    const uint both = __byte_perm(word, 0, 0x4040 | first | second << 8);
    uint out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(out) : "r"((both & 0x00800080u) ^ 0x43804380u), "r"(0xbf80bf80u), "r"((both & 0x007f007fu) | 0x43004300u));
    return out;
}
__device__ __forceinline__ float excess_of_bytes(f16) { return 1024.0f; }
__device__ __forceinline__ float excess_of_bytes(bf16) { return -128.0f; }

__device__ __forceinline__ float excess() {
    return !ABOVE_MINIMUM ? 0.0f : EIGHT_BITS ? excess_of_bytes(ELEMENT()) : power(ELEMENT());
}

// Four neighbours of a group: two, and the two that x has in its other word.
__device__ __forceinline__ uint2 four_of(const Operands &from, const uint (&words)[RUN_WORDS], int at) {
#if LOOKED_UP
    const uint word = words[at / 2] >> (at % 2 * 16);
    return make_uint2(from.pairs[(word & 255u) * 32], from.pairs[(word >> 8 & 255u) * 32]);
#elif FLOATS
    return make_uint2(floats_of<0, 2>(words[at], ELEMENT()), floats_of<1, 3>(words[at], ELEMENT()));
#elif EIGHT_BITS
    return make_uint2(bytes_of<0, 2>(words[at], ELEMENT()), bytes_of<1, 3>(words[at], ELEMENT()));
#else
    const uint word = words[at / 2], kind = power_bits(ELEMENT()), even = word & 0x0f0f0f0fu, odd = word >> 4 & 0x0f0f0f0fu;
    const uint places = at % 2 ? 0x7352 : 0x7150;
    return make_uint2(__byte_perm(even, kind, places), __byte_perm(odd, kind, places));
#endif
}

__device__ __forceinline__ void read_words(const uchar *from, uint (&words)[RUN_WORDS]) {
    #pragma unroll
    for (int i = 0; i < RUN_WORDS; i += TOGETHER) {
        if (TOGETHER == 4) {
            *(uint4 *)(words + i) = *(const uint4 *)(from + 4 * i);
        } else if (TOGETHER == 2) {
            *(uint2 *)(words + i) = *(const uint2 *)(from + 4 * i);
        } else {
            words[i] = *(const uint *)(from + 4 * i);
        }
    }
}

// A lane's codes, and where the numbers of its group are. With the scales first codes of the first and third group, and of
// the second and fourth, lie in the same banks: lanes of the latter of each read their parts of 16 in another order.
struct Group {
    const uchar *codes;
    const float *numbers;
};
__device__ __forceinline__ Group group_of(const uchar *row, uint member) {
#if SCALES_FIRST
    return {row + 16 + member * 64, (const float *)row + member};
#else
    const uchar *block = row + member * GROUP_BYTES;
    return {block + HEADER, (const float *)block};
#endif
}
__device__ __forceinline__ uint exchanged(uint part, uint member) { return SCALES_FIRST ? part ^ (member / 2) : part; }

#if SCALES_FIRST
__device__ __forceinline__ void read_parts(const uchar *from, uint member, uint (&words)[RUN_WORDS]) {
    #pragma unroll
    for (int part = 0; part < RUN_WORDS / 4; part++) { *(uint4 *)(words + 4 * part) = *(const uint4 *)(from + 16 * exchanged(part, member)); }
}
#endif

__device__ __forceinline__ void add_block(const Operands &from, uint member, float (&totals)[2][ROWS]) {
    const Group own[2] = {group_of(from.rows[0], member), group_of(from.rows[1], member)};
    #pragma unroll
    for (int run = 0; run < RUNS; run++) {
        uint words[2][RUN_WORDS];
        #pragma unroll
        for (int side = 0; side < 2; side++) {
#if SCALES_FIRST
            read_parts(own[side].codes, member, words[side]);
#else
            read_words(own[side].codes + 4 * RUN_WORDS * run, words[side]);
#endif
        }
        Tile products[TURNS] = {};
        if (ABOVE_MINIMUM) { products[0] = begin_run(from, run); }
        #pragma unroll
        for (int at = 0; at < RUN / 4; at++) {
            const uint4 x = from.x[run * (RUN / 8) + exchanged(at / 4, member) * 2 + at / 2 % 2];
            const uint2 first = four_of(from, words[0], at), second = four_of(from, words[1], at);
            const uint a[4] = {first.x, second.x, first.y, second.y};
            multiply(products[at / 2 % TURNS], a, at % 2 ? make_uint2(x.z, x.w) : make_uint2(x.x, x.y), ELEMENT());
        }
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            const float *numbers = own[side].numbers;
            const float scale = FLOATS ? numbers[run] * factor(ELEMENT()) : numbers[run];
            #pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float product = products[0].v[2 * side + row];
                if (TURNS == 2) { product += products[TURNS - 1].v[2 * side + row]; }
                totals[side][row] = fmaf(scale, product, totals[side][row]);
                if (ABOVE_MINIMUM) {
                    totals[side][row] = fmaf(numbers[SCALES + run], from.sums[row][run], totals[side][row]);
                }
            }
        }
    }
}
#endif
