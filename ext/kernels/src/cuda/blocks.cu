// Matrices of quantized blocks, GGUF's and others: products with a few rows, and their expansion. ELEMENT, KIND, BLOCK_BYTES,
// BLOCK_ELEMENTS, ROWS and GATED are defined at run time.

// More in flight would take the registers of other warps.
constexpr int UNROLLED = ROWS <= 2 ? 2 : 1;

#define HAS_MINIMUM \
    (KIND == Q4_1 || KIND == Q5_1 || KIND == Q2_K || KIND == Q4_K || KIND == Q5_K || ABOVE_MINIMUM)

// Adds the products of a lane's elements, whose block begins at `start` of each row of x.
template <typename Rows>
__device__ __forceinline__ void add_products(
    const Product &p, const Rows &rows, const Run (&runs)[2], uint start, Sums &sums
) {
    #pragma unroll
    for (int run = 0; run < 2; run++) {
        #pragma unroll
        for (uint row = 0; row < ROWS; row++) {
            if (Rows::skips(p, row)) { break; }
            const ELEMENT *from = rows.x(p, row) + start + runs[run].first;
            float product = 0.0f, sum = 0.0f;
            #pragma unroll
            for (int part = 0; part < 2; part++) {
                const Eight x = widen_eight(from + 8 * part);
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    product = fmaf(runs[run].codes[8 * part + i], x.v[i], product);
                    if (HAS_MINIMUM) { sum += x.v[i]; }
                }
            }
            sums.v[row] = fmaf(runs[run].scale, product, sums.v[row]);
            if (HAS_MINIMUM) { sums.v[row] = fmaf(runs[run].minimum, sum, sums.v[row]); }
        }
    }
}

// One warp per output.
template <typename Rows>
__device__ __forceinline__ void multiply(const Product &p, const Rows &rows) {
    const uint output = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_begin();
    lay_out_levels();
    await_previous();
    if (output >= p.outputs) {
        return;
    }
    const ulong row_bytes = ulong(p.inputs / BLOCK_ELEMENTS) * BLOCK_BYTES;
    const Place place = place_of(p, output);
    const uchar *weight = p.weights[place.matrix] + place.row * row_bytes;
#if GATED
    const uchar *second = p.weights[1] + place.row * row_bytes;
#endif
    Sums sums = {}, seconds = {};
    #pragma unroll UNROLLED
    for (uint at = lane; at < p.inputs / PART; at += 32) {
        Run runs[2];
        take(weight + ulong(at / 8) * GROUP_BYTES, at % 8, runs);
        add_products(p, rows, runs, at / 8 * 256, sums);
#if GATED
        take(second + ulong(at / 8) * GROUP_BYTES, at % 8, runs);
        add_products(p, rows, runs, at / 8 * 256, seconds);
#endif
    }
    __syncwarp();
    add_up(sums);
    if (GATED) { add_up(seconds); }
    if (lane == 0) { finish_rows(p, rows, output, place, sums, seconds); }
}

extern "C" __global__ void __launch_bounds__(256) product_of_blocks(const __grid_constant__ Product p) { multiply(p, NextRows()); }

extern "C" __global__ void __launch_bounds__(256) experts_of_blocks(
    const __grid_constant__ Product all, const __grid_constant__ Choices choices
) {
    await_previous();
    Product p = all;
    ChosenRows rows;
    if (rows.take(p, choices)) { multiply(p, rows); }
}

struct Expansion {
    const uchar *blocks;
    const uint *chosen; // null: the rows from the first on
    ELEMENT *out;       // [rows, columns]
    uint rows;
    uint columns;
};

extern "C" __global__ void __launch_bounds__(256) expand_blocks(const __grid_constant__ Expansion e) {
    let_next_begin();
    lay_out_levels();
    await_previous();
    const uint parts = e.columns / PART;
    const ulong row_bytes = ulong(e.columns / BLOCK_ELEMENTS) * BLOCK_BYTES;
    const ulong threads = ulong(gridDim.x) * blockDim.x;
    for (ulong at = ulong(blockIdx.x) * blockDim.x + threadIdx.x; at < ulong(e.rows) * parts; at += threads) {
        const uint row = at / parts, part = at % parts;
        const ulong from = e.chosen ? e.chosen[row] : row;
        Run runs[2];
        take(e.blocks + from * row_bytes + ulong(part / 8) * GROUP_BYTES, part % 8, runs);
        #pragma unroll
        for (int run = 0; run < 2; run++) {
            ELEMENT *to = e.out + ulong(row) * e.columns + part / 8 * 256 + runs[run].first;
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                Eight values;
                #pragma unroll
                for (int i = 0; i < 8; i++) {
                    values.v[i] = runs[run].scale * runs[run].codes[8 * half + i] + runs[run].minimum;
                }
                narrow_eight(values, to + 8 * half);
            }
        }
    }
}
