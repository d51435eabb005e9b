// What kernels on tensor cores have in common that multiply large quantized blocks with rows of ELEMENT, a half type.

#define Q4_K 8
#define Q5_K 9
#define Q6_K 10

#define BLOCK 256 // elements

struct Tile {
    float v[4]; // outputs group and group + 8 of columns 2 member and 2 member + 1
};

__device__ __forceinline__ void multiply(Tile &sum, const uint (&a)[4], uint2 b, f16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply(Tile &sum, const uint (&a)[4], uint2 b, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

// Codes below 128 become numbers by being set into the mantissa of a power of two whose last digit is 1. `power` is what
// they are too large by then.
__device__ __forceinline__ uint power_bits(f16) { return 0x64006400u; }
__device__ __forceinline__ uint power_bits(bf16) { return 0x43004300u; }
__device__ __forceinline__ float power(f16) { return 1024.0f; }
__device__ __forceinline__ float power(bf16) { return 128.0f; }

// Four neighbours of x, the first and third in one word as codes come.
__device__ __forceinline__ uint2 in_pairs(uint first, uint second) {
    return make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
}

__device__ __forceinline__ float half_of(uint bits) { return widen(f16{(unsigned short)bits}); }
