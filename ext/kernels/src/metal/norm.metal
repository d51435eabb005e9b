// LayerNorm and RMSNorm of rows, alone or after adding a residual, whose sum is written over x: every
// element of a row is one thread's in each pass. One threadgroup per row.

struct NormParameters {
    uint columns;
    uint flags;
    float epsilon;
    float weight_offset; // 1 for Gemma, whose weights are stored minus one
    RowStarts input;
    RowStarts residual;
};

// The sum stays in f32 until it is normalized, as on the CPU.
template <typename T>
struct ResidualSource {
    device const T *x;
    device const T *residual;
    bool aligned;

    float4 vector(uint i) const { return load4(x + i, aligned) + load4(residual + i, aligned); }
    float scalar(uint i) const { return float(x[i]) + float(residual[i]); }
};

// Squares around a first estimate of the mean, and how far that estimate is off: with a mean of 1e4
// and a spread of 1e-3 the rounding of the estimate would otherwise show in every output.
struct DeviationVisitor {
    float estimate;
    float squares;
    float drift;

    float4 vector(float4 v, uint) {
        const float4 d = v - splat(estimate);
        squares += total(d * d);
        drift += total(d);
        return v;
    }
    float scalar(float v, uint) {
        const float d = v - estimate;
        squares = fma(d, d, squares);
        drift += d;
        return v;
    }
};

// With SUMS it also stores what it normalizes: only in this last pass, since the ones before read x.
template <typename T, bool SUMS>
struct NormWriter {
    device const T *weight;
    device const T *bias;
    device T *out;
    device T *sums;
    float estimate;
    float drift;
    float inverse;
    float weight_offset;
    uint flags;

    float normalized(float v) const { return ((v - estimate) - drift) * inverse; }

    float4 vector(float4 v, uint i) const {
        const bool aligned = flags & ALIGNED;
        float4 y = four(normalized(v.x), normalized(v.y), normalized(v.z), normalized(v.w));
        if (flags & HAS_WEIGHT) {
            y = y * (load4(weight + i, aligned) + splat(weight_offset));
        }
        if (flags & HAS_BIAS) {
            y = y + load4(bias + i, aligned);
        }
        store4(out + i, y, aligned);
        if (SUMS) {
            store4(sums + i, v, aligned);
        }
        return v;
    }
    float scalar(float v, uint i) const {
        float y = normalized(v);
        if (flags & HAS_WEIGHT) {
            y *= float(weight[i]) + weight_offset;
        }
        if (flags & HAS_BIAS) {
            y += float(bias[i]);
        }
        out[i] = T(y);
        if (SUMS) {
            sums[i] = T(v);
        }
        return v;
    }
};

template <typename T, bool CENTERED, bool SUMS, typename Source>
static inline void normalize_row(
    thread const Source &source, thread Held &held, thread NormWriter<T, SUMS> &writer,
    constant NormParameters &p, threadgroup float *partials, thread const Lane &at
) {
    const float width = float(p.columns);
    writer.estimate = 0.0f;
    writer.drift = 0.0f;
    float variance;
    if (CENTERED) {
        SumVisitor sum = { 0.0f };
        visit(held, source, sum, p.columns, at);
        writer.estimate = group_sum(sum.sum, partials, at) / width;
        DeviationVisitor deviation = { writer.estimate, 0.0f, 0.0f };
        visit(held, source, deviation, p.columns, at);
        const float squares = group_sum(deviation.squares, partials + MAXIMUM_SIMDGROUPS, at);
        writer.drift = group_sum(deviation.drift, partials + 2 * MAXIMUM_SIMDGROUPS, at) / width;
        variance = squares / width - writer.drift * writer.drift;
        // Not max(), which would drop a NaN.
        variance = variance < 0.0f ? 0.0f : variance;
    } else {
        SquaresVisitor squares = { 0.0f };
        visit(held, source, squares, p.columns, at);
        variance = group_sum(squares.sum, partials, at) / width;
    }
    writer.inverse = 1.0f / sqrt(variance + p.epsilon);
    writer.weight_offset = p.weight_offset;
    writer.flags = p.flags;
    visit(held, source, writer, p.columns, at);
}

template <typename T, bool CENTERED>
static inline void norm_row(
    device const T *x, device const T *weight, device const T *bias, device T *out,
    constant NormParameters &p, threadgroup float *partials, thread const Lane &at
) {
    const RowSource<T> source = { x + row_start(p.input, at.row), (p.flags & ALIGNED) != 0 };
    Held held;
    hold(held, source, p.columns, at);
    NormWriter<T, false> writer;
    writer.weight = weight;
    writer.bias = bias;
    writer.out = out + ulong(at.row) * p.columns;
    normalize_row<T, CENTERED, false>(source, held, writer, p, partials, at);
}

template <typename T, bool CENTERED>
static inline void add_norm_row(
    device T *x, device const T *residual, device const T *weight, device const T *bias, device T *out,
    constant NormParameters &p, threadgroup float *partials, thread const Lane &at
) {
    device T *row = x + row_start(p.input, at.row);
    const ResidualSource<T> addends = { row, residual + row_start(p.residual, at.row), (p.flags & ALIGNED) != 0 };
    Held held;
    hold(held, addends, p.columns, at);
    NormWriter<T, true> writer;
    writer.weight = weight;
    writer.bias = bias;
    writer.out = out + ulong(at.row) * p.columns;
    writer.sums = row;
    normalize_row<T, CENTERED, true>(addends, held, writer, p, partials, at);
}

#define NORM_KERNEL(NAME, T, CENTERED)                                                 \
kernel void NAME(                                                                      \
    device const T *x            [[buffer(0)]],                                        \
    device const T *weight       [[buffer(1)]],                                        \
    device const T *bias         [[buffer(2)]],                                        \
    device T *out                [[buffer(3)]],                                        \
    constant NormParameters &p   [[buffer(4)]],                                        \
    LANE_ARGUMENTS                                                                     \
) {                                                                                    \
    threadgroup float partials[3 * MAXIMUM_SIMDGROUPS];                                \
    const Lane at = LANE_STRUCT;                                                       \
    norm_row<T, CENTERED>(x, weight, bias, out, p, partials, at);                      \
}

#define ADD_NORM_KERNEL(NAME, T, CENTERED)                                             \
kernel void NAME(                                                                      \
    device T *x                  [[buffer(0)]],                                        \
    device const T *residual     [[buffer(1)]],                                        \
    device const T *weight       [[buffer(2)]],                                        \
    device const T *bias         [[buffer(3)]],                                        \
    device T *out                [[buffer(4)]],                                        \
    constant NormParameters &p   [[buffer(5)]],                                        \
    LANE_ARGUMENTS                                                                     \
) {                                                                                    \
    threadgroup float partials[3 * MAXIMUM_SIMDGROUPS];                                \
    const Lane at = LANE_STRUCT;                                                       \
    add_norm_row<T, CENTERED>(x, residual, weight, bias, out, p, partials, at);        \
}

#define NORM_KERNELS(SUFFIX, T)                       \
NORM_KERNEL(layer_norm_##SUFFIX, T, true)             \
NORM_KERNEL(rms_norm_##SUFFIX, T, false)              \
ADD_NORM_KERNEL(add_layer_norm_##SUFFIX, T, true)     \
ADD_NORM_KERNEL(add_rms_norm_##SUFFIX, T, false)

NORM_KERNELS(f32, float)
NORM_KERNELS(f16, half)
#if defined(__HAVE_BFLOAT__)
NORM_KERNELS(bf16, bfloat)
#endif
