// How blocks of quantized weights, GGUF's and others, are unpacked. KIND (in the order of `BlockType::every`), BLOCK_BYTES and
// BLOCK_ELEMENTS are defined at run time.
//
// A lane takes 32 elements of a row at a time, a small block, half a block of 64 or an eighth of a large one: two runs
// of 16 neighbours, which have a scale and a minimum each.
//
// With SCALES_FIRST four blocks of 64 lie as one: their scales, then all codes, which tensor maps reach.

#define Q4_0 0
#define Q4_1 1
#define Q5_0 2
#define Q5_1 3
#define Q8_0 4
#define Q8_1 5
#define Q2_K 6
#define Q3_K 7
#define Q4_K 8
#define Q5_K 9
#define Q6_K 10
#define Q8_K 11
#define IQ4_NL 12
#define IQ4_XS 13

#define RUN 16
#define PART 32

// scale * code + minimum
struct Run {
    float codes[RUN];
    float scale;
    float minimum;
    uint first; // among 256 elements, of eight blocks where these are small
};

__device__ __forceinline__ float half_of(uint bits) { return widen(f16{(unsigned short)bits}); }
__device__ __forceinline__ float half_at(const uchar *from) { return half_of(*(const unsigned short *)from); }
__device__ __forceinline__ uint byte_of(uint word, int i) { return word >> (8 * i) & 255u; }

// 16 neighbouring bytes, aligned as blocks are.
struct Sixteen {
    uint words[4];
};
__device__ __forceinline__ Sixteen sixteen_bytes(const uchar *from) {
    Sixteen out;
#if BLOCK_BYTES % 16 == 0 || SCALES_FIRST
    const uint4 all = *(const uint4 *)from;
    out.words[0] = all.x; out.words[1] = all.y; out.words[2] = all.z; out.words[3] = all.w;
#else
    #pragma unroll
    for (int i = 0; i < 4; i++) {
#if BLOCK_BYTES % 4 == 0
        out.words[i] = ((const uint *)from)[i];
#else
        out.words[i] = uint(((const unsigned short *)from)[2 * i]) | uint(((const unsigned short *)from)[2 * i + 1]) << 16;
#endif
    }
#endif
    return out;
}

// Four bytes as numbers, less what they are too large by: set into the mantissa of a power of two, since tensor units wait
// for conversions of integers.
__device__ __forceinline__ void numbers_of(uint bytes, float offset, float *to) {
    #pragma unroll
    for (int i = 0; i < 4; i++) { to[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540 + i)) - (8388608.0f + offset); }
}

__constant__ float LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

__device__ __forceinline__ void signed_codes(const uchar *from, Run &run) {
    const Sixteen bytes = sixteen_bytes(from);
    #pragma unroll
    for (int i = 0; i < RUN; i += 4) { numbers_of(bytes.words[i / 4] ^ 0x80808080u, 128.0f, run.codes + i); }
}

// The bits of each byte from `shift` on that `mask` keeps, and those of another above them.
__device__ __forceinline__ void bit_codes(
    const Sixteen &low, uint shift, uint mask, const Sixteen &high, uint high_shift, uint high_mask, uint bits, float offset, Run &run
) {
    #pragma unroll
    for (int i = 0; i < RUN; i += 4) {
        const uint codes = low.words[i / 4] >> shift & mask * 0x01010101u;
        const uint above = high.words[i / 4] >> high_shift & high_mask * 0x01010101u;
        numbers_of(codes | above << bits, offset, run.codes + i);
    }
}

#if BLOCK_ELEMENTS == 32
// Where the codes begin, after the scale, the minimum and the fifth bits.
#define CODES (KIND == Q8_0 || KIND == Q4_0 || KIND == IQ4_NL ? 2 : KIND == Q5_0 ? 6 : KIND == Q5_1 ? 8 : 4)

__device__ __forceinline__ void take(const uchar *group, uint part, Run (&runs)[2]) {
    const uchar *block = group + part * BLOCK_BYTES;
    const float scale = half_at(block), minimum = KIND == Q4_1 || KIND == Q5_1 ? half_at(block + 2) : 0.0f;
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        runs[run].scale = scale;
        runs[run].minimum = minimum;
        runs[run].first = part * PART + run * RUN;
    }
#if KIND == Q8_0 || KIND == Q8_1
    signed_codes(block + CODES, runs[0]);
    signed_codes(block + CODES + RUN, runs[1]);
#else
    const Sixteen codes = sixteen_bytes(block + CODES);
    uint fifths = 0;
#if KIND == Q5_0 || KIND == Q5_1
    const unsigned short *halves = (const unsigned short *)(block + CODES - 4);
    fifths = uint(halves[0]) | uint(halves[1]) << 16;
#endif
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        #pragma unroll
        for (int i = 0; i < RUN; i += 4) {
            uint four = codes.words[i / 4] >> (4 * run) & 0x0f0f0f0fu;
#if KIND == IQ4_NL
            #pragma unroll
            for (int j = 0; j < 4; j++) { runs[run].codes[i + j] = LEVELS[byte_of(four, j)]; }
#else
            // A bit for each of the four, put above the others of its byte.
            four |= (fifths >> (RUN * run + i) & 15u) * 0x00204081u << 4 & 0x10101010u;
            numbers_of(four, KIND == Q4_0 ? 8.0f : KIND == Q5_0 ? 16.0f : 0.0f, runs[run].codes + i);
#endif
        }
    }
#endif
}
#elif BLOCK_ELEMENTS == 64
#if LOOKED_UP
// Every lane of a warp has the levels in a bank of its own.
__device__ __forceinline__ float *levels_of_lanes() {
    __shared__ float levels[16 * 32];
    return levels;
}
#endif

__device__ __forceinline__ float rounded(float v) {
#if KIND == NF4_BF16 || KIND == FP4_BF16
    bf16 out;
    narrow(v, &out);
    return widen(out);
#elif KIND == NF4_F16 || KIND == FP4_F16
    f16 out;
    narrow(v, &out);
    return widen(out);
#else
    return v;
#endif
}
#define ROUNDED (KIND == NF4_BF16 || KIND == FP4_BF16 || KIND == NF4_F16 || KIND == FP4_F16)

#if FLOATS
// Two floats in two bytes, as halves.
__device__ __forceinline__ uint halves_of(uint bytes) {
#if KIND == FP8_E5M2
    return (bytes & 255u) << 8 | (bytes & 0xff00u) << 16;
#else
    uint out;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"((unsigned short)bytes));
#else
    // Their bits are those of a 256th of them, which is taken back by 256 in both halves.
    const uint apart = (bytes & 255u) | (bytes & 0xff00u) << 8;
    const uint small = (apart & 0x00800080u) << 8 | (apart & 0x007f007fu) << 7;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(small), "r"(0x5c005c00u));
#endif
    return out;
#endif
}
#endif

__device__ __forceinline__ void take(const uchar *group, uint part, Run (&runs)[2]) {
    const uint half = part % 2;
#if SCALES_FIRST
    const uchar *block = group + part / 2 * 4, *codes_from = group + 16 + part / 2 * 64;
#else
    const uchar *block = group + part / 2 * BLOCK_BYTES, *codes_from = block + HEADER;
#endif
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        runs[run].first = part * PART + run * RUN;
        const float *numbers = (const float *)block + (SCALES == 4 ? 2 * half + run : SCALES == 2 ? half : 0);
        runs[run].scale = numbers[0];
        runs[run].minimum = ABOVE_MINIMUM ? numbers[SCALES] : 0.0f;
    }
#if EIGHT_BITS
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        const Sixteen bytes = sixteen_bytes(codes_from + half * PART + run * RUN);
        #pragma unroll
        for (int i = 0; i < RUN; i += 4) {
            const uint four = bytes.words[i / 4];
#if FLOATS
            const uint low = halves_of(four & 0xffffu), high = halves_of(four >> 16);
            runs[run].codes[i] = half_of(low & 0xffffu);
            runs[run].codes[i + 1] = half_of(low >> 16);
            runs[run].codes[i + 2] = half_of(high & 0xffffu);
            runs[run].codes[i + 3] = half_of(high >> 16);
#else
            numbers_of(four, 0.0f, runs[run].codes + i);
#endif
        }
    }
#else
    const Sixteen codes = sixteen_bytes(codes_from + half * RUN);
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        #pragma unroll
        for (int i = 0; i < RUN; i += 8) {
            const uint eight = codes.words[2 * run + i / 8];
#if LOOKED_UP
            #pragma unroll
            for (int j = 0; j < 8; j++) {
                const float level = levels_of_lanes()[(eight >> (4 * j) & 15u) * 32 + threadIdx.x % 32];
                runs[run].codes[i + j] = ROUNDED ? rounded(runs[run].scale * level) : level;
            }
#else
            float even[4], odd[4];
            numbers_of(eight & 0x0f0f0f0fu, 0.0f, even);
            numbers_of(eight >> 4 & 0x0f0f0f0fu, 0.0f, odd);
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                runs[run].codes[i + 2 * j] = even[j];
                runs[run].codes[i + 2 * j + 1] = odd[j];
            }
#endif
        }
        if (ROUNDED) { runs[run].scale = 1.0f; }
    }
#endif
}
#elif KIND == Q2_K || KIND == Q3_K
// 32 bytes hold 4 x 32 codes, two bits each.
__device__ __forceinline__ void take(const uchar *block, uint part, Run (&runs)[2]) {
    const uint half = part / 4, shift = part % 4;
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        const uint number = 2 * part + run;
        runs[run].first = number * RUN;
#if KIND == Q2_K
        runs[run].scale = half_at(block + 80) * float(block[number] & 15);
        runs[run].minimum = -half_at(block + 82) * float(block[number] >> 4);
        const Sixteen codes = sixteen_bytes(block + 16 + half * 32 + run * RUN);
        bit_codes(codes, 2 * shift, 3, codes, 0, 0, 0, 0.0f, runs[run]);
#else
        const uchar *packed = block + 96;
        const int low = packed[number % 8] >> (4 * (number / 8)) & 15, high = packed[8 + number % 4] >> (2 * (number / 4)) & 3;
        runs[run].scale = half_at(block + 108) * float((low | high << 4) - 32);
        runs[run].minimum = 0.0f;
        const Sixteen codes = sixteen_bytes(block + 32 + half * 32 + run * RUN), thirds = sixteen_bytes(block + run * RUN);
        bit_codes(codes, 2 * shift, 3, thirds, part, 1, 2, 4.0f, runs[run]);
#endif
    }
}
#elif KIND == Q4_K || KIND == Q5_K
// Byte i of the 12 that hold eight scales and eight minimums, after two words of others.
__device__ __forceinline__ uint packed_byte(const Sixteen &header, uint i) {
    const uint at = 4 + i;
    const uint word = at < 8 ? header.words[1] : at < 12 ? header.words[2] : header.words[3];
    return word >> (8 * (at % 4)) & 255u;
}

// 32 bytes hold two groups of 32 codes, the first in their low halves.
__device__ __forceinline__ void take(const uchar *block, uint part, Run (&runs)[2]) {
    const uint pair = part / 2, place = part % 2 * RUN;
    const Sixteen header = sixteen_bytes(block);
    const float whole = half_of(header.words[0] & 0xffffu), lowest = -half_of(header.words[0] >> 16);
    const Sixteen codes = sixteen_bytes(block + (KIND == Q5_K ? 48 : 16) + pair * 32 + place);
#if KIND == Q5_K
    const Sixteen fifths = sixteen_bytes(block + 16 + place);
#endif
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        const uint j = 2 * pair + run;
        const uint scale = j < 4 ? packed_byte(header, j) & 63u
                                 : (packed_byte(header, j + 4) & 15u) | (packed_byte(header, j - 4) >> 6) << 4;
        const uint minimum = j < 4 ? packed_byte(header, j + 4) & 63u
                                   : packed_byte(header, j + 4) >> 4 | (packed_byte(header, j) >> 6) << 4;
        runs[run].scale = whole * float(scale);
        runs[run].minimum = lowest * float(minimum);
        runs[run].first = pair * 64 + run * 32 + place;
#if KIND == Q5_K
        bit_codes(codes, 4 * run, 15, fifths, j, 1, 4, 0.0f, runs[run]);
#else
        bit_codes(codes, 4 * run, 15, codes, 0, 0, 0, 0.0f, runs[run]);
#endif
    }
}
#elif KIND == Q6_K
__device__ __forceinline__ void take(const uchar *block, uint part, Run (&runs)[2]) {
    const uint half = part / 4, column = part / 2 % 2, place = part % 2 * RUN;
    const Sixteen low = sixteen_bytes(block + half * 64 + column * 32 + place);
    const Sixteen high = sixteen_bytes(block + 128 + half * 32 + place);
    const float whole = half_at(block + 208);
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        runs[run].first = half * 128 + run * 64 + column * 32 + place;
        runs[run].scale = whole * float((signed char)block[192 + runs[run].first / RUN]);
        runs[run].minimum = 0.0f;
        bit_codes(low, 4 * run, 15, high, 2 * column + 4 * run, 3, 4, 32.0f, runs[run]);
    }
}
#elif KIND == Q8_K
__device__ __forceinline__ void take(const uchar *block, uint part, Run (&runs)[2]) {
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        runs[run].first = part * PART + run * RUN;
        runs[run].scale = *(const float *)block;
        runs[run].minimum = 0.0f;
        signed_codes(block + 4 + runs[run].first, runs[run]);
    }
}
#elif KIND == IQ4_XS
__device__ __forceinline__ void take(const uchar *block, uint part, Run (&runs)[2]) {
    const uint low = block[4 + part / 2] >> (4 * (part % 2)) & 15, high = *(const unsigned short *)(block + 2) >> (2 * part) & 3;
    const float scale = half_at(block) * float(int(low | high << 4) - 32);
    const Sixteen codes = sixteen_bytes(block + 8 + part * RUN);
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        runs[run].first = part * PART + run * RUN;
        runs[run].scale = scale;
        runs[run].minimum = 0.0f;
        #pragma unroll
        for (int i = 0; i < RUN; i++) { runs[run].codes[i] = LEVELS[codes.words[i / 4] >> (8 * (i % 4) + 4 * run) & 15u]; }
    }
}
#endif

// Before any thread of a thread block takes blocks.
__device__ __forceinline__ void lay_out_levels() {
#if LOOKED_UP
    for (uint i = threadIdx.x; i < 16 * 32; i += blockDim.x) { levels_of_lanes()[i] = FOUR_BITS[i / 32]; }
    __syncthreads();
#endif
}

#define GROUP_BYTES (256 / BLOCK_ELEMENTS * BLOCK_BYTES)
