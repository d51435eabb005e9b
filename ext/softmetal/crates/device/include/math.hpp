// Conversions, vectors, matrices and functions of numbers.
#pragma once

namespace metal {

// Vectors from scalars and vectors

template <typename T, typename V>
METAL_FUNC constexpr void append(V &to, int &at, const T &value) {
    if constexpr (vec_elements<T>::value == 0) {
        to[at++] = static_cast<typename vec_elements<V>::type>(value);
    } else {
        for (int i = 0; i < int(vec_elements<T>::value); i++) {
            to[at++] = static_cast<typename vec_elements<V>::type>(value[i]);
        }
    }
}

template <typename V, typename T>
METAL_FUNC V make(const T &value) {
    if constexpr (vec_elements<T>::value == 0) {
        return V(static_cast<typename vec_elements<V>::type>(value));
    } else {
        static_assert(vec_elements<T>::value == vec_elements<V>::value, "another number of elements");
        return __builtin_convertvector(value, V);
    }
}
template <typename V, typename... T, typename = enable_if_t<(sizeof...(T) > 1)>>
METAL_FUNC V make(const T &...values) {
    V result;
    int at = 0;
    (append(result, at, values), ...);
    return result;
}

// static_cast, and what it does not do: between half and bfloat, and between vectors.
template <typename To, typename From>
METAL_FUNC constexpr To convert(From &&value) {
    typedef remove_cv_t<remove_reference_t<From>> F;
    if constexpr ((is_same_v<To, half> && is_same_v<F, bfloat>) || (is_same_v<To, bfloat> && is_same_v<F, half>)) {
        return static_cast<To>(static_cast<float>(value));
    } else if constexpr (vec_elements<To>::value != 0 && vec_elements<F>::value != 0) {
        return __builtin_convertvector(value, To);
    } else {
        return static_cast<To>(static_cast<From &&>(value));
    }
}

// (float4)x is written cast<float4>{}->*x, which binds in the same way.
template <typename V> struct cast {};
template <typename V, typename T>
METAL_FUNC V operator->*(cast<V>, const T &value) { return make<V>(value); }

template <typename To, typename From>
METAL_FUNC constexpr To as_type(From from) { return __builtin_bit_cast(To, from); }

template <typename T, int C, int R>
struct matrix {
    vec<T, R> columns[C];
    matrix() = default;
    METAL_FUNC explicit matrix(T diagonal) {
        for (int c = 0; c < C; c++) {
            columns[c] = vec<T, R>(T(0));
            columns[c][c] = diagonal;
        }
    }
    template <typename U>
    METAL_FUNC explicit matrix(const matrix<U, C, R> &other) {
        for (int c = 0; c < C; c++) {
            columns[c] = __builtin_convertvector(other.columns[c], vec<T, R>);
        }
    }
    METAL_FUNC vec<T, R> &operator[](int c) { return columns[c]; }
    METAL_FUNC const vec<T, R> &operator[](int c) const { return columns[c]; }
};
#define MATRICES(T)                                                                                    \
    typedef matrix<T, 2, 2> T##2x2; typedef matrix<T, 2, 3> T##2x3; typedef matrix<T, 2, 4> T##2x4;    \
    typedef matrix<T, 3, 2> T##3x2; typedef matrix<T, 3, 3> T##3x3; typedef matrix<T, 3, 4> T##3x4;    \
    typedef matrix<T, 4, 2> T##4x2; typedef matrix<T, 4, 3> T##4x3; typedef matrix<T, 4, 4> T##4x4;
FLOATS(MATRICES)
#undef MATRICES
template <typename T, int C, int R>
METAL_FUNC vec<T, C> operator*(vec<T, R> row, const matrix<T, C, R> &m) {
    vec<T, C> result;
    for (int c = 0; c < C; c++) {
        T sum = row[0] * m.columns[c][0];
        for (int r = 1; r < R; r++) sum += row[r] * m.columns[c][r];
        result[c] = sum;
    }
    return result;
}

// Mathematics: for float, half and their vectors, computed in float

#define MAP1(name, expression)                                                          \
    METAL_FUNC float name(float x) { return expression; }                               \
    METAL_FUNC half name(half h) { float x = float(h); return half(expression); }       \
    template <typename T, int N> METAL_FUNC vec<T, N> name(vec<T, N> v) {               \
        vec<T, N> r; for (int i = 0; i < N; i++) r[i] = name(T(v[i])); return r; }
#define MAP2(name, expression)                                                                                 \
    METAL_FUNC float name(float x, float y) { return expression; }                                             \
    METAL_FUNC half name(half g, half h) { float x = float(g), y = float(h); return half(expression); }        \
    template <typename T, int N> METAL_FUNC vec<T, N> name(vec<T, N> v, vec<T, N> w) {                         \
        vec<T, N> r; for (int i = 0; i < N; i++) r[i] = name(T(v[i]), T(w[i])); return r; }
#define ALL1(X)                                                                                                   \
    X(exp, __builtin_expf(x)) X(exp2, __builtin_exp2f(x)) X(exp10, __builtin_expf(x * 2.302585092994046f))         \
    X(log, __builtin_logf(x)) X(log2, __builtin_log2f(x)) X(log10, __builtin_log10f(x))                            \
    X(sin, __builtin_sinf(x)) X(cos, __builtin_cosf(x)) X(tan, __builtin_tanf(x))                                  \
    X(asin, __builtin_asinf(x)) X(acos, __builtin_acosf(x)) X(atan, __builtin_atanf(x))                            \
    X(sinh, __builtin_sinhf(x)) X(cosh, __builtin_coshf(x)) X(tanh, __builtin_tanhf(x))                            \
    X(asinh, __builtin_asinhf(x)) X(acosh, __builtin_acoshf(x)) X(atanh, __builtin_atanhf(x))                      \
    X(sqrt, __builtin_sqrtf(x)) X(rsqrt, 1.0f / __builtin_sqrtf(x)) X(fabs, __builtin_fabsf(x))                    \
    X(floor, __builtin_floorf(x)) X(ceil, __builtin_ceilf(x)) X(trunc, __builtin_truncf(x))                        \
    X(round, __builtin_roundf(x)) X(rint, __builtin_nearbyintf(x)) X(fract, x - __builtin_floorf(x))
#define ALL2(X)                                                                                                   \
    X(pow, __builtin_powf(x, y)) X(powr, __builtin_powf(x, y)) X(fmod, __builtin_fmodf(x, y))                      \
    X(atan2, __builtin_atan2f(x, y)) X(fmin, __builtin_fminf(x, y)) X(fmax, __builtin_fmaxf(x, y))                 \
    X(divide, x / y) X(copysign, __builtin_copysignf(x, y)) X(fdim, __builtin_fdimf(x, y))
ALL1(MAP1)
ALL2(MAP2)
// Only float there.
namespace fast {
#define FLOAT1(name, expression)                                               \
    METAL_FUNC float name(float x) { return expression; }                      \
    template <int N> METAL_FUNC vec<float, N> name(vec<float, N> v) {          \
        vec<float, N> r; for (int i = 0; i < N; i++) r[i] = name(float(v[i])); return r; }
#define FLOAT2(name, expression) METAL_FUNC float name(float x, float y) { return expression; }
ALL1(FLOAT1)
ALL2(FLOAT2)
METAL_FUNC float min(float x, float y) { return __builtin_fminf(x, y); }
METAL_FUNC float max(float x, float y) { return __builtin_fmaxf(x, y); }
METAL_FUNC float clamp(float x, float low, float high) { return min(max(x, low), high); }
}  // namespace fast
namespace precise = fast;

METAL_FUNC float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
METAL_FUNC half fma(half a, half b, half c) { return half(__builtin_fmaf(float(a), float(b), float(c))); }
template <typename T, int N>
METAL_FUNC vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r[i] = fma(T(a[i]), T(b[i]), T(c[i]));
    return r;
}
METAL_FUNC float sincos(float x, float &cosine) { cosine = __builtin_cosf(x); return __builtin_sinf(x); }

#define ORDER(type)                                                               \
    METAL_FUNC constexpr type min(type a, type b) { return b < a ? b : a; }       \
    METAL_FUNC constexpr type max(type a, type b) { return a < b ? b : a; }       \
    METAL_FUNC constexpr type clamp(type x, type low, type high) { return min(max(x, low), high); }
NUMBERS(ORDER)
METAL_FUNC float min(float a, float b) { return __builtin_fminf(a, b); }
METAL_FUNC float max(float a, float b) { return __builtin_fmaxf(a, b); }
METAL_FUNC half min(half a, half b) { return half(__builtin_fminf(float(a), float(b))); }
METAL_FUNC half max(half a, half b) { return half(__builtin_fmaxf(float(a), float(b))); }
METAL_FUNC float clamp(float x, float low, float high) { return min(max(x, low), high); }
METAL_FUNC half clamp(half x, half low, half high) { return min(max(x, low), high); }
#define VECTOR_ORDER(name)                                              \
    template <typename T, int N> METAL_FUNC vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
        vec<T, N> r; for (int i = 0; i < N; i++) r[i] = name(T(a[i]), T(b[i])); return r; }
VECTOR_ORDER(min)
VECTOR_ORDER(max)

METAL_FUNC float abs(float x) { return __builtin_fabsf(x); }
METAL_FUNC half abs(half x) { return half(__builtin_fabsf(float(x))); }
METAL_FUNC int abs(int x) { return x < 0 ? -x : x; }
METAL_FUNC uint abs(uint x) { return x; }
METAL_FUNC long abs(long x) { return x < 0 ? -x : x; }
METAL_FUNC uchar abs(uchar x) { return x; }
template <typename T, int N> METAL_FUNC vec<T, N> abs(vec<T, N> v) {
    vec<T, N> r; for (int i = 0; i < N; i++) r[i] = abs(T(v[i])); return r; }
METAL_FUNC float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x != x ? 0.0f : x; }
METAL_FUNC half sign(half x) { return half(sign(float(x))); }
METAL_FUNC bool isnan(float x) { return x != x; }
METAL_FUNC bool isnan(half x) { return x != x; }
METAL_FUNC bool isinf(float x) { return __builtin_isinf(x); }
METAL_FUNC bool isfinite(float x) { return __builtin_isfinite(x); }
METAL_FUNC int clz(int x) { return x == 0 ? 32 : __builtin_clz(uint(x)); }
METAL_FUNC uint clz(uint x) { return x == 0 ? 32 : __builtin_clz(x); }
METAL_FUNC uint ctz(uint x) { return x == 0 ? 32 : __builtin_ctz(x); }
METAL_FUNC uint popcount(uint x) { return __builtin_popcount(x); }
METAL_FUNC uint mulhi(uint a, uint b) { return uint(ulong(a) * b >> 32); }
template <typename T> METAL_FUNC T select(T a, T b, bool c) { return c ? b : a; }

template <typename T, int N>
METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) {
    T sum = a[0] * b[0];
    for (int i = 1; i < N; i++) sum += a[i] * b[i];
    return sum;
}

}  // namespace metal
