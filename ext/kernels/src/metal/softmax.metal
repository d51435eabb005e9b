// softmax(scale * x + additive) over the elements a row keeps. The masks decide which those are: a
// masked element is left out of every sum and comes out as 0, whatever x holds there, and a row that
// keeps nothing is all 0. One threadgroup per row.

struct SoftmaxParameters {
    uint columns;
    uint flags;
    float scale;
    RowStarts input;
    RowStarts additive;
    RowStarts boolean;
    RowStarts lengths;
};

// An additive mask hides an element by -infinity or by the lowest finite number of its type.
static inline float lowest_finite(device const float *) { return -3.402823466e38f; }
static inline float lowest_finite(device const half *) { return -65504.0f; }
#if defined(__HAVE_BFLOAT__)
static inline float lowest_finite(device const bfloat *) { return -3.3895314e38f; }
#endif

template <typename T>
struct ScoreSource {
    device const T *x;
    device const T *additive;
    device const uchar *boolean;
    uint length; // elements from here on are masked
    float scale;
    uint flags;

    bool keeps(float bias, uint i) const {
        if (i >= length || ((flags & HAS_BOOLEAN) && boolean[i] == 0)) {
            return false;
        }
        return !(flags & HAS_ADDITIVE) || !(bias <= lowest_finite(x));
    }
    bool keeps(uint i) const {
        return keeps(flags & HAS_ADDITIVE ? float(additive[i]) : 0.0f, i);
    }
    float score(float v, float bias, uint i) const {
        return keeps(bias, i) ? fma(v, scale, bias) : -INFINITY;
    }

    float4 vector(uint i) const {
        const bool aligned = flags & ALIGNED;
        const float4 v = load4(x + i, aligned);
        const float4 bias = flags & HAS_ADDITIVE ? load4(additive + i, aligned) : splat(0.0f);
        return four(score(v.x, bias.x, i), score(v.y, bias.y, i + 1), score(v.z, bias.z, i + 2),
                    score(v.w, bias.w, i + 3));
    }
    float scalar(uint i) const {
        return score(float(x[i]), flags & HAS_ADDITIVE ? float(additive[i]) : 0.0f, i);
    }
};

struct MaximumVisitor {
    float maximum;

    float4 vector(float4 v, uint) {
        maximum = fmax(maximum, fmax(fmax(v.x, v.y), fmax(v.z, v.w)));
        return v;
    }
    float scalar(float v, uint) {
        maximum = fmax(maximum, v);
        return v;
    }
};

struct ExponentialVisitor {
    float maximum;
    float sum;

    float4 vector(float4 v, uint) {
        const float4 e = four(exp(v.x - maximum), exp(v.y - maximum), exp(v.z - maximum), exp(v.w - maximum));
        sum += total(e);
        return e;
    }
    float scalar(float v, uint) {
        const float e = exp(v - maximum);
        sum += e;
        return e;
    }
};

// Held values are exponentials by now; what was not held is computed again by `ExponentialSource`.
template <typename T>
struct ExponentialSource {
    thread const ScoreSource<T> *scores;
    float maximum;

    float4 vector(uint i) const {
        const float4 v = scores->vector(i);
        return four(exp(v.x - maximum), exp(v.y - maximum), exp(v.z - maximum), exp(v.w - maximum));
    }
    float scalar(uint i) const { return exp(scores->scalar(i) - maximum); }
};

template <typename T>
struct ShareWriter {
    device T *out;
    float sum;
    bool aligned;

    float4 vector(float4 v, uint i) const {
        store4(out + i, four(v.x / sum, v.y / sum, v.z / sum, v.w / sum), aligned);
        return v;
    }
    float scalar(float v, uint i) const {
        out[i] = T(v / sum);
        return v;
    }
};

// Where no share can be computed: zeros where nothing is kept, else the reference's NaN for all that is.
template <typename T>
static inline void write_undefined_row(
    thread const ScoreSource<T> &source, device T *out, uint columns, thread const Lane &at
) {
    for (uint i = at.index; i < columns; i += at.count) {
        out[i] = T(source.keeps(i) ? NAN : 0.0f);
    }
}

template <typename T>
static inline void softmax_row(
    device const T *x, device const T *additive, device const uchar *boolean, device const uint *lengths,
    device T *out, constant SoftmaxParameters &p, threadgroup float *partials, thread const Lane &at
) {
    ScoreSource<T> source;
    source.x = x + row_start(p.input, at.row);
    source.additive = additive + (p.flags & HAS_ADDITIVE ? row_start(p.additive, at.row) : 0);
    source.boolean = boolean + (p.flags & HAS_BOOLEAN ? row_start(p.boolean, at.row) : 0);
    source.length = p.flags & HAS_LENGTHS ? lengths[row_start(p.lengths, at.row)] : p.columns;
    source.scale = p.scale;
    source.flags = p.flags;
    device T *to = out + ulong(at.row) * p.columns;

    Held held;
    hold(held, source, p.columns, at);
    MaximumVisitor maximum = { -INFINITY };
    visit(held, source, maximum, p.columns, at);
    const float highest = group_max(maximum.maximum, partials, at);

    ExponentialVisitor exponential = { highest, 0.0f };
    visit(held, source, exponential, p.columns, at);
    const float sum = group_sum(exponential.sum, partials + MAXIMUM_SIMDGROUPS, at);
    // No kept element is above -infinity, or one is NaN or +infinity: NaN is no maximum, yet it is in the sum.
    if (highest == -INFINITY || sum != sum) {
        write_undefined_row(source, to, p.columns, at);
        return;
    }
    const ExponentialSource<T> exponentials = { &source, highest };
    ShareWriter<T> writer = { to, sum, (p.flags & ALIGNED) != 0 };
    visit(held, exponentials, writer, p.columns, at);
}

#define SOFTMAX_KERNEL(NAME, T)                                                        \
kernel void NAME(                                                                      \
    device const T *x             [[buffer(0)]],                                       \
    device const T *additive      [[buffer(1)]],                                       \
    device const uchar *boolean   [[buffer(2)]],                                       \
    device const uint *lengths    [[buffer(3)]],                                       \
    device T *out                 [[buffer(4)]],                                       \
    constant SoftmaxParameters &p [[buffer(5)]],                                       \
    LANE_ARGUMENTS                                                                     \
) {                                                                                    \
    threadgroup float partials[2 * MAXIMUM_SIMDGROUPS];                                \
    const Lane at = LANE_STRUCT;                                                       \
    softmax_row<T>(x, additive, boolean, lengths, out, p, partials, at);               \
}

SOFTMAX_KERNEL(softmax_f32, float)
SOFTMAX_KERNEL(softmax_f16, half)
#if defined(__HAVE_BFLOAT__)
SOFTMAX_KERNEL(softmax_bf16, bfloat)
#endif
