// Rows rounded to floats of eight bits (e4m3) over a scale, as tensor cores take them. ELEMENT (a half type), COLUMNS and
// PER_GROUP, whether every 128 elements have a scale and not a whole row, are defined at run time.

#define THREADS 256
#define LARGEST 448.0f // of e4m3
// Pieces of eight elements of a thread, which stay in registers where they are few.
#define PIECES ((COLUMNS / 8 + THREADS - 1) / THREADS)
#define KEPT (PIECES <= 8 ? PIECES : 1)

// The larger of both, and NaN where one is.
__device__ __forceinline__ float larger(float a, float b) {
    float out;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
    return out;
}
__device__ __forceinline__ float largest_of(const Eight &x) {
    float out = 0.0f;
    #pragma unroll
    for (int i = 0; i < 8; i++) { out = larger(out, fabsf(x.v[i])); }
    return out;
}
// What elements are multiplied by. Of a row of zeros, or of numbers so small that it would be infinite, nothing is left.
__device__ __forceinline__ float factor_of(float largest) { return largest < 1e-30f ? 0.0f : LARGEST / largest; }

__device__ __forceinline__ uint2 rounded(const Eight &x, float factor) {
    unsigned short pairs[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pairs[i]) : "f"(x.v[2 * i + 1] * factor), "f"(x.v[2 * i] * factor));
    }
    return make_uint2(uint(pairs[0]) | uint(pairs[1]) << 16, uint(pairs[2]) | uint(pairs[3]) << 16);
}

struct Fp8Rows {
    const ELEMENT *x; // [rows, COLUMNS]
    unsigned char *out;
    float *scales;    // [rows], or [COLUMNS / 128, pitch]
    uint pitch;
};

extern "C" __global__ void __launch_bounds__(THREADS) fp8_rows(const __grid_constant__ Fp8Rows p) {
    let_next_begin();
    await_previous();
    const uint row = blockIdx.x;
    const ELEMENT *from = p.x + ulong(row) * COLUMNS;
    unsigned char *to = p.out + ulong(row) * COLUMNS;
#if PER_GROUP
    #pragma unroll
    for (int i = 0; i < PIECES; i++) {
        // Whole half warps have work, or none.
        const uint piece = i * THREADS + threadIdx.x;
        const Eight x = piece < COLUMNS / 8 ? widen_eight(from + piece * 8) : Eight{};
        float largest = largest_of(x);
        #pragma unroll
        for (int step = 8; step > 0; step /= 2) { largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, step)); }
        if (piece < COLUMNS / 8) {
            *(uint2 *)(to + piece * 8) = rounded(x, factor_of(largest));
            if (piece % 16 == 0) { p.scales[ulong(piece / 16) * p.pitch + row] = largest * (1.0f / LARGEST); }
        }
    }
#else
    __shared__ float parts[THREADS / 32];
    Eight kept[KEPT];
    float largest = 0.0f;
    #pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint piece = i * THREADS + threadIdx.x;
        if (piece < COLUMNS / 8) {
            const Eight x = widen_eight(from + piece * 8);
            if (KEPT == PIECES) { kept[i % KEPT] = x; }
            largest = larger(largest, largest_of(x));
        }
    }
    #pragma unroll
    for (int step = 16; step > 0; step /= 2) { largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, step)); }
    if (threadIdx.x % 32 == 0) { parts[threadIdx.x / 32] = largest; }
    __syncthreads();
    largest = 0.0f;
    #pragma unroll
    for (int i = 0; i < THREADS / 32; i++) { largest = larger(largest, parts[i]); }
    const float factor = factor_of(largest);
    #pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint piece = i * THREADS + threadIdx.x;
        if (piece < COLUMNS / 8) {
            const Eight x = KEPT == PIECES ? kept[i % KEPT] : widen_eight(from + piece * 8);
            *(uint2 *)(to + piece * 8) = rounded(x, factor);
        }
    }
    if (threadIdx.x == 0) { p.scales[row] = largest * (1.0f / LARGEST); }
#endif
}
