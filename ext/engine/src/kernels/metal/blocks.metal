// Products with matrices of GGUF's quantized blocks, and rows of tables of them. A matrix is [outputs,
// inputs], row after row of whole blocks; nothing of it is expanded but in registers and threadgroup
// memory. Blocks have even sizes, and a matrix starts where its buffer does: two bytes may be read
// at once.
//
// A format is a struct that knows its sizes and how to expand one run: 16 neighbouring elements, which
// have a scale in common in every format. A launcher appends BLOCK_KERNELS for the format it asks for.

struct BlockParameters {
    uint inputs;
    uint outputs;
    uint rows;      // of the input
    uint row_bytes; // of the matrix
    uint flags;
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

// Run number `run` of a row of blocks.
template <typename Block>
static inline void expand_run(device const uchar *row, uint run, thread float *values) {
    const uint runs = Block::ELEMENTS / RUN;
    Block::expand(row + ulong(run / runs) * Block::BYTES, run % runs, values);
}

template <typename T>
static inline void finish(
    device const T *bias, device const T *residual, device T *out, constant BlockParameters &p, uint row, uint output,
    float sum
) {
    const ulong at = ulong(row) * p.outputs + output;
    if (p.flags & HAS_BIAS) {
        sum += float(bias[output]);
    }
    if (p.flags & HAS_RESIDUAL) {
        sum += float(residual[at]);
    }
    out[at] = T(sum);
}

// Few rows: a simdgroup makes one output of up to FEW_ROWS rows, each lane every 32nd run of the
// matrix's row. The grid is (outputs / FEW_SIMDGROUPS, rows / FEW_ROWS).
constant constexpr uint FEW_ROWS = 4;
constant constexpr uint FEW_SIMDGROUPS = 4;

template <typename T, typename Block>
static inline void product_of_few(
    device const T *x, device const uchar *matrix, device const T *bias, device const T *residual, device T *out,
    constant BlockParameters &p, uint2 group, uint simdgroup, uint lane
) {
    const uint output = group.x * FEW_SIMDGROUPS + simdgroup;
    const uint first = group.y * FEW_ROWS;
    if (output >= p.outputs) {
        return;
    }
    const uint rows = min(FEW_ROWS, p.rows - first);
    const bool aligned = p.flags & ALIGNED;
    device const uchar *blocks = matrix + ulong(output) * p.row_bytes;
    float sums[FEW_ROWS] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (uint run = lane; run < p.inputs / RUN; run += 32) {
        float values[RUN];
        expand_run<Block>(blocks, run, values);
        for (uint r = 0; r < rows; r++) {
            device const T *from = x + ulong(first + r) * p.inputs + RUN * run;
            for (uint i = 0; i < RUN; i += 4) {
                const float4 v = load4(from + i, aligned);
                sums[r] += total(v * four(values[i], values[i + 1], values[i + 2], values[i + 3]));
            }
        }
    }
    for (uint r = 0; r < rows; r++) {
        const float sum = simd_sum(sums[r]);
        if (lane == 0) {
            finish<T>(bias, residual, out, p, first + r, output, sum);
        }
    }
}

// Many rows: a threadgroup of four simdgroups makes TILE_ROWS rows of TILE_OUTPUTS outputs. In each
// step a lane expands one run, so that TILE_INPUTS inputs of the matrix lie in threadgroup memory,
// transposed, beside those of x; a simdgroup multiplies all rows with a quarter of the outputs. The
// grid is (outputs / TILE_OUTPUTS, rows / TILE_ROWS).
constant constexpr uint TILE_ROWS = 32;
constant constexpr uint TILE_OUTPUTS = 64;
constant constexpr uint TILE_INPUTS = 32;
constant constexpr uint TILE_LANES = 128;

template <typename T>
static inline void load_rows(
    device const T *x, threadgroup float *tile, constant BlockParameters &p, uint first, uint start, uint index
) {
    // Four lanes to a row, eight elements each.
    const uint row = index / 4;
    const uint column = 8 * (index % 4);
    threadgroup float *to = tile + TILE_INPUTS * row + column;
    if (first + row >= p.rows) {
        for (uint i = 0; i < 8; i++) {
            to[i] = 0.0f;
        }
        return;
    }
    device const T *from = x + ulong(first + row) * p.inputs + start + column;
    const bool aligned = p.flags & ALIGNED;
    for (uint i = 0; i < 8; i += 4) {
        const float4 v = load4(from + i, aligned);
        to[i] = v.x;
        to[i + 1] = v.y;
        to[i + 2] = v.z;
        to[i + 3] = v.w;
    }
}

template <typename T, typename Block>
static inline void product_of_many(
    device const T *x, device const uchar *matrix, device const T *bias, device const T *residual, device T *out,
    constant BlockParameters &p, threadgroup float *weights, threadgroup float *inputs, uint2 group, uint index,
    uint simdgroup
) {
    const uint first_row = group.y * TILE_ROWS;
    const uint first_output = group.x * TILE_OUTPUTS;
    const uint column = index % TILE_OUTPUTS;
    const uint part = index / TILE_OUTPUTS;
    // Outputs beyond the last are computed as it is, and dropped.
    device const uchar *blocks = matrix + ulong(min(first_output + column, p.outputs - 1)) * p.row_bytes;
    simdgroup_float8x8 sums[4][2];
    for (uint i = 0; i < 4; i++) {
        for (uint j = 0; j < 2; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint start = 0; start < p.inputs; start += TILE_INPUTS) {
        float values[RUN];
        expand_run<Block>(blocks, start / RUN + part, values);
        // The tiles of the step before are no longer read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < RUN; i++) {
            weights[(RUN * part + i) * TILE_OUTPUTS + column] = values[i];
        }
        load_rows<T>(x, inputs, p, first_row, start, index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE_INPUTS; k += 8) {
            simdgroup_float8x8 right[2];
            for (uint j = 0; j < 2; j++) {
                simdgroup_load(right[j], weights + k * TILE_OUTPUTS + 16 * simdgroup + 8 * j, TILE_OUTPUTS);
            }
            for (uint i = 0; i < 4; i++) {
                simdgroup_float8x8 left;
                simdgroup_load(left, inputs + 8 * i * TILE_INPUTS + k, TILE_INPUTS);
                simdgroup_multiply_accumulate(sums[i][0], left, right[0], sums[i][0]);
                simdgroup_multiply_accumulate(sums[i][1], left, right[1], sums[i][1]);
            }
        }
    }
    // The results take the place of the weights, which no other simdgroup reads in these columns.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 4; i++) {
        for (uint j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], weights + 8 * i * TILE_OUTPUTS + 16 * simdgroup + 8 * j, TILE_OUTPUTS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint at = index; at < TILE_ROWS * TILE_OUTPUTS; at += TILE_LANES) {
        const uint row = first_row + at / TILE_OUTPUTS;
        const uint output = first_output + at % TILE_OUTPUTS;
        if (row < p.rows && output < p.outputs) {
            finish<T>(bias, residual, out, p, row, output, float(weights[at]));
        }
    }
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

#define BLOCK_KERNELS_OF(FORMAT, BLOCK, SUFFIX, T)                                          \
kernel void product_of_few_##FORMAT##_##SUFFIX(                                             \
    device const T *x           [[buffer(0)]],                                              \
    device const uchar *matrix  [[buffer(1)]],                                              \
    device const T *bias        [[buffer(2)]],                                              \
    device const T *residual    [[buffer(3)]],                                              \
    device T *out               [[buffer(4)]],                                              \
    constant BlockParameters &p [[buffer(5)]],                                              \
    uint2 group                 [[threadgroup_position_in_grid]],                           \
    uint simdgroup              [[simdgroup_index_in_threadgroup]],                         \
    uint lane                   [[thread_index_in_simdgroup]]                               \
) {                                                                                         \
    product_of_few<T, BLOCK>(x, matrix, bias, residual, out, p, group, simdgroup, lane);    \
}                                                                                           \
kernel void product_of_many_##FORMAT##_##SUFFIX(                                            \
    device const T *x           [[buffer(0)]],                                              \
    device const uchar *matrix  [[buffer(1)]],                                              \
    device const T *bias        [[buffer(2)]],                                              \
    device const T *residual    [[buffer(3)]],                                              \
    device T *out               [[buffer(4)]],                                              \
    constant BlockParameters &p [[buffer(5)]],                                              \
    uint2 group                 [[threadgroup_position_in_grid]],                           \
    uint index                  [[thread_index_in_threadgroup]],                            \
    uint simdgroup              [[simdgroup_index_in_threadgroup]]                          \
) {                                                                                         \
    threadgroup float weights[TILE_INPUTS * TILE_OUTPUTS];                                  \
    threadgroup float inputs[TILE_ROWS * TILE_INPUTS];                                      \
    product_of_many<T, BLOCK>(                                                              \
        x, matrix, bias, residual, out, p, weights, inputs, group, index, simdgroup);       \
}                                                                                           \
kernel void table_rows_##FORMAT##_##SUFFIX(                                                 \
    device const uchar *table   [[buffer(0)]],                                              \
    device const uint *numbers  [[buffer(1)]],                                              \
    device T *out               [[buffer(2)]],                                              \
    constant BlockParameters &p [[buffer(3)]],                                              \
    uint2 at                    [[thread_position_in_grid]]                                 \
) {                                                                                         \
    table_row<T, BLOCK>(table, numbers, out, p, at);                                        \
}

#if defined(__HAVE_BFLOAT__)
#define BLOCK_KERNELS(FORMAT, BLOCK)                                                        \
BLOCK_KERNELS_OF(FORMAT, BLOCK, f32, float)                                                 \
BLOCK_KERNELS_OF(FORMAT, BLOCK, f16, half)                                                  \
BLOCK_KERNELS_OF(FORMAT, BLOCK, bf16, bfloat)
#else
#define BLOCK_KERNELS(FORMAT, BLOCK)                                                        \
BLOCK_KERNELS_OF(FORMAT, BLOCK, f32, float)                                                 \
BLOCK_KERNELS_OF(FORMAT, BLOCK, f16, half)
#endif
