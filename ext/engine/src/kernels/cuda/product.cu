// A few rows times one to three matrices: what reading the weights costs, and little else. ELEMENT, ROWS
// (1 or 2) and GATED are defined at run time.

#define MATRICES 3
#define UNROLLED 4

struct Product {
    const ELEMENT *x; // [rows, inputs]
    ELEMENT *out;     // [rows, all outputs]
    const ELEMENT *weights[MATRICES]; // [outputs, inputs] each
    const ELEMENT *biases[MATRICES];  // null: none
    const ELEMENT *residual;          // null: none; shaped like the result
    uint ends[MATRICES]; // where each matrix's outputs end among all
    uint outputs;
    uint inputs;
    uint rows;
    uint activation;
};

// A weight is read once and by one warp: it need not stay in the cache.
__device__ __forceinline__ uint4 stream_sixteen(const void *from) {
    uint4 out;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}

// Eight weights as they come, and as numbers.
#define WORDS (sizeof(ELEMENT) / 2)
struct Raw {
    uint4 words[WORDS];
};
__device__ __forceinline__ Raw stream_eight(const ELEMENT *from) {
    Raw out;
    #pragma unroll
    for (int i = 0; i < WORDS; i++) { out.words[i] = stream_sixteen((const char *)from + 16 * i); }
    return out;
}
template <typename T>
__device__ __forceinline__ Eight numbers(const Raw &raw, T kind) { return widen_words(raw.words[0], kind); }
__device__ __forceinline__ Eight numbers(const Raw &raw, float) { return widen_eight((const float *)raw.words); }

struct Sums {
    float v[ROWS];
};

__device__ __forceinline__ void add_products(Sums &sums, const Eight &w, const Eight (&x)[ROWS]) {
    #pragma unroll
    for (int row = 0; row < ROWS; row++) {
        #pragma unroll
        for (int i = 0; i < 8; i++) { sums.v[row] = fmaf(w.v[i], x[row].v[i], sums.v[row]); }
    }
}

// One warp per output.
extern "C" __global__ void __launch_bounds__(256) product(const __grid_constant__ Product p) {
    const uint output = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (output >= p.outputs) {
        return;
    }
#if GATED
    const uint own = output;
    const ELEMENT *weight = p.weights[0] + ulong(own) * p.inputs, *bias = p.biases[0];
    const ELEMENT *second = p.weights[1] + ulong(own) * p.inputs;
    Sums seconds = {};
#else
    const uint matrix = output < p.ends[0] ? 0 : output < p.ends[1] ? 1 : 2;
    const uint own = output - (matrix == 0 ? 0 : p.ends[matrix - 1]);
    const ELEMENT *weight = p.weights[matrix] + ulong(own) * p.inputs, *bias = p.biases[matrix];
#endif
    Sums sums = {};
    for (uint begin = lane * 8; begin < p.inputs; begin += 256 * UNROLLED) {
        Raw raw[UNROLLED];
        #pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            raw[u] = {};
            if (begin + u * 256 < p.inputs) { raw[u] = stream_eight(weight + begin + u * 256); }
        }
#if GATED
        Raw other[UNROLLED];
        #pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            other[u] = {};
            if (begin + u * 256 < p.inputs) { other[u] = stream_eight(second + begin + u * 256); }
        }
#endif
        #pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            if (begin + u * 256 >= p.inputs) { break; }
            Eight x[ROWS];
            #pragma unroll
            for (uint row = 0; row < ROWS; row++) {
                // Rows beyond the last repeat it, and are not stored.
                x[row] = widen_eight(p.x + ulong(min(row, p.rows - 1)) * p.inputs + begin + u * 256);
            }
            add_products(sums, numbers(raw[u], ELEMENT()), x);
#if GATED
            add_products(seconds, numbers(other[u], ELEMENT()), x);
#endif
        }
    }
    #pragma unroll
    for (int row = 0; row < ROWS; row++) {
        #pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sums.v[row] += __shfl_xor_sync(0xffffffffu, sums.v[row], step);
#if GATED
            seconds.v[row] += __shfl_xor_sync(0xffffffffu, seconds.v[row], step);
#endif
        }
    }
    if (lane > 0) {
        return;
    }
    #pragma unroll
    for (uint row = 0; row < ROWS; row++) {
        if (row >= p.rows) { break; }
        const ulong at = ulong(row) * p.outputs + output;
        float y = activation<ELEMENT>(sums.v[row] + (bias ? widen(bias[own]) : 0.0f), p.activation);
#if GATED
        y *= seconds.v[row] + (p.biases[1] ? widen(p.biases[1][own]) : 0.0f);
#endif
        narrow(y + (p.residual ? widen(p.residual[at]) : 0.0f), p.out + at);
    }
}
