// Quantized blocks, GGUF's and others. A matrix is [outputs, inputs], row after row of whole blocks; nothing of it is
// expanded but in registers and threadgroup memory. Blocks have even sizes, and a matrix starts where its
// buffer does or at a row: two bytes may be read at once.
//
// A format is a struct that knows its sizes and how to expand one run: 16 neighbouring elements, which
// have a scale in common in every format. Here are the kernels that look up rows of a table; a launcher
// appends TABLE_KERNELS for the format it asks for. Products are in a source of their own, behind this one.

struct BlockParameters {
    uint inputs;
    uint row_bytes;
};

constant constexpr uint RUN = 16;

static inline uint pair_at(device const uchar *bytes, uint at) {
    return *(device const ushort *)(bytes + at);
}

static inline float half_at(device const uchar *bytes, uint at) {
    return float(as_type<half>(ushort(pair_at(bytes, at))));
}

// How codes become numbers: scale * (code - offset) + minimum.
struct Steps {
    float scale;
    float offset;
    float minimum;

    float number(uint code) const { return scale * (float(code) - offset) + minimum; }
};

// Codes that are some bits of each of 16 bytes.
static inline void expand_bits(
    device const uchar *bytes, uint shift, uint mask, thread const Steps &steps, thread float *values
) {
    for (uint i = 0; i < RUN; i += 2) {
        const uint two = pair_at(bytes, i) >> shift;
        values[i] = steps.number(two & mask);
        values[i + 1] = steps.number((two >> 8) & mask);
    }
}

// The upper bits of codes whose lower four or two are elsewhere.
struct UpperBits {
    device const uchar *bytes;
    uint shift;
    uint mask;
    uint place;
};

static inline void expand_split_bits(
    device const uchar *bytes, uint shift, uint mask, thread const UpperBits &upper, thread const Steps &steps,
    thread float *values
) {
    for (uint i = 0; i < RUN; i += 2) {
        const uint low = pair_at(bytes, i) >> shift;
        const uint high = pair_at(upper.bytes, i) >> upper.shift;
        values[i] = steps.number((low & mask) | ((high & upper.mask) << upper.place));
        values[i + 1] = steps.number(((low >> 8) & mask) | (((high >> 8) & upper.mask) << upper.place));
    }
}

// Nibbles whose fifth bits are those of one number, the first element's lowest.
static inline void expand_five_bits(
    device const uchar *bytes, uint shift, uint fifth, thread const Steps &steps, thread float *values
) {
    for (uint i = 0; i < RUN; i += 2) {
        const uint two = pair_at(bytes, i) >> shift;
        values[i] = steps.number((two & 15) | (((fifth >> i) & 1) << 4));
        values[i + 1] = steps.number(((two >> 8) & 15) | (((fifth >> (i + 1)) & 1) << 4));
    }
}

// Signed bytes: the sign bit turned, they count from -128.
static inline void expand_bytes(device const uchar *bytes, float scale, thread float *values) {
    const Steps steps = { scale, 128.0f, 0.0f };
    for (uint i = 0; i < RUN; i += 2) {
        const uint two = pair_at(bytes, i) ^ 0x8080;
        values[i] = steps.number(two & 255);
        values[i + 1] = steps.number(two >> 8);
    }
}

constant float UNEVEN_LEVELS[16] = { -127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                     1.0f, 13.0f, 25.0f, 38.0f, 53.0f, 69.0f, 89.0f, 113.0f };

// Nibbles that stand for levels which are not numbers in a row.
static inline void expand_levels(device const uchar *bytes, uint shift, float scale, thread float *values) {
    for (uint i = 0; i < RUN; i += 2) {
        const uint two = pair_at(bytes, i) >> shift;
        values[i] = scale * UNEVEN_LEVELS[two & 15];
        values[i + 1] = scale * UNEVEN_LEVELS[(two >> 8) & 15];
    }
}

// Blocks of 32, whose 16 bytes hold the codes of the first run in their lower halves, of the second in
// their upper ones.

struct Q4_0 {
    enum : uint { ELEMENTS = 32, BYTES = 18 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { half_at(block, 0), 8.0f, 0.0f };
        expand_bits(block + 2, 4 * run, 15, steps, values);
    }
};

struct Q4_1 {
    enum : uint { ELEMENTS = 32, BYTES = 20 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { half_at(block, 0), 0.0f, half_at(block, 2) };
        expand_bits(block + 4, 4 * run, 15, steps, values);
    }
};

struct Q5_0 {
    enum : uint { ELEMENTS = 32, BYTES = 22 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { half_at(block, 0), 16.0f, 0.0f };
        expand_five_bits(block + 6, 4 * run, pair_at(block, 2 + 2 * run), steps, values);
    }
};

struct Q5_1 {
    enum : uint { ELEMENTS = 32, BYTES = 24 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { half_at(block, 0), 0.0f, half_at(block, 2) };
        expand_five_bits(block + 8, 4 * run, pair_at(block, 4 + 2 * run), steps, values);
    }
};

struct Iq4Nl {
    enum : uint { ELEMENTS = 32, BYTES = 18 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_levels(block + 2, 4 * run, half_at(block, 0), values);
    }
};

struct Q8_0 {
    enum : uint { ELEMENTS = 32, BYTES = 34 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_bytes(block + 2 + RUN * run, half_at(block, 0), values);
    }
};

// Its second number, the sum of a block, serves products of integers alone.
struct Q8_1 {
    enum : uint { ELEMENTS = 32, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_bytes(block + 4 + RUN * run, half_at(block, 0), values);
    }
};

// Blocks of 256.

struct Q8K {
    enum : uint { ELEMENTS = 256, BYTES = 292 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const float scale = as_type<float>(pair_at(block, 0) | (pair_at(block, 2) << 16));
        expand_bytes(block + 4 + RUN * run, scale, values);
    }
};

// Where the two-bit codes of a run are: 32 bytes hold four times 32 of them, one pair of bits each.
static inline uint two_bit_start(uint run) { return 32 * (run / 8) + 16 * (run % 2); }
static inline uint two_bit_shift(uint run) { return run % 8 / 2 * 2; }

struct Q2K {
    enum : uint { ELEMENTS = 256, BYTES = 84 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const uint packed = block[run];
        const Steps steps = { half_at(block, 80) * float(packed & 15), 0.0f, -half_at(block, 82) * float(packed >> 4) };
        expand_bits(block + 16 + two_bit_start(run), two_bit_shift(run), 3, steps, values);
    }
};

struct Q3K {
    enum : uint { ELEMENTS = 256, BYTES = 110 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        device const uchar *packed = block + 96;
        const uint low = (packed[run % 8] >> (4 * (run / 8))) & 15;
        const uint high = (packed[8 + run % 4] >> (2 * (run / 4))) & 3;
        const Steps steps = { half_at(block, 108) * (float(low | (high << 4)) - 32.0f), 4.0f, 0.0f };
        const UpperBits upper = { block + 16 * (run % 2), run / 2, 1, 2 };
        expand_split_bits(block + 32 + two_bit_start(run), two_bit_shift(run), 3, upper, steps, values);
    }
};

// Scale and minimum of a run of Q4_K and Q5_K: eight pairs of six bits share 12 bytes.
static inline void read_six_bit_steps(device const uchar *block, uint run, thread Steps &steps) {
    device const uchar *packed = block + 4;
    const uint j = run / 2;
    uint scale = packed[j] & 63;
    uint minimum = packed[j + 4] & 63;
    if (j >= 4) {
        scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
        minimum = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
    }
    steps.scale = half_at(block, 0) * float(scale);
    steps.offset = 0.0f;
    steps.minimum = -half_at(block, 2) * float(minimum);
}

struct Q4K {
    enum : uint { ELEMENTS = 256, BYTES = 144 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        Steps steps;
        read_six_bit_steps(block, run, steps);
        expand_bits(block + 16 + 32 * (run / 4) + 16 * (run % 2), 4 * (run / 2 % 2), 15, steps, values);
    }
};

struct Q5K {
    enum : uint { ELEMENTS = 256, BYTES = 176 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        Steps steps;
        read_six_bit_steps(block, run, steps);
        const UpperBits upper = { block + 16 + 16 * (run % 2), run / 2, 1, 4 };
        expand_split_bits(
            block + 48 + 32 * (run / 4) + 16 * (run % 2), 4 * (run / 2 % 2), 15, upper, steps, values);
    }
};

// Each half of a block has four groups of 32.
struct Q6K {
    enum : uint { ELEMENTS = 256, BYTES = 210 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const uint group = run / 2 % 4;
        const float level = float(int(block[192 + run] ^ 128) - 128);
        const Steps steps = { half_at(block, 208) * level, 32.0f, 0.0f };
        const UpperBits upper = { block + 128 + 32 * (run / 8) + 16 * (run % 2), 2 * group, 3, 4 };
        device const uchar *lower = block + 64 * (run / 8) + 32 * (group % 2) + 16 * (run % 2);
        expand_split_bits(lower, 4 * (group / 2), 15, upper, steps, values);
    }
};

struct Iq4Xs {
    enum : uint { ELEMENTS = 256, BYTES = 136 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const uint group = run / 2;
        const uint low = (block[4 + group / 2] >> (4 * (group % 2))) & 15;
        const uint high = (pair_at(block, 2) >> (2 * group)) & 3;
        const float scale = half_at(block, 0) * (float(low | (high << 4)) - 32.0f);
        expand_levels(block + 8 + 16 * group, 4 * (run % 2), scale, values);
    }
};

// Blocks of 64 that no file has: scales of f32, as many minimums where the format has them, and codes, of which those of
// four bits share bytes, the first in the lower half. They have whole words.

static inline uint word_at(device const uchar *bytes, uint at) {
    return *(device const uint *)(bytes + at);
}

static inline float float_at(device const uchar *bytes, uint at) {
    return as_type<float>(word_at(bytes, at));
}

// What numbers are rounded to, to the nearest, ties to even.
struct Unrounded {
    static float of(float v) { return v; }
};
struct AsF16 {
    static float of(float v) { return float(half(v)); }
};
struct AsBf16 {
    static float of(float v) {
        const uint bits = as_type<uint>(v);
        return as_type<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
    }
};

constant float NF4_LEVELS[16] = { -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f,
                                  -0.091050036f, 0.0f, 0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f,
                                  0.44070983f, 0.562617f, 0.72295684f, 1.0f };
constant float FP4_LEVELS[16] = { 0.0f, 0.0052083335f, 0.6666667f, 1.0f, 0.33333334f, 0.5f, 0.16666667f, 0.25f,
                                  0.0f, -0.0052083335f, -0.6666667f, -1.0f, -0.33333334f, -0.5f, -0.16666667f, -0.25f };
constant float E2M1_LEVELS[16] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,
                                   0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
constant float IQ2_LEVELS[16] = { 8.0f, 25.0f, 43.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
                                  -8.0f, -25.0f, -43.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };

template <typename Rounding>
static inline void expand_table(
    device const uchar *codes, float scale, constant float *levels, thread float *values
) {
    for (uint i = 0; i < RUN; i += 8) {
        const uint word = word_at(codes, i / 2);
        for (uint j = 0; j < 8; j++) {
            values[i + j] = Rounding::of(scale * levels[(word >> (4 * j)) & 15]);
        }
    }
}

struct Nf4 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<Unrounded>(block + 4 + 8 * run, float_at(block, 0), NF4_LEVELS, values);
    }
};

struct Nf4Bf16 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<AsBf16>(block + 4 + 8 * run, float_at(block, 0), NF4_LEVELS, values);
    }
};

struct Nf4F16 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<AsF16>(block + 4 + 8 * run, float_at(block, 0), NF4_LEVELS, values);
    }
};

struct Fp4 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<Unrounded>(block + 4 + 8 * run, float_at(block, 0), FP4_LEVELS, values);
    }
};

struct Fp4Bf16 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<AsBf16>(block + 4 + 8 * run, float_at(block, 0), FP4_LEVELS, values);
    }
};

struct Fp4F16 {
    enum : uint { ELEMENTS = 64, BYTES = 36 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<AsF16>(block + 4 + 8 * run, float_at(block, 0), FP4_LEVELS, values);
    }
};

// A scale for every run.
struct NvFp4 {
    enum : uint { ELEMENTS = 64, BYTES = 48 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<Unrounded>(block + 16 + 8 * run, float_at(block, 4 * run), E2M1_LEVELS, values);
    }
};

struct Iq2 {
    enum : uint { ELEMENTS = 64, BYTES = 48 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        expand_table<Unrounded>(block + 16 + 8 * run, float_at(block, 4 * run), IQ2_LEVELS, values);
    }
};

// Floats of e4m3: their bits are those of a half that is a 256th of them.
struct Fp8 {
    enum : uint { ELEMENTS = 64, BYTES = 68 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const float scale = 256.0f * float_at(block, 0);
        for (uint i = 0; i < RUN; i += 4) {
            const uint word = word_at(block, 4 + RUN * run + i);
            for (uint j = 0; j < 4; j++) {
                const uint code = word >> (8 * j);
                values[i + j] = scale * float(as_type<half>(ushort(((code & 128) << 8) | ((code & 127) << 7))));
            }
        }
    }
};

// The upper halves of halves.
struct E5m2 {
    enum : uint { ELEMENTS = 64, BYTES = 68 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const float scale = float_at(block, 0);
        for (uint i = 0; i < RUN; i += 4) {
            const uint word = word_at(block, 4 + RUN * run + i);
            for (uint j = 0; j < 4; j++) {
                values[i + j] = scale * float(as_type<half>(ushort(((word >> (8 * j)) & 255) << 8)));
            }
        }
    }
};

static inline void expand_four_bits(device const uchar *codes, thread const Steps &steps, thread float *values) {
    for (uint i = 0; i < RUN; i += 8) {
        const uint word = word_at(codes, i / 2);
        for (uint j = 0; j < 8; j++) {
            values[i + j] = steps.number((word >> (4 * j)) & 15);
        }
    }
}

static inline void expand_eight_bits(device const uchar *codes, thread const Steps &steps, thread float *values) {
    for (uint i = 0; i < RUN; i += 4) {
        const uint word = word_at(codes, i);
        for (uint j = 0; j < 4; j++) {
            values[i + j] = steps.number((word >> (8 * j)) & 255);
        }
    }
}

struct Int4 {
    enum : uint { ELEMENTS = 64, BYTES = 40 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { float_at(block, 0), 0.0f, float_at(block, 4) };
        expand_four_bits(block + 8 + 8 * run, steps, values);
    }
};

struct Int8 {
    enum : uint { ELEMENTS = 64, BYTES = 72 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { float_at(block, 0), 0.0f, float_at(block, 4) };
        expand_eight_bits(block + 8 + RUN * run, steps, values);
    }
};

// A scale and a minimum for every two runs.
struct Int4Of32 {
    enum : uint { ELEMENTS = 64, BYTES = 48 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const uint half_of_block = run / 2;
        const Steps steps = { float_at(block, 4 * half_of_block), 0.0f, float_at(block, 8 + 4 * half_of_block) };
        expand_four_bits(block + 16 + 8 * run, steps, values);
    }
};

struct Int8Of32 {
    enum : uint { ELEMENTS = 64, BYTES = 80 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const uint half_of_block = run / 2;
        const Steps steps = { float_at(block, 4 * half_of_block), 0.0f, float_at(block, 8 + 4 * half_of_block) };
        expand_eight_bits(block + 16 + RUN * run, steps, values);
    }
};

// A scale and a minimum for every run.
struct Int4Of16 {
    enum : uint { ELEMENTS = 64, BYTES = 64 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { float_at(block, 4 * run), 0.0f, float_at(block, 16 + 4 * run) };
        expand_four_bits(block + 32 + 8 * run, steps, values);
    }
};

struct Int8Of16 {
    enum : uint { ELEMENTS = 64, BYTES = 96 };
    static void expand(device const uchar *block, uint run, thread float *values) {
        const Steps steps = { float_at(block, 4 * run), 0.0f, float_at(block, 16 + 4 * run) };
        expand_eight_bits(block + 32 + RUN * run, steps, values);
    }
};

// Run number `run` of a row of blocks.
template <typename Block>
static inline void expand_run(device const uchar *row, uint run, thread float *values) {
    const uint runs = Block::ELEMENTS / RUN;
    Block::expand(row + ulong(run / runs) * Block::BYTES, run % runs, values);
}

// Rows of a table, by number: a lane expands a run. The grid is (runs of a row, rows).
template <typename T, typename Block>
static inline void table_row(
    device const uchar *table, device const uint *numbers, device T *out, constant BlockParameters &p, uint2 at
) {
    if (at.x >= p.inputs / RUN) {
        return;
    }
    float values[RUN];
    expand_run<Block>(table + ulong(numbers[at.y]) * p.row_bytes, at.x, values);
    device T *to = out + ulong(at.y) * p.inputs + RUN * at.x;
    for (uint i = 0; i < RUN; i++) {
        to[i] = T(values[i]);
    }
}

#define TABLE_KERNEL(NAME, BLOCK, T)                                   \
kernel void NAME(                                                      \
    device const uchar *table   [[buffer(0)]],                         \
    device const uint *numbers  [[buffer(1)]],                         \
    device T *out               [[buffer(2)]],                         \
    constant BlockParameters &p [[buffer(3)]],                         \
    uint2 at                    [[thread_position_in_grid]]            \
) {                                                                    \
    table_row<T, BLOCK>(table, numbers, out, p, at);                   \
}

#if defined(__HAVE_BFLOAT__)
#define TABLE_KERNELS(FORMAT, BLOCK)                                   \
TABLE_KERNEL(table_rows_##FORMAT##_f32, BLOCK, float)                  \
TABLE_KERNEL(table_rows_##FORMAT##_f16, BLOCK, half)                   \
TABLE_KERNEL(table_rows_##FORMAT##_bf16, BLOCK, bfloat)
#else
#define TABLE_KERNELS(FORMAT, BLOCK)                                   \
TABLE_KERNEL(table_rows_##FORMAT##_f32, BLOCK, float)                  \
TABLE_KERNEL(table_rows_##FORMAT##_f16, BLOCK, half)
#endif
