// Words, types and traits.
#pragma once

#define device
#define thread
#define constant const
#define METAL_FUNC __attribute__((always_inline)) inline
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.40282346638528859812e+38F
#define FLT_MAX MAXFLOAT
#define FLT_MIN 1.17549435082228750797e-38F
#define HALF_MAX ((half)65504.0f)
#define INT_MAX 2147483647
#define M_PI_F 3.14159265358979323846264338327950288f
#define M_PI_H ((half)M_PI_F)
#define M_E_F 2.71828182845904523536028747135266250f
#define M_LN2_F 0.693147180559945309417232121458176568f
#define M_LOG2E_F 1.44269504088896340735992468100189214f
#define M_SQRT2_F 1.41421356237309504880168872420969808f
#define M_SQRT1_2_F 0.707106781186547524400844362104849039f
#define M_2_SQRTPI_F 1.12837916709551257389615890312154517f

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
typedef _Float16 half;
typedef __bf16 bfloat;

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

#define VECTORS(type)                                             \
    typedef type type##2 __attribute__((ext_vector_type(2)));     \
    typedef type type##3 __attribute__((ext_vector_type(3)));     \
    typedef type type##4 __attribute__((ext_vector_type(4)));     \
    struct packed_##type##2 { type x, y; type operator[](int i) const { return (&x)[i]; } };    \
    struct packed_##type##3 { type x, y, z; type operator[](int i) const { return (&x)[i]; } }; \
    struct packed_##type##4 { type x, y, z, w; type operator[](int i) const { return (&x)[i]; } };
#define NUMBERS(X) X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong)
#define FLOATS(X) X(half) X(float)
NUMBERS(VECTORS)
FLOATS(VECTORS)
VECTORS(bfloat)
#undef VECTORS

// Traits

template <typename T, T V>
struct integral_constant {
    static constexpr T value = V;
    typedef T value_type;
    typedef integral_constant type;
    constexpr operator T() const { return V; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { typedef T type; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, typename T, typename F> struct conditional { typedef T type; };
template <typename T, typename F> struct conditional<false, T, F> { typedef F type; };
template <bool B, typename T, typename F> using conditional_t = typename conditional<B, T, F>::type;
template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename A, typename B> constexpr bool is_same_v = is_same<A, B>::value;
template <typename T> struct remove_const { typedef T type; };
template <typename T> struct remove_const<const T> { typedef T type; };
template <typename T> struct remove_reference { typedef T type; };
template <typename T> struct remove_reference<T &> { typedef T type; };
template <typename T> using remove_cv_t = typename remove_const<T>::type;
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename A, typename B> constexpr bool is_convertible_v = __is_convertible_to(A, B);
template <typename T> struct is_integral : integral_constant<bool, __is_integral(T)> {};
template <typename T> constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> struct is_floating_point
    : integral_constant<bool, is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>> {};
template <typename T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> constexpr bool is_unsigned_v = is_integral_v<T> && T(-1) > T(0);
template <typename...> using void_t = void;

template <typename T> struct vec_elements { static constexpr uint value = 0; typedef T type; };
template <typename T, int N> struct vec_elements<T __attribute__((ext_vector_type(N)))> {
    static constexpr uint value = N;
    typedef T type;
};

}  // namespace metal

template <typename T> struct _numeric_limits_impl;
#define INTEGERS(type, low, high)                                    \
    template <> struct _numeric_limits_impl<type> {                  \
        static constexpr bool is_specialized = true;                 \
        static constexpr type min() { return low; }                  \
        static constexpr type lowest() { return low; }               \
        static constexpr type max() { return high; }                 \
    };
INTEGERS(bool, false, true)
INTEGERS(char, -128, 127)
INTEGERS(int8_t, -128, 127)
INTEGERS(uchar, 0, 255)
INTEGERS(short, -32768, 32767)
INTEGERS(ushort, 0, 65535)
INTEGERS(int, -2147483647 - 1, 2147483647)
INTEGERS(uint, 0, 4294967295u)
INTEGERS(long, -9223372036854775807l - 1, 9223372036854775807l)
INTEGERS(ulong, 0, 18446744073709551615ul)
#undef INTEGERS
#define FLOATING(type, smallest, largest, step)                                            \
    template <> struct _numeric_limits_impl<type> {                                        \
        static constexpr bool is_specialized = true;                                       \
        static constexpr type min() { return type(smallest); }                             \
        static constexpr type max() { return type(largest); }                              \
        static constexpr type lowest() { return type(-largest); }                          \
        static constexpr type epsilon() { return type(step); }                             \
        static constexpr type infinity() { return type(__builtin_inff()); }                \
        static constexpr type quiet_NaN() { return type(__builtin_nanf("")); }             \
    };
FLOATING(float, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f)
FLOATING(half, 0x1p-14f, 65504.0f, 0x1p-10f)
FLOATING(bfloat, 0x1p-126f, 0x1.fep127f, 0x1p-7f)
#undef FLOATING

namespace metal {
using ::_numeric_limits_impl;
template <typename T> struct numeric_limits : _numeric_limits_impl<T> {};
}  // namespace metal
