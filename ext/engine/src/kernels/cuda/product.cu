// A few rows times one to three matrices: what reading the weights costs, and little else. ELEMENT, ROWS
// (1 or 2) and GATED are defined at run time.

#define UNROLLED 4

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
    const Place place = place_of(p, output);
    const ELEMENT *weight = p.weights[place.matrix] + ulong(place.row) * p.inputs;
#if GATED
    const ELEMENT *second = p.weights[1] + ulong(place.row) * p.inputs;
#endif
    Sums sums = {}, seconds = {};
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
    finish_warp(p, output, place, sums, seconds);
}
