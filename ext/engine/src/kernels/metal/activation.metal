// Activations, alone or as the gate of a gated product: act(gate) * up. Gate and up are rows of their
// own, so the two halves of one fused projection serve without a copy. A lane works on four columns
// of one row; the grid is (columns / 4, rows).

struct ActivationParameters {
    uint columns;
    uint flags;
    RowStarts gate;
    RowStarts up;
};

// exp(z * z) * erfc(z) for 0 <= z, as a polynomial in 1 / (1 + z / 2); relative error below 5e-8
// before rounding.
static inline float scaled_complementary_error(float z) {
    const float t = 1.0f / fma(0.5f, z, 1.0f);
    float y = -0.059124596416950226f;
    y = fma(y, t, 0.2848469913005829f);
    y = fma(y, t, -0.48776450753211975f);
    y = fma(y, t, 0.27871477603912354f);
    y = fma(y, t, -0.027073051780462265f);
    y = fma(y, t, 0.2028767466545105f);
    y = fma(y, t, 0.24305561184883118f);
    y = fma(y, t, 0.28238195180892944f);
    y = fma(y, t, 0.282086044549942f);
    return y * t;
}

// Half of erfc(|x| / sqrt(2)): the share of a normal distribution above |x|, exact in the far tail,
// too, where 1 + erf would cancel. The rounding of the square is made good after exp.
static inline float upper_tail(float x) {
    const float size = fmin(fabs(x), 15.0f);
    const float square = size * size;
    const float rounding = fma(size, size, -square);
    const float density = exp(-0.5f * square) * fma(-0.5f, rounding, 1.0f);
    return 0.5f * density * scaled_complementary_error(size * 0.70710678118654752f);
}

struct GeluErf {
    static float apply(float x) {
        const float tail = upper_tail(x);
        return x * (x < 0.0f ? tail : 1.0f - tail);
    }
};

// 0.5 * (1 + tanh(u)) is the logistic function of 2u, which needs no tanh and does not cancel.
struct GeluTanh {
    static float apply(float x) {
        const float u = 0.7978845608028654f * fma(0.044715f * x * x, x, x);
        return x / (1.0f + exp(-2.0f * u));
    }
};

struct QuickGelu {
    static float apply(float x) { return x / (1.0f + exp(-1.702f * x)); }
};

struct Silu {
    static float apply(float x) { return x / (1.0f + exp(-x)); }
};

struct Relu {
    static float apply(float x) { return x < 0.0f ? 0.0f : x; }
};

struct Sigmoid {
    static float apply(float x) { return 1.0f / (1.0f + exp(-x)); }
};

struct Tanh {
    static float apply(float x) { return tanh(x); }
};

// For a product of two tensors without an activation.
struct Identity {
    static float apply(float x) { return x; }
};

template <typename T, typename Activation>
static inline void activate(
    device const T *gate, device const T *up, device T *out, constant ActivationParameters &p, uint2 at
) {
    const uint i = 4 * at.x;
    if (i >= p.columns) {
        return;
    }
    const bool gated = p.flags & IS_GATED;
    const bool aligned = p.flags & ALIGNED;
    device const T *gate_row = gate + row_start(p.gate, at.y);
    device const T *up_row = up + (gated ? row_start(p.up, at.y) : 0);
    device T *to = out + ulong(at.y) * p.columns;
    if (p.columns - i >= 4) {
        const float4 v = load4(gate_row + i, aligned);
        float4 y = four(Activation::apply(v.x), Activation::apply(v.y), Activation::apply(v.z), Activation::apply(v.w));
        if (gated) {
            y = y * load4(up_row + i, aligned);
        }
        store4(to + i, y, aligned);
        return;
    }
    for (uint k = i; k < p.columns; k++) {
        const float y = Activation::apply(float(gate_row[k]));
        to[k] = T(gated ? y * float(up_row[k]) : y);
    }
}

#define ACTIVATION_KERNEL(NAME, T, ACTIVATION)                                         \
kernel void NAME(                                                                      \
    device const T *gate             [[buffer(0)]],                                    \
    device const T *up               [[buffer(1)]],                                    \
    device T *out                    [[buffer(2)]],                                    \
    constant ActivationParameters &p [[buffer(3)]],                                    \
    uint2 at                         [[thread_position_in_grid]]                       \
) {                                                                                    \
    activate<T, ACTIVATION>(gate, up, out, p, at);                                     \
}

#define ACTIVATION_KERNELS(SUFFIX, T)                       \
ACTIVATION_KERNEL(gelu_erf_##SUFFIX, T, GeluErf)            \
ACTIVATION_KERNEL(gelu_tanh_##SUFFIX, T, GeluTanh)          \
ACTIVATION_KERNEL(quick_gelu_##SUFFIX, T, QuickGelu)        \
ACTIVATION_KERNEL(silu_##SUFFIX, T, Silu)                   \
ACTIVATION_KERNEL(relu_##SUFFIX, T, Relu)                   \
ACTIVATION_KERNEL(sigmoid_##SUFFIX, T, Sigmoid)             \
ACTIVATION_KERNEL(tanh_##SUFFIX, T, Tanh)                   \
ACTIVATION_KERNEL(identity_##SUFFIX, T, Identity)

ACTIVATION_KERNELS(f32, float)
ACTIVATION_KERNELS(f16, half)
#if defined(__HAVE_BFLOAT__)
ACTIVATION_KERNELS(bf16, bfloat)
#endif
