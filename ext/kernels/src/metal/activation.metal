// Activations, alone or as the gate of a gated product: act(gate) * up. Gate and up are rows of their
// own, so the two halves of one fused projection serve without a copy. A lane works on four columns
// of one row; the grid is (columns / 4, rows).

struct ActivationParameters {
    uint columns;
    uint flags;
    RowStarts gate;
    RowStarts up;
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
ACTIVATION_KERNEL(relu_squared_##SUFFIX, T, ReluSquared)    \
ACTIVATION_KERNEL(relu6_##SUFFIX, T, Relu6)                 \
ACTIVATION_KERNEL(sigmoid_##SUFFIX, T, Sigmoid)             \
ACTIVATION_KERNEL(tanh_##SUFFIX, T, Tanh)                   \
ACTIVATION_KERNEL(identity_##SUFFIX, T, Identity)

ACTIVATION_KERNELS(f32, float)
ACTIVATION_KERNELS(f16, half)
#if defined(__HAVE_BFLOAT__)
ACTIVATION_KERNELS(bf16, bfloat)
#endif

struct PointwiseParameters {
    uint columns;
    uint flags;
    float first;
    float second;
    float third;
    float fourth;
    RowStarts input;
    RowStarts other;
};

// Comparisons keep a NaN, which fmin and fmax would drop.
static inline float within(float x, float least, float most) {
    return x < least ? least : x > most ? most : x;
}

struct Clamp {
    static float apply(float x, float, constant PointwiseParameters &p) { return within(x, p.first, p.second); }
};

struct Xielu {
    // exp(z) - 1 - x. Near 0 the series, since exp(z) - 1 would lose what z has.
    static float curve(float z, float x) {
        if (fabs(z) > 0.5f) {
            return exp(z) - 1.0f - x;
        }
        float y = 1.0f / 40320.0f;
        y = fma(y, z, 1.0f / 5040.0f);
        y = fma(y, z, 1.0f / 720.0f);
        y = fma(y, z, 1.0f / 120.0f);
        y = fma(y, z, 1.0f / 24.0f);
        y = fma(y, z, 1.0f / 6.0f);
        y = fma(y, z, 0.5f);
        return fma(y, z * z, z - x);
    }

    static float apply(float x, float, constant PointwiseParameters &p) {
        const float line = p.third * x;
        if (x > 0.0f) {
            return fma(p.first * x, x, line);
        }
        return fma(curve(x > p.fourth ? p.fourth : x, x), p.second, line);
    }
};

struct ClampedGlu {
    static float apply(float gate, float up, constant PointwiseParameters &p) {
        gate = gate > p.first ? p.first : gate;
        return (within(up, -p.first, p.first) + 1.0f) * (gate / (1.0f + exp(-p.second * gate)));
    }
};

template <typename T, typename Function>
static inline void point(
    device const T *x, device const T *other, device T *out, constant PointwiseParameters &p, uint2 at
) {
    const uint i = 4 * at.x;
    const uint end = min(i + 4, p.columns);
    const bool gated = p.flags & IS_GATED;
    device const T *from = x + row_start(p.input, at.y);
    device const T *beside = other + (gated ? row_start(p.other, at.y) : 0);
    device T *to = out + ulong(at.y) * p.columns;
    for (uint k = i; k < end; k++) {
        to[k] = T(Function::apply(float(from[k]), gated ? float(beside[k]) : 0.0f, p));
    }
}

#define POINTWISE_KERNEL(NAME, T, FUNCTION)                                            \
kernel void NAME(                                                                      \
    device const T *x               [[buffer(0)]],                                     \
    device const T *other           [[buffer(1)]],                                     \
    device T *out                   [[buffer(2)]],                                     \
    constant PointwiseParameters &p [[buffer(3)]],                                     \
    uint2 at                        [[thread_position_in_grid]]                        \
) {                                                                                    \
    point<T, FUNCTION>(x, other, out, p, at);                                          \
}

#define POINTWISE_KERNELS(SUFFIX, T)                        \
POINTWISE_KERNEL(clamp_##SUFFIX, T, Clamp)                  \
POINTWISE_KERNEL(xielu_##SUFFIX, T, Xielu)                  \
POINTWISE_KERNEL(clamped_glu_##SUFFIX, T, ClampedGlu)

POINTWISE_KERNELS(f32, float)
POINTWISE_KERNELS(f16, half)
#if defined(__HAVE_BFLOAT__)
POINTWISE_KERNELS(bf16, bfloat)
#endif
