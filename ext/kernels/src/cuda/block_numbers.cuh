// What kernels on tensor cores have in common that multiply large quantized blocks with rows of ELEMENT, a half type.

#define Q4_K 8
#define Q5_K 9
#define Q6_K 10

#define BLOCK 256 // elements

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
