// A product for each head: x is [tokens, heads, width], the matrices [heads, width, columns], and the result [tokens,
// heads, columns].

struct HeadParameters {
    uint tokens;
    uint heads;
    uint width;
    uint columns;
    uint x_token;     // strides in elements
    uint x_head;
    uint matrix_head;
    uint matrix_row;
    uint flags;
};

// A threadgroup makes SIDE tokens of SIDE columns of a head, each of its four simdgroups eight tokens; in each step SIDE
// elements of the width lie in threadgroup memory. Rows are four elements longer than they need be, to begin in different
// banks.
constant constexpr uint SIDE = 32;
constant constexpr uint SIDE_STRIDE = SIDE + 4;
constant constexpr uint HEAD_LANES = 128;

// SIDE elements of SIDE rows, of which there are `rows`, `columns` wide; what lies beyond is zeros.
template <typename T>
static inline void load_square(
    device const T *from, uint stride, uint rows, uint columns, bool aligned, threadgroup float *square, uint index
) {
    for (uint i = index; i < SIDE * SIDE / 4; i += HEAD_LANES) {
        const uint row = i / (SIDE / 4);
        const uint column = 4 * (i % (SIDE / 4));
        const float4 v = row < rows ? four_of(from + ulong(row) * stride, column, columns, aligned) : splat(0.0f);
        threadgroup float *to = square + SIDE_STRIDE * row + column;
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    }
}

// The grid is (columns / SIDE * heads, tokens / SIDE).
template <typename T>
static inline void multiply_heads(
    device const T *x, device const T *matrices, device T *out, constant HeadParameters &p, threadgroup float *left,
    threadgroup float *right, uint2 group, uint index, uint simdgroup
) {
    const uint head = group.x % p.heads;
    const uint first_column = group.x / p.heads * SIDE;
    const uint first_token = group.y * SIDE;
    const bool aligned = p.flags & ALIGNED;
    device const T *rows = x + ulong(first_token) * p.x_token + ulong(head) * p.x_head;
    device const T *matrix = matrices + ulong(head) * p.matrix_head + first_column;
    simdgroup_float8x8 sums[SIDE / 8];
    #pragma clang loop unroll(full)
    for (uint j = 0; j < SIDE / 8; j++) {
        sums[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint start = 0; start < p.width; start += SIDE) {
        // The squares of the step before are no longer read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_square(rows + start, p.x_token, p.tokens - first_token, p.width - start, aligned, left, index);
        load_square(
            matrix + ulong(start) * p.matrix_row, p.matrix_row, p.width - start, p.columns - first_column, aligned, right,
            index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma clang loop unroll(full)
        for (uint k = 0; k < SIDE; k += 8) {
            simdgroup_float8x8 mine;
            simdgroup_load(mine, left + 8 * simdgroup * SIDE_STRIDE + k, SIDE_STRIDE);
            #pragma clang loop unroll(full)
            for (uint j = 0; j < SIDE / 8; j++) {
                simdgroup_float8x8 theirs;
                simdgroup_load(theirs, right + k * SIDE_STRIDE + 8 * j, SIDE_STRIDE);
                simdgroup_multiply_accumulate(sums[j], mine, theirs, sums[j]);
            }
        }
    }
    // The results take the place of a simdgroup's own rows.
    simdgroup_barrier(mem_flags::mem_threadgroup);
    #pragma clang loop unroll(full)
    for (uint j = 0; j < SIDE / 8; j++) {
        simdgroup_store(sums[j], left + 8 * simdgroup * SIDE_STRIDE + 8 * j, SIDE_STRIDE);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = index; i < SIDE * SIDE; i += HEAD_LANES) {
        const uint token = first_token + i / SIDE;
        const uint column = first_column + i % SIDE;
        if (token < p.tokens && column < p.columns) {
            out[(ulong(token) * p.heads + head) * p.columns + column] = T(left[i / SIDE * SIDE_STRIDE + i % SIDE]);
        }
    }
}

#define HEAD_KERNEL(SUFFIX, T)                                                              \
kernel void head_product_##SUFFIX(                                                          \
    device const T *x           [[buffer(0)]],                                              \
    device const T *matrices    [[buffer(1)]],                                              \
    device T *out               [[buffer(2)]],                                              \
    constant HeadParameters &p  [[buffer(3)]],                                              \
    uint2 group                 [[threadgroup_position_in_grid]],                           \
    uint index                  [[thread_index_in_threadgroup]],                            \
    uint simdgroup              [[simdgroup_index_in_threadgroup]]                          \
) {                                                                                         \
    threadgroup float left[SIDE * SIDE_STRIDE];                                             \
    threadgroup float right[SIDE * SIDE_STRIDE];                                            \
    multiply_heads<T>(x, matrices, out, p, left, right, group, index, simdgroup);           \
}

HEAD_KERNEL(f32, float)
HEAD_KERNEL(f16, half)
#if defined(__HAVE_BFLOAT__)
HEAD_KERNEL(bf16, bfloat)
#endif
