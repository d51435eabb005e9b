// What every CUDA source of the engine begins with. NVRTC compiles without any header.

typedef unsigned int uint;
typedef unsigned long long ulong;

#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#define LOG2_E 1.4426950408889634f

// A launch may begin while the one before it in its stream still runs, once all thread blocks of that have called
// `let_next_begin`. What kernels wrote is read after `await_previous`; weights, tables and what the host wrote may be
// read ahead of it. Where launches don't overlap, neither does anything.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings the line of an address into the second cache.
__device__ __forceinline__ void fetch_ahead(const void *from) { asm volatile("prefetch.global.L2 [%0];" :: "l"(from)); }

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

__device__ __forceinline__ uint pack(float low, float high, f16) {
    uint out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
__device__ __forceinline__ uint pack(float low, float high, bf16) {
    uint out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ uint shared_address(const void *at) { return uint(__cvta_generic_to_shared(at)); }

// Begins a copy to shared memory; zeros where nothing is there.
__device__ __forceinline__ void copy_sixteen(uint to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(there ? 16 : 0));
}

// Four 8 x 8 matrices of 16 bits, as tensor cores take them from registers.
__device__ __forceinline__ void load_matrices(uint (&to)[4], uint from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}

// Eight neighbours, read and written 16 bytes at a time.
struct Eight {
    float v[8];
};

__device__ __forceinline__ Eight widen_eight(const float *from) {
    const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
template <typename T>
__device__ __forceinline__ Eight widen_words(uint4 words, T) {
    const uint word[4] = {words.x, words.y, words.z, words.w};
    Eight out;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        out.v[2 * i] = widen(T{(unsigned short)(word[i] & 0xffffu)});
        out.v[2 * i + 1] = widen(T{(unsigned short)(word[i] >> 16)});
    }
    return out;
}
__device__ __forceinline__ Eight widen_eight(const f16 *from) {
    return widen_words(*(const uint4 *)from, f16());
}
__device__ __forceinline__ Eight widen_eight(const bf16 *from) {
    return widen_words(*(const uint4 *)from, bf16());
}

// Eight neighbours as they lie.
struct RawEight {
    uint4 words[sizeof(ELEMENT) / 2];
};
__device__ __forceinline__ RawEight read_eight(const ELEMENT *from) { return *(const RawEight *)from; }
// From the second cache, where all see what others have just written.
__device__ __forceinline__ uint read_shared_word(const void *from) {
    uint out;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(out) : "l"(from));
    return out;
}
__device__ __forceinline__ uint4 read_shared(const void *from) {
    uint4 out;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}
template <typename T>
__device__ __forceinline__ Eight widen_raw(const RawEight &raw, T kind) { return widen_words(raw.words[0], kind); }
__device__ __forceinline__ Eight widen_raw(const RawEight &raw, float) { return widen_eight((const float *)raw.words); }

__device__ __forceinline__ void narrow_eight(const Eight &from, float *to) {
    *(float4 *)to = make_float4(from.v[0], from.v[1], from.v[2], from.v[3]);
    *(float4 *)(to + 4) = make_float4(from.v[4], from.v[5], from.v[6], from.v[7]);
}
template <typename T>
__device__ __forceinline__ void narrow_eight(const Eight &from, T *to) {
    uint word[4];
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        T low, high;
        narrow(from.v[2 * i], &low);
        narrow(from.v[2 * i + 1], &high);
        word[i] = uint(low.bits) | uint(high.bits) << 16;
    }
    *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
}

__device__ __forceinline__ float power_of_two(float v) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

__device__ __forceinline__ float inverse(float v) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}

__device__ __forceinline__ float gelu(float x, float) {
    return x * 0.5f * erfcf(-x * 0.70710678118654752f);
}
// x times the normal distribution, whose odds are a power of two of x times a polynomial of its square: within a tenth of
// the distance between neighbours in f16 down to where f16 has nothing but 0, and cheap beside a product.
template <typename T>
__device__ __forceinline__ float gelu(float x, T) {
    const float square = x * x;
    float sum = fmaf(2.35417552e-9f, square, -2.12950705e-7f);
    sum = fmaf(sum, square, 7.53543210e-6f);
    sum = fmaf(sum, square, -1.17069154e-4f);
    sum = fmaf(sum, square, -3.17636854e-4f);
    sum = fmaf(sum, square, 1.05346492e-1f);
    sum = fmaf(sum, square, 2.30185284f);
    return x * inverse(1.0f + power_of_two(-x * sum));
}

// The order is that of `Activation` in Rust; T says how exact the result must be.
template <typename T>
__device__ __forceinline__ float activation(float x, uint kind) {
    switch (kind) {
    case 0: return gelu(x, T());
    case 1: return x / (1.0f + expf(-1.5957691216057308f * fmaf(0.044715f * x * x, x, x)));
    case 2: return x / (1.0f + expf(-1.702f * x));
    case 3: return x / (1.0f + expf(-x));
    case 4: return x < 0.0f ? 0.0f : x;
    case 5: return tanhf(x);
    case 6: return 1.0f / (1.0f + expf(-x));
    case 7: return x < 0.0f ? 0.0f : x * x;
    case 8: return x < 0.0f ? 0.0f : (x > 6.0f ? 6.0f : x);
    default: return x;
    }
}
