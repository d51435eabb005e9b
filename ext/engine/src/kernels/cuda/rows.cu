// The row kernels on CUDA, compiled at run time by NVRTC without any header. One block works on one
// row; sums are f32, the two halves of a reduction are warp shuffles and a pass over the warps.

typedef unsigned int uint;
typedef unsigned long long ulong;

#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(f16 v) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v.bits));
    return out;
}
__device__ __forceinline__ float widen(bf16 v) { return __uint_as_float(uint(v.bits) << 16); }

__device__ __forceinline__ void narrow(float v, float *to) { *to = v; }
__device__ __forceinline__ void narrow(float v, f16 *to) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    to->bits = bits;
}
__device__ __forceinline__ void narrow(float v, bf16 *to) {
    const uint bits = __float_as_uint(v);
    const uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to->bits = (unsigned short)(v != v ? (bits >> 16) | 0x40u : rounded);
}

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

// The join of a value over the block, for every thread of it.
template <typename Join>
__device__ float reduce(float v) {
    __shared__ float partials[32];
    const uint lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) {
        v = Join::join(v, __shfl_xor_sync(0xffffffffu, v, step));
    }
    if (warps == 1) {
        return v;
    }
    __syncthreads();
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
};

// Norm of x, or of x + residual, whose sum is stored, too. The mean is taken from differences to the
// first element, the variance around the rounded mean, corrected by what that misses.
template <typename T>
__device__ void norm_row(
    const T *x, const T *residual, const T *weight, const T *bias, T *sums, T *out, NormParameters p
) {
    const T *from = x + p.input.start(blockIdx.x);
    const bool adds = p.flags & HAS_RESIDUAL;
    const T *other = residual + (adds ? p.residual.start(blockIdx.x) : 0);
    T *to = out + ulong(blockIdx.x) * p.columns;
    T *sum_to = sums + ulong(blockIdx.x) * p.columns;
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
        drift = reduce<Sum>(deviation) / width;
        variance = reduce<Sum>(squares) / width - drift * drift;
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
            narrow(v, sum_to + i);
        }
        float y = (v - mean - drift) * inverse * (widen(weight[i]) + p.weight_offset);
        if (p.flags & HAS_BIAS) {
            y += widen(bias[i]);
        }
        narrow(y, to + i);
    }
    #undef VALUE
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
        float share = expf(scores.at(i) - highest) / sum;
        if (!(sum > 0.0f)) {
            share = scores.keeps(i) ? NOT_A_NUMBER : 0.0f;
        }
        narrow(share, to + i);
    }
}

struct ActivationParameters {
    ulong elements;
    uint columns;
    uint activation;
    uint gated;
    Rows gate;
    Rows up;
};

// The order is that of `Activation` in Rust.
__device__ float activation(float x, uint kind) {
    switch (kind) {
    case 0: return x * 0.5f * erfcf(-x * 0.70710678118654752f);
    case 1: return x / (1.0f + expf(-1.5957691216057308f * fmaf(0.044715f * x * x, x, x)));
    case 2: return x / (1.0f + expf(-1.702f * x));
    case 3: return x / (1.0f + expf(-x));
    case 4: return x < 0.0f ? 0.0f : x;
    case 5: return tanhf(x);
    case 6: return 1.0f / (1.0f + expf(-x));
    default: return x;
    }
}

template <typename T>
__device__ void activate_elements(const T *gate, const T *up, T *out, ActivationParameters p) {
    const ulong stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < p.elements; i += stride) {
        const uint row = uint(i / p.columns), column = uint(i % p.columns);
        float y = activation(widen(gate[p.gate.start(row) + column]), p.activation);
        if (p.gated) {
            y *= widen(up[p.up.start(row) + column]);
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

// A position beyond the tables gives NaN, never a read outside them.
template <typename T>
__device__ void rope_row(
    const T *x, const float *cosines, const float *sines, const uint *positions, T *out, RopeParameters p
) {
    const T *from = x + p.input.start(blockIdx.x);
    T *to = out + ulong(blockIdx.x) * p.columns;
    const uint position = positions[blockIdx.x / p.heads];
    const uint pairs = p.rotated / 2;
    for (uint i = threadIdx.x; i < pairs; i += blockDim.x) {
        const uint first = p.interleaved ? 2 * i : i;
        const uint second = p.interleaved ? 2 * i + 1 : i + pairs;
        const bool known = position < p.known;
        const float c = known ? cosines[ulong(position) * pairs + i] : NOT_A_NUMBER;
        const float s = known ? sines[ulong(position) * pairs + i] : NOT_A_NUMBER;
        const float a = widen(from[first]), b = widen(from[second]);
        narrow(a * c - b * s, to + first);
        narrow(b * c + a * s, to + second);
    }
    for (uint i = p.rotated + threadIdx.x; i < p.columns; i += blockDim.x) {
        to[i] = from[i];
    }
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

#define KERNELS(SUFFIX, T)                                                                               \
extern "C" __global__ void norm_##SUFFIX(                                                                \
    const T *x, const T *residual, const T *weight, const T *bias, T *sums, T *out, NormParameters p     \
) { norm_row<T>(x, residual, weight, bias, sums, out, p); }                                              \
extern "C" __global__ void softmax_##SUFFIX(                                                             \
    const T *x, const T *additive, const unsigned char *keep, const uint *lengths, T *out,               \
    SoftmaxParameters p                                                                                  \
) { softmax_row<T>(x, additive, keep, lengths, out, p); }                                                \
extern "C" __global__ void activate_##SUFFIX(const T *gate, const T *up, T *out, ActivationParameters p) \
{ activate_elements<T>(gate, up, out, p); }                                                              \
extern "C" __global__ void rope_##SUFFIX(                                                                \
    const T *x, const float *cosines, const float *sines, const uint *positions, T *out, RopeParameters p\
) { rope_row<T>(x, cosines, sines, positions, out, p); }                                                 \
extern "C" __global__ void mean_pool_##SUFFIX(                                                           \
    const T *x, const uint *boundaries, T *out, PoolParameters p                                         \
) { mean_pool_block<T>(x, boundaries, out, p); }                                                         \
extern "C" __global__ void l2_normalize_##SUFFIX(const T *x, T *out, PoolParameters p)                   \
{ l2_normalize_row<T>(x, out, p); }

KERNELS(f32, float)
KERNELS(f16, f16)
KERNELS(bf16, bf16)
