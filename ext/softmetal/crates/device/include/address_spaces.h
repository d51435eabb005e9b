// Declarations of the Metal Shading Language for clang's C++ for OpenCL, which has the same four
// address spaces and refuses to mix them; with the generic space turned off, as Metal has none.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

#define kernel __kernel
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef long long2 __attribute__((ext_vector_type(2)));

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
typedef vec<float, 2> float2;
typedef vec<float, 4> float4;

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);
float simd_sum(float value);
float simd_max(float value);
float simd_shuffle_xor(float value, ushort mask);
uint simd_shuffle_xor(uint value, ushort mask);
float exp(float x);
float tanh(float x);
float sqrt(float x);
float log(float x);
float fabs(float x);
float floor(float x);
float fma(float a, float b, float c);
float fmin(float a, float b);
float fmax(float a, float b);
template <typename To, typename From>
To as_type(From from);

// Atomic numbers in threadgroup memory, which is where ours are.
enum memory_order { memory_order_relaxed };
uint atomic_load_explicit(const volatile threadgroup atomic_uint *from, memory_order order);
void atomic_store_explicit(volatile threadgroup atomic_uint *to, uint value, memory_order order);
uint atomic_fetch_add_explicit(volatile threadgroup atomic_uint *to, uint value, memory_order order);

// A lane's elements; a class could not be copied without the generic space.
typedef float2 simdgroup_float8x8;
#define thread_elements() xy
template <typename T, int C, int R>
simdgroup_float8x8 make_filled_simdgroup_matrix(T value);
void simdgroup_load(thread simdgroup_float8x8 &to, const threadgroup float *from, ulong row_elements, ulong origin = 0,
                    bool transpose = false);
void simdgroup_store(const thread simdgroup_float8x8 &from, threadgroup float *to, ulong row_elements);
void simdgroup_multiply_accumulate(thread simdgroup_float8x8 &d, const thread simdgroup_float8x8 &a,
                                   const thread simdgroup_float8x8 &b, const thread simdgroup_float8x8 &c);
uint min(uint a, uint b);
int min(int a, int b);
int max(int a, int b);

}  // namespace metal
