// The row kernels on CUDA, for ELEMENT, which is defined at run time. Sums are f32; the two halves of a reduction are warp shuffles and a pass over
// the warps. One block works on one row, or one warp where rows are short and aligned: the `_vectors`
// kernels, which read eight elements at a time and each row once.

// Where row r of a tensor starts: up to three leading dimensions, in elements.
struct Rows {
    uint inner_size;
    uint middle_size;
    ulong inner_stride;
    ulong middle_stride;
    ulong outer_stride;

    __device__ ulong start(uint row) const {
        const uint inner = row % inner_size;
        const uint rest = row / inner_size;
        return ulong(rest / middle_size) * outer_stride + ulong(rest % middle_size) * middle_stride
            + ulong(inner) * inner_stride;
    }
};

struct Sum {
    static __device__ float zero() { return 0.0f; }
    static __device__ float join(float a, float b) { return a + b; }
};
struct Highest {
    static __device__ float zero() { return -INFINITE; }
    static __device__ float join(float a, float b) { return fmaxf(a, b); }
};

// The join of a value over the block, for every thread of it. A kernel that does so several times numbers them.
template <typename Join, int USE = 0>
__device__ float reduce(float v) {
    __shared__ float partials[32];
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) {
        v = Join::join(v, __shfl_xor_sync(0xffffffffu, v, step));
    }
    if (warps == 1) {
        return v;
    }
    if (lane == 0) {
        partials[warp] = v;
    }
    __syncthreads();
    v = lane < warps ? partials[lane] : Join::zero();
    for (int step = 16; step > 0; step /= 2) {
        v = Join::join(v, __shfl_xor_sync(0xffffffffu, v, step));
    }
    return v;
}

#define FOR_COLUMNS(i) for (uint i = threadIdx.x; i < p.columns; i += blockDim.x)

enum NormFlags { HAS_BIAS = 1, CENTERED = 2, HAS_RESIDUAL = 4 };

struct NormParameters {
    uint columns;
    uint flags;
    float epsilon;
    float weight_offset;
    Rows input;
    Rows residual;
    uint rows;
};

// Norm of x, or of x + residual, which is then written over x: each thread writes the elements that it
// alone reads, after every thread has read the first one. The mean is taken from differences to the
// first element, the variance around the rounded mean, corrected by what that misses.
template <typename T>
__device__ void norm_row(
    T *x, const T *residual, const T *weight, const T *bias, T *out, NormParameters p
) {
    let_next_begin();
    await_previous();
    T *from = x + p.input.start(blockIdx.x);
    const bool adds = p.flags & HAS_RESIDUAL;
    const T *other = residual + (adds ? p.residual.start(blockIdx.x) : 0);
    T *to = out + ulong(blockIdx.x) * p.columns;
    #define VALUE(i) (adds ? widen(from[i]) + widen(other[i]) : widen(from[i]))
    const float width = float(p.columns);
    float mean = 0.0f, drift = 0.0f, variance;
    if (p.flags & CENTERED) {
        const float first = VALUE(0);
        float total = 0.0f;
        FOR_COLUMNS(i) { total += VALUE(i) - first; }
        mean = first + reduce<Sum>(total) / width;
        float deviation = 0.0f, squares = 0.0f;
        FOR_COLUMNS(i) {
            const float d = VALUE(i) - mean;
            deviation += d;
            squares += d * d;
        }
        drift = reduce<Sum, 1>(deviation) / width;
        variance = reduce<Sum, 2>(squares) / width - drift * drift;
        variance = variance < 0.0f ? 0.0f : variance; // fmaxf would drop a NaN
    } else {
        float squares = 0.0f;
        FOR_COLUMNS(i) {
            const float v = VALUE(i);
            squares += v * v;
        }
        variance = reduce<Sum>(squares) / width;
    }
    const float inverse = 1.0f / sqrtf(variance + p.epsilon);
    FOR_COLUMNS(i) {
        const float v = VALUE(i);
        if (adds) {
            narrow(v, from + i);
        }
        float y = (v - mean - drift) * inverse * (widen(weight[i]) + p.weight_offset);
        if (p.flags & HAS_BIAS) {
            y += widen(bias[i]);
        }
        narrow(y, to + i);
    }
    #undef VALUE
}

// A norm with the row in registers: each thread holds up to HELD vectors of it, blockDim.y rows are
// one block's where blockDim.x is a warp. Of one vector the weight is read ahead.
template <typename T, int HELD>
__device__ void norm_vectors_row(
    T *x, const T *residual, const T *weight, const T *bias, T *out, NormParameters p
) {
    const uint row = blockIdx.x * blockDim.y + threadIdx.y;
    let_next_begin();
    if (row >= p.rows) {
        return;
    }
    T *from = x + p.input.start(row);
    const bool adds = p.flags & HAS_RESIDUAL;
    const T *other = residual + (adds ? p.residual.start(row) : 0);
    const ulong begin = ulong(row) * p.columns;
    const RawEight first_weight = HELD == 1 && 8 * threadIdx.x < p.columns ? read_eight(weight + 8 * threadIdx.x) : RawEight();
    await_previous();
    const float width = float(p.columns);
    #define FOR_VECTORS(k, at)                                                          \
        _Pragma("unroll") for (uint k = 0, at = 8 * threadIdx.x; k < HELD; k++, at += 8 * blockDim.x) \
            if (at < p.columns)
    Eight held[HELD];
    FOR_VECTORS(k, at) {
        held[k] = widen_eight(from + at);
        if (adds) {
            const Eight addend = widen_eight(other + at);
            #pragma unroll
            for (int i = 0; i < 8; i++) { held[k].v[i] += addend.v[i]; }
        }
    }
    float mean = 0.0f, drift = 0.0f, variance;
    if (p.flags & CENTERED) {
        const float first = widen(from[0]) + (adds ? widen(other[0]) : 0.0f);
        float total = 0.0f;
        FOR_VECTORS(k, at) {
            #pragma unroll
            for (int i = 0; i < 8; i++) { total += held[k].v[i] - first; }
        }
        mean = first + reduce<Sum>(total) / width;
        float deviation = 0.0f, squares = 0.0f;
        FOR_VECTORS(k, at) {
            #pragma unroll
            for (int i = 0; i < 8; i++) {
                const float d = held[k].v[i] - mean;
                deviation += d;
                squares += d * d;
            }
        }
        drift = reduce<Sum, 1>(deviation) / width;
        variance = reduce<Sum, 2>(squares) / width - drift * drift;
        variance = variance < 0.0f ? 0.0f : variance; // fmaxf would drop a NaN
    } else {
        float squares = 0.0f;
        FOR_VECTORS(k, at) {
            #pragma unroll
            for (int i = 0; i < 8; i++) { squares += held[k].v[i] * held[k].v[i]; }
        }
        variance = reduce<Sum>(squares) / width;
    }
    const float inverse = 1.0f / sqrtf(variance + p.epsilon);
    FOR_VECTORS(k, at) {
        if (adds) {
            narrow_eight(held[k], from + at);
        }
        const Eight w = HELD == 1 ? widen_raw(first_weight, T()) : widen_eight(weight + at);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            held[k].v[i] = (held[k].v[i] - mean - drift) * inverse * (w.v[i] + p.weight_offset);
        }
        if (p.flags & HAS_BIAS) {
            const Eight b = widen_eight(bias + at);
            #pragma unroll
            for (int i = 0; i < 8; i++) { held[k].v[i] += b.v[i]; }
        }
        narrow_eight(held[k], out + begin + at);
    }
}

enum SoftmaxFlags { HAS_ADDITIVE = 1, HAS_KEEP = 2, HAS_LENGTHS = 4 };

struct SoftmaxParameters {
    uint columns;
    uint flags;
    float scale;
    float lowest; // an additive value up to this masks its element
    Rows input;
    Rows additive;
    Rows keep;
    Rows lengths;
};

template <typename T>
struct Scores {
    const T *x;
    const T *additive;
    const unsigned char *keep;
    uint length;
    float scale;
    float lowest;
    uint flags;

    __device__ bool keeps(uint i) const {
        return i < length && (!(flags & HAS_KEEP) || keep[i] != 0)
            && (!(flags & HAS_ADDITIVE) || !(widen(additive[i]) <= lowest));
    }
    __device__ float at(uint i) const {
        const float bias = flags & HAS_ADDITIVE ? widen(additive[i]) : 0.0f;
        return keeps(i) ? fmaf(widen(x[i]), scale, bias) : -INFINITE;
    }
};

template <typename T>
__device__ void softmax_row(
    const T *x, const T *additive, const unsigned char *keep, const uint *lengths, T *out, SoftmaxParameters p
) {
    const uint row = blockIdx.x;
    Scores<T> scores;
    scores.x = x + p.input.start(row);
    scores.additive = additive + (p.flags & HAS_ADDITIVE ? p.additive.start(row) : 0);
    scores.keep = keep + (p.flags & HAS_KEEP ? p.keep.start(row) : 0);
    scores.length = p.flags & HAS_LENGTHS ? lengths[p.lengths.start(row)] : p.columns;
    scores.scale = p.scale;
    scores.lowest = p.lowest;
    scores.flags = p.flags;
    T *to = out + ulong(row) * p.columns;
    float highest = -INFINITE;
    FOR_COLUMNS(i) { highest = fmaxf(highest, scores.at(i)); }
    highest = reduce<Highest>(highest);
    float sum = 0.0f;
    FOR_COLUMNS(i) { sum += expf(scores.at(i) - highest); }
    sum = reduce<Sum>(sum);
    // No positive sum: zeros where masked, NaN where not.
    FOR_COLUMNS(i) {
        float probability = expf(scores.at(i) - highest) / sum;
        if (!(sum > 0.0f)) {
            probability = scores.keeps(i) ? NOT_A_NUMBER : 0.0f;
        }
        narrow(probability, to + i);
    }
}

struct ActivationParameters {
    ulong elements;
    uint columns;
    uint activation;
    uint gated;
    uint dense; // whether all lies as the result does
    Rows gate;
    Rows up;
};

template <typename T>
__device__ void activate_elements(const T *gate, const T *up, T *out, ActivationParameters p) {
    const ulong stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < p.elements; i += stride) {
        const uint row = uint(i / p.columns), column = uint(i % p.columns);
        float y = activation<T>(widen(gate[p.gate.start(row) + column]), p.activation);
        if (p.gated) {
            y *= widen(up[p.up.start(row) + column]);
        }
        narrow(y, out + i);
    }
}

// `kind` is p.activation, known when this is compiled where that is worth it.
template <typename T>
__device__ __forceinline__ void activate_all_vectors(const T *gate, const T *up, T *out, const ActivationParameters &p, uint kind) {
    const uint vectors = uint(p.elements / 8), per_row = p.columns / 8;
    const uint stride = gridDim.x * blockDim.x;
    for (uint i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += stride) {
        ulong from = ulong(i) * 8, from_up = from;
        if (!p.dense) {
            const uint row = i / per_row, column = i % per_row * 8;
            from = p.gate.start(row) + column;
            from_up = p.gated ? p.up.start(row) + column : 0;
        }
        Eight y = widen_eight(gate + from);
        #pragma unroll
        for (int j = 0; j < 8; j++) { y.v[j] = activation<T>(y.v[j], kind); }
        if (p.gated) {
            const Eight factor = widen_eight(up + from_up);
            #pragma unroll
            for (int j = 0; j < 8; j++) { y.v[j] *= factor.v[j]; }
        }
        narrow_eight(y, out + ulong(i) * 8);
    }
}
template <typename T>
__device__ void activate_vectors_elements(const T *gate, const T *up, T *out, const ActivationParameters &p) {
    switch (p.activation) {
    case 0: return activate_all_vectors(gate, up, out, p, 0);
    default: return activate_all_vectors(gate, up, out, p, p.activation);
    }
}

struct PointwiseParameters {
    ulong elements;
    uint columns;
    uint function; // 0: clamp, 1: xIELU, 2: clamped GLU of two inputs
    float numbers[4];
    Rows input;
    Rows other;
};

// Comparisons keep a NaN, which fminf and fmaxf would drop.
__device__ __forceinline__ float clamped(float x, float least, float most) {
    return x < least ? least : x > most ? most : x;
}

__device__ __forceinline__ float xielu(float x, const float *numbers) {
    const float line = numbers[2] * x;
    if (x > 0.0f) {
        return fmaf(numbers[0] * x, x, line);
    }
    const float exponent = x > numbers[3] ? numbers[3] : x;
    return fmaf(expm1f(exponent) - x, numbers[1], line);
}

__device__ __forceinline__ float clamped_glu(float gate, float up, const float *numbers) {
    const float limit = numbers[0];
    gate = gate > limit ? limit : gate;
    return (clamped(up, -limit, limit) + 1.0f) * (gate / (1.0f + expf(-numbers[1] * gate)));
}

template <typename T>
__device__ void pointwise_elements(const T *x, const T *other, T *out, const PointwiseParameters &p) {
    const ulong stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < p.elements; i += stride) {
        const uint row = uint(i / p.columns), column = uint(i % p.columns);
        const float v = widen(x[p.input.start(row) + column]);
        float y;
        switch (p.function) {
        case 0: y = clamped(v, p.numbers[0], p.numbers[1]); break;
        case 1: y = xielu(v, p.numbers); break;
        default: y = clamped_glu(v, widen(other[p.other.start(row) + column]), p.numbers);
        }
        narrow(y, out + i);
    }
}

struct RopeParameters {
    uint columns;
    uint rotated;
    uint heads;
    uint known; // positions in the tables
    uint interleaved;
    Rows input;
};

// Pairs of a row's first columns turned by what the tables have for its position. A position beyond them gives NaN,
// never a read outside. One of `lanes` threads that share the row does every so many columns.
struct Turn {
    const float *cosines, *sines; // [known, pairs]
    uint known, pairs, interleaved;
};
template <typename T>
__device__ __forceinline__ void turn_row(const T *from, T *to, uint columns, uint position, const Turn &turn, uint lane, uint lanes) {
    const uint pairs = turn.pairs;
    for (uint i = lane; i < pairs; i += lanes) {
        const uint first = turn.interleaved ? 2 * i : i;
        const uint second = turn.interleaved ? 2 * i + 1 : i + pairs;
        const bool known = position < turn.known;
        const float c = known ? turn.cosines[ulong(position) * pairs + i] : NOT_A_NUMBER;
        const float s = known ? turn.sines[ulong(position) * pairs + i] : NOT_A_NUMBER;
        const float a = widen(from[first]), b = widen(from[second]);
        narrow(a * c - b * s, to + first);
        narrow(b * c + a * s, to + second);
    }
    for (uint i = 2 * pairs + lane; i < columns; i += lanes) { to[i] = from[i]; }
}

template <typename T>
__device__ void rope_row(
    const T *x, const float *cosines, const float *sines, const uint *positions, T *out, RopeParameters p
) {
    const Turn turn = {cosines, sines, p.known, p.rotated / 2, p.interleaved};
    const uint position = positions[blockIdx.x / p.heads];
    turn_row(x + p.input.start(blockIdx.x), out + ulong(blockIdx.x) * p.columns, p.columns, position, turn, threadIdx.x, blockDim.x);
}

struct PoolParameters {
    uint columns;
    float least;
    Rows input;
};

// The grid is (blocks of columns, sequences).
template <typename T>
__device__ void mean_pool_block(const T *x, const uint *boundaries, T *out, PoolParameters p) {
    const uint column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= p.columns) {
        return;
    }
    const uint first = boundaries[blockIdx.y], last = boundaries[blockIdx.y + 1];
    float sum = 0.0f;
    #pragma unroll 8
    for (uint row = first; row < last; row++) {
        sum += widen(x[p.input.start(row) + column]);
    }
    narrow(sum / (last > first ? float(last - first) : 1.0f), out + ulong(blockIdx.y) * p.columns + column);
}

template <typename T>
__device__ void l2_normalize_row(const T *x, T *out, PoolParameters p) {
    const T *from = x + p.input.start(blockIdx.x);
    float squares = 0.0f;
    FOR_COLUMNS(i) {
        const float v = widen(from[i]);
        squares += v * v;
    }
    const float norm = sqrtf(reduce<Sum>(squares));
    const float divisor = norm < p.least ? p.least : norm; // fmaxf would drop a NaN
    T *to = out + ulong(blockIdx.x) * p.columns;
    FOR_COLUMNS(i) { narrow(widen(from[i]) / divisor, to + i); }
}

// A launch may have as many threads as a block can: without the bound, the compiler may give a kernel more
// registers than they share.
#define ROW_KERNEL extern "C" __global__ void __launch_bounds__(1024)

ROW_KERNEL norm_rows(
    ELEMENT *x, const ELEMENT *residual, const ELEMENT *weight, const ELEMENT *bias, ELEMENT *out,
    NormParameters p
) { norm_row<ELEMENT>(x, residual, weight, bias, out, p); }
ROW_KERNEL norm_vectors(
    ELEMENT *x, const ELEMENT *residual, const ELEMENT *weight, const ELEMENT *bias, ELEMENT *out,
    NormParameters p
) { norm_vectors_row<ELEMENT, 4>(x, residual, weight, bias, out, p); }
ROW_KERNEL norm_single_vectors(
    ELEMENT *x, const ELEMENT *residual, const ELEMENT *weight, const ELEMENT *bias, ELEMENT *out,
    NormParameters p
) { norm_vectors_row<ELEMENT, 1>(x, residual, weight, bias, out, p); }
ROW_KERNEL softmax(
    const ELEMENT *x, const ELEMENT *additive, const unsigned char *keep, const uint *lengths, ELEMENT *out,
    SoftmaxParameters p
) { softmax_row<ELEMENT>(x, additive, keep, lengths, out, p); }
ROW_KERNEL activate(
    const ELEMENT *gate, const ELEMENT *up, ELEMENT *out, ActivationParameters p
) { activate_elements<ELEMENT>(gate, up, out, p); }
ROW_KERNEL activate_vectors(
    const ELEMENT *gate, const ELEMENT *up, ELEMENT *out, ActivationParameters p
) { activate_vectors_elements<ELEMENT>(gate, up, out, p); }
ROW_KERNEL pointwise(
    const ELEMENT *x, const ELEMENT *other, ELEMENT *out, PointwiseParameters p
) { pointwise_elements<ELEMENT>(x, other, out, p); }
ROW_KERNEL rope(
    const ELEMENT *x, const float *cosines, const float *sines, const uint *positions, ELEMENT *out,
    RopeParameters p
) { rope_row<ELEMENT>(x, cosines, sines, positions, out, p); }
ROW_KERNEL mean_pool(
    const ELEMENT *x, const uint *boundaries, ELEMENT *out, PoolParameters p
) { mean_pool_block<ELEMENT>(x, boundaries, out, p); }
ROW_KERNEL l2_normalize(const ELEMENT *x, ELEMENT *out, PoolParameters p) {
    l2_normalize_row<ELEMENT>(x, out, p);
}

// The sums of up to three tables' rows, eight elements to a thread; a table that is not there is null.
struct Gather {
    const ELEMENT *tables[3];
    const uint *rows[3]; // null: the same for all
    ELEMENT *out;
    uint same[3];
    uint count;
    uint columns;
};
extern "C" __global__ void gather_sum(const __grid_constant__ Gather p) {
    const uint per_row = p.columns / 8;
    const ulong stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < ulong(p.count) * per_row; i += stride) {
        const uint row = uint(i / per_row), column = uint(i % per_row) * 8;
        Eight sum = {};
        #pragma unroll
        for (int table = 0; table < 3; table++) {
            if (p.tables[table]) {
                const uint from = p.rows[table] ? p.rows[table][row] : p.same[table];
                const Eight taken = widen_eight(p.tables[table] + ulong(from) * p.columns + column);
                #pragma unroll
                for (int j = 0; j < 8; j++) { sum.v[j] += taken.v[j]; }
            }
        }
        narrow_eight(sum, p.out + ulong(row) * p.columns + column);
    }
}

// Columns of rows that lie somewhere else, side by side and as another type. Rows come from tensors of any type.
enum { MOST_PARTS = 8 };
struct Columns {
    const void *from[MOST_PARTS];
    ulong from_row[MOST_PARTS];
    uint ends[MOST_PARTS];  // where a part's columns end in the result
    uint types[MOST_PARTS]; // f32, f16 or bf16
    void *to;
    ulong to_row;
    uint rows;
    uint width;
};
template <typename T> __device__ void copy_columns(const Columns &p) {
    let_next_begin();
    await_previous();
    const ulong stride = ulong(gridDim.x) * blockDim.x, all = ulong(p.rows) * p.width;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += stride) {
        const ulong row = i / p.width;
        const uint column = uint(i % p.width);
        uint part = 0, begin = 0;
        while (column >= p.ends[part]) {
            begin = p.ends[part++];
        }
        const ulong at = row * p.from_row[part] + column - begin;
        const float value = p.types[part] == 0 ? ((const float *)p.from[part])[at]
            : p.types[part] == 1               ? widen(((const f16 *)p.from[part])[at])
                                               : widen(((const bf16 *)p.from[part])[at]);
        narrow(value, (T *)p.to + row * p.to_row + column);
    }
}
extern "C" __global__ void columns_to_f32(const __grid_constant__ Columns p) { copy_columns<float>(p); }
extern "C" __global__ void columns_to_f16(const __grid_constant__ Columns p) { copy_columns<f16>(p); }
extern "C" __global__ void columns_to_bf16(const __grid_constant__ Columns p) { copy_columns<bf16>(p); }

// The RMS norm of a part of a row, and a gate before or after it. A block has a part.
struct GatedNorm {
    const float *x;      // [rows, width]
    const ELEMENT *gate; // rows of the same width
    const float *weight;
    void *out;
    ulong gate_row;
    uint width;
    uint part;
    uint weights;
    uint sigmoid;
    uint norm_first;
    float epsilon;
};
template <typename T> __device__ void gated_norm(const GatedNorm &p) {
    const uint parts = p.width / p.part, row = blockIdx.x / parts, first = blockIdx.x % parts * p.part;
    let_next_begin();
    await_previous();
    const float *x = p.x + ulong(row) * p.width + first;
    const ELEMENT *gate = p.gate + ulong(row) * p.gate_row + first;
    T *out = (T *)p.out + ulong(row) * p.width + first;
    const float *weight = p.weight + (p.weights == p.part ? 0 : first);
    const auto open = [&](uint i) {
        const float g = widen(gate[i]), logistic = 1.0f / (1.0f + expf(-g));
        return p.sigmoid ? logistic : g * logistic;
    };
    constexpr uint AT_ONCE = 8;
    float squares = 0.0f;
    #pragma unroll 8
    for (uint i = threadIdx.x; i < p.part; i += blockDim.x) {
        const float v = p.norm_first ? x[i] : x[i] * open(i);
        squares += v * v;
    }
    const float inverse = 1.0f / sqrtf(reduce<Sum>(squares) / float(p.part) + p.epsilon);
    // Some are read before one is stored, so that reads do not wait for each other.
    for (uint start = threadIdx.x; start < p.part; start += AT_ONCE * blockDim.x) {
        float v[AT_ONCE], opened[AT_ONCE], weights[AT_ONCE];
        #pragma unroll
        for (uint k = 0; k < AT_ONCE; k++) {
            const uint i = min(start + k * blockDim.x, p.part - 1);
            v[k] = x[i];
            opened[k] = open(i);
            weights[k] = weight[i];
        }
        #pragma unroll
        for (uint k = 0; k < AT_ONCE; k++) {
            const uint i = start + k * blockDim.x;
            if (i >= p.part) { break; }
            narrow(p.norm_first ? v[k] * inverse * weights[k] * opened[k] : v[k] * opened[k] * inverse * weights[k], out + i);
        }
    }
}
extern "C" __global__ void gated_norm_to_f32(const __grid_constant__ GatedNorm p) { gated_norm<float>(p); }
extern "C" __global__ void gated_norm_to_f16(const __grid_constant__ GatedNorm p) { gated_norm<f16>(p); }
extern "C" __global__ void gated_norm_to_bf16(const __grid_constant__ GatedNorm p) { gated_norm<bf16>(p); }

// Queries, keys and values: the former two are turned, keys and values go to their slots. A warp has a head of one.
struct Store {
    const ELEMENT *from[3];
    ELEMENT *to[3];      // [tokens, heads, width], and twice [slots, key heads, width]
    const uint *positions; // null: nothing is turned
    const uint *slots;
    ulong strides[3][2]; // of a token and of a head
    Turn turn;
    uint tokens;
    uint heads;
    uint key_heads;
    uint width;
};
extern "C" __global__ void __launch_bounds__(256) rotate_and_store(const __grid_constant__ Store p) {
    const uint all = p.heads + 2 * p.key_heads, lane = threadIdx.x % 32;
    const ulong row = ulong(blockIdx.x) * 8 + threadIdx.x / 32;
    const uint token = uint(row / all), place = uint(row % all);
    let_next_begin();
    if (token >= p.tokens) {
        return;
    }
    const uint part = place < p.heads ? 0 : place < p.heads + p.key_heads ? 1 : 2;
    const uint head = part == 0 ? place : part == 1 ? place - p.heads : place - p.heads - p.key_heads;
    const ELEMENT *from = p.from[part] + token * p.strides[part][0] + head * p.strides[part][1];
    const ulong to = part == 0 ? ulong(token) * p.heads + head : ulong(p.slots[token]) * p.key_heads + head;
    Turn turn = p.turn;
    if (part == 2) { turn.pairs = 0; }
    const uint position = p.positions ? p.positions[token] : 0;
    if (lane * 32 < turn.pairs && position < turn.known) {
        fetch_ahead(turn.cosines + ulong(position) * turn.pairs + lane * 32);
        fetch_ahead(turn.sines + ulong(position) * turn.pairs + lane * 32);
    }
    await_previous();
    turn_row(from, p.to[part] + to * p.width, p.width, position, turn, lane, 32);
}

// The first of the largest finite numbers of each part of each row, and its place; beyond the width where there is
// none. One block of 1024 threads per part. The rows are `kept` in f32, unless that is null.
extern "C" __global__ void __launch_bounds__(1024) largest(const ELEMENT *x, float *kept, uint2 *found, uint width) {
    __shared__ float tops[32];
    __shared__ uint places[32];
    const ulong first = ulong(blockIdx.x) * width;
    float top = -INFINITE;
    uint place = 0xffffffffu;
    const uint part = (width + gridDim.y - 1) / gridDim.y, end = min(width, (blockIdx.y + 1) * part);
    let_next_begin();
    await_previous();
    for (uint i = blockIdx.y * part + threadIdx.x; i < end; i += 1024) {
        const float number = widen(x[first + i]);
        if (kept) { kept[first + i] = number; }
        if (number > top && number < INFINITE) { top = number; place = i; }
    }
    const auto join = [&](float other, uint at) {
        if (other > top || (other == top && at < place)) { top = other; place = at; }
    };
    for (int step = 16; step > 0; step /= 2) {
        join(__shfl_xor_sync(0xffffffffu, top, step), __shfl_xor_sync(0xffffffffu, place, step));
    }
    if (threadIdx.x % 32 == 0) { tops[threadIdx.x / 32] = top; places[threadIdx.x / 32] = place; }
    __syncthreads();
    if (threadIdx.x < 32) {
        top = tops[threadIdx.x];
        place = places[threadIdx.x];
        for (int step = 16; step > 0; step /= 2) {
            join(__shfl_xor_sync(0xffffffffu, top, step), __shfl_xor_sync(0xffffffffu, place, step));
        }
        if (threadIdx.x == 0) { found[blockIdx.x * gridDim.y + blockIdx.y] = make_uint2(__float_as_uint(top), place); }
    }
}

// The largest number of each row, of what `largest` has found in its parts: its place, 0 where there is none, and for the
// host both, the place as it was found. One warp per row.
extern "C" __global__ void __launch_bounds__(32) choose(
    const uint2 *found, uint *places, uint2 *told, uint parts, uint width
) {
    const uint2 *row = found + blockIdx.x * parts;
    float top = -INFINITE;
    uint place = 0xffffffffu;
    const auto join = [&](float other, uint at) {
        if (other > top || (other == top && at < place)) { top = other; place = at; }
    };
    for (uint i = threadIdx.x; i < parts; i += 32) { join(__uint_as_float(row[i].x), row[i].y); }
    for (int step = 16; step > 0; step /= 2) {
        join(__shfl_xor_sync(0xffffffffu, top, step), __shfl_xor_sync(0xffffffffu, place, step));
    }
    if (threadIdx.x == 0) {
        places[blockIdx.x] = place < width ? place : 0;
        told[blockIdx.x] = make_uint2(__float_as_uint(top), place);
    }
}
