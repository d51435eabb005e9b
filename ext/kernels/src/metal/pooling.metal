// Mean over the tokens of each packed sequence, and L2 normalization of rows.

struct PoolParameters {
    uint columns;
    uint flags;
    uint row_stride; // elements between tokens
};

struct L2Parameters {
    uint columns;
    uint flags;
    float epsilon; // the norm is at least this, as in torch's normalize
    RowStarts input;
};

// Lanes of one pooling threadgroup: a simdgroup covers 32 x 4 columns of every eighth token.
constant constexpr uint POOL_SIMDGROUPS = 8;
constant constexpr uint POOL_LANES = 32;
constant constexpr uint POOL_COLUMNS = 4 * POOL_LANES;

template <typename T>
static inline float4 load_up_to4(device const T *from, uint available, bool aligned) {
    if (available >= 4) {
        return load4(from, aligned);
    }
    return four(float(from[0]), available > 1 ? float(from[1]) : 0.0f, available > 2 ? float(from[2]) : 0.0f, 0.0f);
}

template <typename T>
static inline void store_up_to4(device T *to, float4 v, uint available, bool aligned) {
    if (available >= 4) {
        store4(to, v, aligned);
        return;
    }
    to[0] = T(v.x);
    if (available > 1) {
        to[1] = T(v.y);
    }
    if (available > 2) {
        to[2] = T(v.z);
    }
}

// The grid is (column blocks, sequences), the threadgroup POOL_SIMDGROUPS * POOL_LANES wide. Sequence
// s is the tokens from boundaries[s] to boundaries[s + 1]; an empty one gives zeros.
template <typename T>
static inline void mean_pool_block(
    device const T *x, device const uint *boundaries, device T *out, constant PoolParameters &p,
    threadgroup float *partials, uint2 group, uint index
) {
    const uint lane = index % POOL_LANES;
    const uint part = index / POOL_LANES;
    const uint column = group.x * POOL_COLUMNS + 4 * lane;
    const uint available = column < p.columns ? p.columns - column : 0;
    const bool aligned = p.flags & ALIGNED;
    const uint first = boundaries[group.y];
    const uint last = boundaries[group.y + 1];

    float4 sum = splat(0.0f);
    if (available > 0) {
        for (uint token = first + part; token < last; token += POOL_SIMDGROUPS) {
            sum = sum + load_up_to4(x + ulong(token) * p.row_stride + column, available, aligned);
        }
    }
    threadgroup float *mine = partials + part * POOL_COLUMNS + 4 * lane;
    mine[0] = sum.x;
    mine[1] = sum.y;
    mine[2] = sum.z;
    mine[3] = sum.w;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part > 0 || available == 0) {
        return;
    }
    for (uint k = 1; k < POOL_SIMDGROUPS; k++) {
        threadgroup float *other = partials + k * POOL_COLUMNS + 4 * lane;
        sum = sum + four(float(other[0]), float(other[1]), float(other[2]), float(other[3]));
    }
    const float tokens = last > first ? float(last - first) : 1.0f;
    const float4 mean = four(sum.x / tokens, sum.y / tokens, sum.z / tokens, sum.w / tokens);
    store_up_to4(out + ulong(group.y) * p.columns + column, mean, available, aligned);
}

template <typename T>
struct DivisionWriter {
    device T *out;
    float divisor;
    bool aligned;

    float4 vector(float4 v, uint i) const {
        store4(out + i, four(v.x / divisor, v.y / divisor, v.z / divisor, v.w / divisor), aligned);
        return v;
    }
    float scalar(float v, uint i) const {
        out[i] = T(v / divisor);
        return v;
    }
};

template <typename T>
static inline void l2_normalize_row(
    device const T *x, device T *out, constant L2Parameters &p, threadgroup float *partials, thread const Lane &at
) {
    const bool aligned = p.flags & ALIGNED;
    const RowSource<T> source = { x + row_start(p.input, at.row), aligned };
    Held held;
    hold(held, source, p.columns, at);
    SquaresVisitor squares = { 0.0f };
    visit(held, source, squares, p.columns, at);
    const float norm = sqrt(group_sum(squares.sum, partials, at));
    // Not max(), which would drop a NaN.
    DivisionWriter<T> writer = { out + ulong(at.row) * p.columns, norm < p.epsilon ? p.epsilon : norm, aligned };
    visit(held, source, writer, p.columns, at);
}

#define POOLING_KERNELS(SUFFIX, T)                                                     \
kernel void mean_pool_##SUFFIX(                                                        \
    device const T *x             [[buffer(0)]],                                       \
    device const uint *boundaries [[buffer(1)]],                                       \
    device T *out                 [[buffer(2)]],                                       \
    constant PoolParameters &p    [[buffer(3)]],                                       \
    uint2 group                   [[threadgroup_position_in_grid]],                    \
    uint index                    [[thread_index_in_threadgroup]]                      \
) {                                                                                    \
    threadgroup float partials[POOL_SIMDGROUPS * POOL_COLUMNS];                        \
    mean_pool_block<T>(x, boundaries, out, p, partials, group, index);                 \
}                                                                                      \
kernel void l2_normalize_##SUFFIX(                                                     \
    device const T *x             [[buffer(0)]],                                       \
    device T *out                 [[buffer(1)]],                                       \
    constant L2Parameters &p      [[buffer(2)]],                                       \
    LANE_ARGUMENTS                                                                     \
) {                                                                                    \
    threadgroup float partials[MAXIMUM_SIMDGROUPS];                                    \
    const Lane at = LANE_STRUCT;                                                       \
    l2_normalize_row<T>(x, out, p, partials, at);                                      \
}

POOLING_KERNELS(f32, float)
POOLING_KERNELS(f16, half)
#if defined(__HAVE_BFLOAT__)
POOLING_KERNELS(bf16, bfloat)
#endif
