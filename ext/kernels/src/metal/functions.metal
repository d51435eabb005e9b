// Activations of one number, for the kernels that apply them to tensors and for those of products.

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

struct ReluSquared {
    static float apply(float x) { return x < 0.0f ? 0.0f : x * x; }
};

struct Relu6 {
    static float apply(float x) { return x < 0.0f ? 0.0f : (x > 6.0f ? 6.0f : x); }
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

// log(1 + exp(x)), for small ones, too.
static inline float softplus(float x) {
    const float small = exp(-fabs(x));
    const float sum = 1.0f + small;
    const float rest = sum == 1.0f ? small : log(sum) * small / (sum - 1.0f);
    return (x > 0.0f ? x : 0.0f) + rest;
}

// By number, as a parameter block names it.
static inline float activated(float x, uint kind) {
    switch (kind) {
        case 0: return GeluErf::apply(x);
        case 1: return GeluTanh::apply(x);
        case 2: return QuickGelu::apply(x);
        case 3: return Silu::apply(x);
        case 4: return Relu::apply(x);
        case 5: return Tanh::apply(x);
        case 6: return Sigmoid::apply(x);
        case 7: return ReluSquared::apply(x);
        case 8: return Relu6::apply(x);
        default: return x;
    }
}

