// A host-side <metal_stdlib>: the part of the Metal Shading Language our kernels use, for clang++ 14
// or later. No C++ library header is included, so a kernel that leans on one does not compile.
// Address spaces are erased here; address_spaces.h is for checking those.
#pragma once

#include "lane.hpp"

#define device
#define thread
#define constant const
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

struct uint2 {
    uint x, y;
};

namespace host {

template <typename To, typename From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

inline float widen_half(ushort bits) {
    const uint sign = uint(bits & 0x8000) << 16;
    const uint exponent = bits >> 10 & 0x1f;
    const uint mantissa = bits & 0x3ff;
    if (exponent == 0) {
        const float magnitude = float(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 0x1f) {
        return bits_as<float>(sign | 0x7f800000u | mantissa << 13);
    }
    return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// To nearest, ties to even.
inline ushort narrow_half(float value) {
    const uint bits = bits_as<uint>(value);
    const ushort sign = ushort(bits >> 16 & 0x8000);
    const uint magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return sign | 0x7e00;
    }
    if (magnitude >= 0x47800000) {
        return sign | 0x7c00;
    }
    if (magnitude < 0x38800000) {  // below 2^-14: the sum rounds at the weight of half's last bit
        const float sum = bits_as<float>(magnitude) + 0.5f;
        return ushort(sign | (bits_as<uint>(sum) - bits_as<uint>(0.5f)));
    }
    return ushort(sign | (((magnitude - 0x38000000) + 0xfff + (magnitude >> 13 & 1)) >> 13));
}

inline float widen_bfloat(ushort bits) { return bits_as<float>(uint(bits) << 16); }

inline ushort narrow_bfloat(float value) {
    const uint bits = bits_as<uint>(value);
    if (value != value) {
        return ushort((bits >> 16 & 0x8000) | 0x7fc0);
    }
    return ushort((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A 16-bit float: arithmetic happens in float and every operation rounds back, as on the GPU.
template <float (*WIDEN)(ushort), ushort (*NARROW)(float)>
struct Narrow {
    ushort bits;

    Narrow() = default;
    explicit Narrow(float value) : bits(NARROW(value)) {}
    explicit operator float() const { return WIDEN(bits); }
    friend Narrow operator+(Narrow a, Narrow b) { return Narrow(float(a) + float(b)); }
    friend Narrow operator-(Narrow a, Narrow b) { return Narrow(float(a) - float(b)); }
    friend Narrow operator*(Narrow a, Narrow b) { return Narrow(float(a) * float(b)); }
    friend Narrow operator/(Narrow a, Narrow b) { return Narrow(float(a) / float(b)); }
};

// Traps on an address that is not; the compiler, which trusts the type, must not see where it is from.
template <unsigned long ALIGNMENT>
inline void expect_aligned(const void *place) {
    unsigned long address = (unsigned long)place;
    __asm__("" : "+r"(address));
    if (address % ALIGNMENT != 0) {
        __builtin_trap();
    }
}

// A cell of threadgroup memory.
template <typename T>
class Shared {
public:
    operator T() const {
        history.on_read();
        return value;
    }
    Shared &operator=(T to) {
        history.on_write();
        value = to;
        return *this;
    }
    Shared() = default;
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;

private:
    T value;
    mutable CellHistory history;
};

}  // namespace host

typedef host::Narrow<host::widen_half, host::narrow_half> half;
typedef host::Narrow<host::widen_bfloat, host::narrow_bfloat> bfloat;

namespace metal {

// Aligned like Metal's vectors, and copied only from and to places that are.
template <typename T, int N>
struct vec;

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
    T x, y, z, w;

    vec() = default;
    vec(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
    vec(const vec &other) {
        host::expect_aligned<sizeof(vec)>(&other);
        take(other);
    }
    vec &operator=(const vec &other) {
        host::expect_aligned<sizeof(vec)>(this);
        host::expect_aligned<sizeof(vec)>(&other);
        take(other);
        return *this;
    }
    friend vec operator+(const vec &a, const vec &b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
    friend vec operator-(const vec &a, const vec &b) { return {a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w}; }
    friend vec operator*(const vec &a, const vec &b) { return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w}; }
    friend vec operator/(const vec &a, const vec &b) { return {a.x / b.x, a.y / b.y, a.z / b.z, a.w / b.w}; }

private:
    void take(const vec &other) {
        x = other.x;
        y = other.y;
        z = other.z;
        w = other.w;
    }
};

typedef vec<float, 4> float4;

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };

__attribute__((always_inline)) inline void threadgroup_barrier(mem_flags flags) {
    host::threadgroup_barrier((uint(flags) & uint(mem_flags::mem_threadgroup)) != 0);
}
using host::simd_max;
using host::simd_sum;

inline float exp(float x) { return __builtin_expf(x); }
inline float tanh(float x) { return __builtin_tanhf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float fabs(float x) { return __builtin_fabsf(x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline uint min(uint a, uint b) { return b < a ? b : a; }

}  // namespace metal
