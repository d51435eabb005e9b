// A few rows times one to three matrices: what reading the weights costs, and little else. ELEMENT, ROWS
// (1, 2 or 4), GATED and SHARERS (a divisor of 8) are defined at run time.

#define UNROLLED 4

__device__ __forceinline__ RawEight stream_eight(const ELEMENT *from) {
    RawEight out;
    #pragma unroll
    for (int i = 0; i < sizeof(RawEight) / 16; i++) { out.words[i] = stream_sixteen((const char *)from + 16 * i); }
    return out;
}

template <typename Rows>
__device__ __forceinline__ void add_products(const Product &p, Sums &sums, const Eight &w, const Eight (&x)[ROWS]) {
    #pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (Rows::skips(p, row)) { break; }
        #pragma unroll
        for (int i = 0; i < 8; i++) { sums.v[row] = fmaf(w.v[i], x[row].v[i], sums.v[row]); }
    }
}

// A part of a row's weights: UNROLLED pieces of each lane.
struct Pieces {
    RawEight raw[UNROLLED];
};
__device__ __forceinline__ Pieces stream_pieces(const ELEMENT *row, uint begin, uint inputs) {
    Pieces out;
    #pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
        out.raw[u] = {};
        if (begin + u * 256 < inputs) { out.raw[u] = stream_eight(row + begin + u * 256); }
    }
    return out;
}

// SHARERS warps for each output, so that thread blocks are small beside what is to be done.
template <typename Rows>
__device__ __forceinline__ void multiply(const Product &p, const Rows &rows) {
    __shared__ Sums parts[8][1 + GATED];
    const uint warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint output = blockIdx.x * (8 / SHARERS) + warp / SHARERS;
    const bool there = output < p.outputs;
    let_next_begin();
    const Place place = place_of(p, there ? output : 0);
    const ELEMENT *weight = p.weights[place.matrix] + ulong(place.row) * p.inputs;
    const uint end = there ? p.inputs : 0;
    uint begin = warp % SHARERS * (256 * UNROLLED) + lane * 8;
    Pieces pieces = stream_pieces(weight, begin, end);
#if GATED
    const ELEMENT *second = p.weights[1] + ulong(place.row) * p.inputs;
    Pieces others = stream_pieces(second, begin, end);
#endif
    await_previous();
    Sums sums = {}, seconds = {};
    while (begin < end) {
        #pragma unroll
        for (int u = 0; u < UNROLLED; u++) {
            if (begin + u * 256 >= end) { break; }
            Eight x[ROWS];
            #pragma unroll
            for (uint row = 0; row < ROWS; row++) {
                if (Rows::skips(p, row)) { break; }
                x[row] = widen_eight(rows.x(p, row) + begin + u * 256);
            }
            add_products<Rows>(p, sums, widen_raw(pieces.raw[u], ELEMENT()), x);
#if GATED
            add_products<Rows>(p, seconds, widen_raw(others.raw[u], ELEMENT()), x);
#endif
        }
        begin += 256 * UNROLLED * SHARERS;
        pieces = stream_pieces(weight, begin, end);
#if GATED
        others = stream_pieces(second, begin, end);
#endif
    }
    __syncwarp();
    add_up(sums);
#if GATED
    add_up(seconds);
#endif
    if (SHARERS > 1) {
        if (lane == 0) {
            parts[warp][0] = sums;
            if (GATED) { parts[warp][GATED] = seconds; }
        }
        __syncthreads();
        #pragma unroll
        for (int other = 1; other < SHARERS; other++) {
            #pragma unroll
            for (int row = 0; row < ROWS; row++) {
                sums.v[row] += parts[(warp + other) % 8][0].v[row];
                if (GATED) { seconds.v[row] += parts[(warp + other) % 8][GATED].v[row]; }
            }
        }
    }
    if (there && lane == 0 && warp % SHARERS == 0) { finish_rows(p, rows, output, place, sums, seconds); }
}

extern "C" __global__ void __launch_bounds__(256) product(const __grid_constant__ Product p) { multiply(p, NextRows()); }

extern "C" __global__ void __launch_bounds__(256) product_of_experts(
    const __grid_constant__ Product all, const __grid_constant__ Choices choices
) {
    await_previous();
    Product p = all;
    ChosenRows rows;
    if (rows.take(p, choices)) { multiply(p, rows); }
}
