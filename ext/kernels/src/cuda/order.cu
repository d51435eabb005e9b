// Rows whose elements are put in another order.

struct Ordered {
    const ELEMENT *from; // [rows, columns]
    const uint *order;   // [width]: which element of a row comes next; numbers beyond the columns are zeros
    ELEMENT *out;
    uint rows;
    uint columns;
    uint width;
};

extern "C" __global__ void __launch_bounds__(256) order_columns(const __grid_constant__ Ordered p) {
    let_next_begin();
    await_previous();
    const ulong all = ulong(p.rows) * p.width, stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += stride) {
        const uint column = p.order[i % p.width];
        if (column < p.columns) {
            p.out[i] = p.from[i / p.width * p.columns + column];
        } else {
            narrow(0.0f, p.out + i);
        }
    }
}
