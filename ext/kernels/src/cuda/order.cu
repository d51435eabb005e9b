// Rows whose elements are put in another order.

struct Ordered {
    const ELEMENT *from; // [rows, columns]
    const uint *order;   // [columns]: which element of a row comes next
    ELEMENT *out;
    uint rows;
    uint columns;
};

extern "C" __global__ void __launch_bounds__(256) order_columns(const __grid_constant__ Ordered p) {
    let_next_begin();
    await_previous();
    const ulong all = ulong(p.rows) * p.columns, stride = ulong(gridDim.x) * blockDim.x;
    for (ulong i = ulong(blockIdx.x) * blockDim.x + threadIdx.x; i < all; i += stride) {
        const uint column = uint(i % p.columns);
        p.out[i] = p.from[i - column + p.order[column]];
    }
}
