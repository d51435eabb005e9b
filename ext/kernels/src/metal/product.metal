// Products of rows with up to three matrices [outputs, inputs], whose outputs stand side by side, and
// what follows: bias, activation, a factor, residual. All is computed in f32 and rounded once.
//
// A launcher puts the sizes of tiles before this, and behind it a type Formats, One or Several of the
// formats above or Dense, and PRODUCT_KERNELS for the type of the inputs. A row of a matrix has whole
// runs, and begins where four elements may be loaded at once.

struct ProductParameters {
    uint inputs;
    uint outputs;    // of the result
    uint rows;
    uint first_end;  // where the outputs of the first and of the second matrix end
    uint second_end;
    uint activation;
    uint flags;
};

// Numbers as a checkpoint stores them.
template <typename W>
struct Dense {
    enum : uint { ELEMENTS = RUN, BYTES = RUN * sizeof(W) };
    static void expand(device const uchar *block, uint, thread float *values) {
        device const W *from = (device const W *)block;
        for (uint i = 0; i < RUN; i += 4) {
            const float4 v = load4(from + i, true);
            values[i] = v.x;
            values[i + 1] = v.y;
            values[i + 2] = v.z;
            values[i + 3] = v.w;
        }
    }
};

template <typename Block>
static inline device const uchar *matrix_row(device const uchar *matrix, uint output, uint inputs) {
    return matrix + ulong(output) * (inputs / Block::ELEMENTS * Block::BYTES);
}

// Matrices of one format.
template <typename Block>
struct One {
    static device const uchar *row(device const uchar *matrix, uint, uint output, uint inputs) {
        return matrix_row<Block>(matrix, output, inputs);
    }
    static void expand(device const uchar *row, uint, uint run, thread float *values) {
        expand_run<Block>(row, run, values);
    }
};

// Matrices that have a format each; whose turn it is, all lanes of a simdgroup agree in a product of few rows.
template <typename First, typename Second, typename Third>
struct Several {
    static device const uchar *row(device const uchar *matrix, uint number, uint output, uint inputs) {
        switch (number) {
            case 0: return matrix_row<First>(matrix, output, inputs);
            case 1: return matrix_row<Second>(matrix, output, inputs);
            default: return matrix_row<Third>(matrix, output, inputs);
        }
    }
    static void expand(device const uchar *row, uint number, uint run, thread float *values) {
        switch (number) {
            case 0: expand_run<First>(row, run, values); break;
            case 1: expand_run<Second>(row, run, values); break;
            default: expand_run<Third>(row, run, values); break;
        }
    }
};

template <typename T>
struct Operands {
    device const T *x;
    device const uchar *matrices[3];
    device const T *biases[3];
    device const T *residual;
    device T *out;
};

// An output's row in its matrix.
struct Place {
    device const uchar *row;
    uint matrix;
    uint output; // of the matrix
};

static inline uint matrix_of(uint output, constant ProductParameters &p) {
    return output < p.first_end ? 0 : (output < p.second_end ? 1 : 2);
}

template <typename T, typename Formats>
static inline void find(
    thread Place &place, uint output, uint matrix, thread const Operands<T> &at, constant ProductParameters &p
) {
    place.matrix = matrix;
    place.output = output - (matrix == 0 ? 0 : (matrix == 1 ? p.first_end : p.second_end));
    place.row = Formats::row(at.matrices[matrix], matrix, place.output, p.inputs);
}

// A matrix's bias is announced by the bit that is `matrix` above HAS_BIAS.
template <typename T>
static inline float biased(
    float sum, uint matrix, uint output, thread const Operands<T> &at, constant ProductParameters &p
) {
    return p.flags & (HAS_BIAS << matrix) ? sum + float(at.biases[matrix][output]) : sum;
}

template <typename T>
static inline void finish(float y, uint row, uint output, thread const Operands<T> &at, constant ProductParameters &p) {
    const ulong to = ulong(row) * p.outputs + output;
    if (p.flags & HAS_RESIDUAL) {
        y += float(at.residual[to]);
    }
    at.out[to] = T(y);
}

// Few rows: a simdgroup makes FEW_OUTPUTS outputs of ROWS rows, each lane every 32nd run of the matrices'
// rows, for all of which it loads its inputs once. With two PARTS an output is activation(gate) * up, and
// gate and up are the first two matrices. The grid is (outputs / FEW_OUTPUTS / FEW_SIMDGROUPS, rows / ROWS).
template <typename T, typename Formats, uint ROWS, uint PARTS>
static inline void product_of_few(
    thread const Operands<T> &at, constant ProductParameters &p, uint2 group, uint simdgroup, uint lane
) {
    const uint first_output = (group.x * FEW_SIMDGROUPS + simdgroup) * FEW_OUTPUTS;
    const uint first_row = group.y * ROWS;
    if (first_output >= p.outputs) {
        return;
    }
    // Outputs and rows beyond the last are computed as it is, and dropped.
    Place places[FEW_OUTPUTS * PARTS];
    float sums[FEW_OUTPUTS * PARTS][ROWS];
    for (uint i = 0; i < FEW_OUTPUTS * PARTS; i++) {
        const uint output = min(first_output + i / PARTS, p.outputs - 1);
        const uint matrix = PARTS == 1 ? matrix_of(output, p) : i % 2;
        find<T, Formats>(places[i], PARTS == 1 ? output : matrix * p.first_end + output, matrix, at, p);
        for (uint r = 0; r < ROWS; r++) {
            sums[i][r] = 0.0f;
        }
    }
    const bool aligned = p.flags & ALIGNED;
    for (uint run = lane; run < p.inputs / RUN; run += 32) {
        float4 inputs[ROWS][RUN / 4];
        for (uint r = 0; r < ROWS; r++) {
            device const T *from = at.x + ulong(min(first_row + r, p.rows - 1)) * p.inputs + RUN * run;
            for (uint i = 0; i < RUN / 4; i++) {
                inputs[r][i] = load4(from + 4 * i, aligned);
            }
        }
        for (uint i = 0; i < FEW_OUTPUTS * PARTS; i++) {
            float values[RUN];
            Formats::expand(places[i].row, places[i].matrix, run, values);
            for (uint r = 0; r < ROWS; r++) {
                for (uint j = 0; j < RUN / 4; j++) {
                    const float4 w = four(values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]);
                    sums[i][r] += total(inputs[r][j] * w);
                }
            }
        }
    }
    for (uint i = 0; i < FEW_OUTPUTS; i++) {
        for (uint r = 0; r < ROWS; r++) {
            float y = simd_sum(sums[i * PARTS][r]);
            const float factor = PARTS == 1 ? 1.0f : simd_sum(sums[i * PARTS + PARTS - 1][r]);
            if (lane == 0 && first_output + i < p.outputs && first_row + r < p.rows) {
                const uint own = places[i * PARTS].output;
                y = activated(biased<T>(y, places[i * PARTS].matrix, own, at, p), p.activation);
                if (PARTS == 2) {
                    y *= biased<T>(factor, 1, own, at, p);
                }
                finish<T>(y, first_row + r, first_output + i, at, p);
            }
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
    device const T *x, threadgroup float *tile, constant ProductParameters &p, uint first, uint start, uint index
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

template <typename T, typename Formats>
static inline void product_of_many(
    thread const Operands<T> &at, constant ProductParameters &p, threadgroup float *weights, threadgroup float *inputs,
    uint2 group, uint index, uint simdgroup
) {
    const uint first_row = group.y * TILE_ROWS;
    const uint first_output = group.x * TILE_OUTPUTS;
    const uint column = index % TILE_OUTPUTS;
    const uint part = index / TILE_OUTPUTS;
    // Outputs beyond the last are computed as it is, and dropped.
    const uint own = min(first_output + column, p.outputs - 1);
    Place place;
    find<T, Formats>(place, own, matrix_of(own, p), at, p);
    simdgroup_float8x8 sums[4][2];
    for (uint i = 0; i < 4; i++) {
        for (uint j = 0; j < 2; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    for (uint start = 0; start < p.inputs; start += TILE_INPUTS) {
        float values[RUN];
        Formats::expand(place.row, place.matrix, start / RUN + part, values);
        // The tiles of the step before are no longer read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < RUN; i++) {
            weights[(RUN * part + i) * TILE_OUTPUTS + column] = values[i];
        }
        load_rows<T>(at.x, inputs, p, first_row, start, index);
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
    for (uint i = index; i < TILE_ROWS * TILE_OUTPUTS; i += TILE_LANES) {
        const uint row = first_row + i / TILE_OUTPUTS;
        const uint output = first_output + i % TILE_OUTPUTS;
        if (row < p.rows && output < p.outputs) {
            find<T, Formats>(place, output, matrix_of(output, p), at, p);
            const float y = biased<T>(float(weights[i]), place.matrix, place.output, at, p);
            finish<T>(activated(y, p.activation), row, output, at, p);
        }
    }
}

#define PRODUCT_ARGUMENTS(T)                                                                \
    device const T *x             [[buffer(0)]],                                            \
    device const uchar *first     [[buffer(1)]],                                            \
    device const uchar *second    [[buffer(2)]],                                            \
    device const uchar *third     [[buffer(3)]],                                            \
    device const T *first_bias    [[buffer(4)]],                                            \
    device const T *second_bias   [[buffer(5)]],                                            \
    device const T *third_bias    [[buffer(6)]],                                            \
    device const T *residual      [[buffer(7)]],                                            \
    device T *out                 [[buffer(8)]],                                            \
    constant ProductParameters &p [[buffer(9)]],                                            \
    uint2 group                   [[threadgroup_position_in_grid]],                         \
    uint index                    [[thread_index_in_threadgroup]],                          \
    uint simdgroup                [[simdgroup_index_in_threadgroup]],                       \
    uint lane                     [[thread_index_in_simdgroup]]
#define PRODUCT_OPERANDS                                                                    \
    { x, { first, second, third }, { first_bias, second_bias, third_bias }, residual, out }

#define FEW_KERNEL(NAME, T, ROWS, PARTS)                                                    \
kernel void NAME(PRODUCT_ARGUMENTS(T)) {                                                    \
    const Operands<T> at = PRODUCT_OPERANDS;                                                \
    product_of_few<T, Formats, ROWS, PARTS>(at, p, group, simdgroup, lane);                 \
}

#define PRODUCT_KERNELS(SUFFIX, T)                                                          \
FEW_KERNEL(product_of_one_##SUFFIX, T, 1, 1)                                                \
FEW_KERNEL(product_of_few_##SUFFIX, T, FEW_ROWS, 1)                                         \
FEW_KERNEL(gated_of_one_##SUFFIX, T, 1, 2)                                                  \
FEW_KERNEL(gated_of_few_##SUFFIX, T, FEW_ROWS, 2)                                           \
kernel void product_of_many_##SUFFIX(PRODUCT_ARGUMENTS(T)) {                                \
    threadgroup float weights[TILE_INPUTS * TILE_OUTPUTS];                                  \
    threadgroup float inputs[TILE_ROWS * TILE_INPUTS];                                      \
    const Operands<T> at = PRODUCT_OPERANDS;                                                \
    product_of_many<T, Formats>(at, p, weights, inputs, group, index, simdgroup);           \
}
