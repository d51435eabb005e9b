// One to three matrices times the same rows: what a kernel takes, and what becomes of its sums. WEIGHT, what
// matrices are made of, is defined by who includes this; ELEMENT, ROWS and GATED at run time.

#define MATRICES 3

struct Product {
    const ELEMENT *x; // [rows, inputs]
    ELEMENT *out;     // [rows, width], from the first of these outputs on
    const WEIGHT *weights[MATRICES]; // [outputs, inputs] each
    const ELEMENT *biases[MATRICES]; // null: none
    const ELEMENT *residual;         // null: none; as the result
    uint ends[MATRICES]; // where each matrix's outputs end among all
    uint outputs;
    uint width;
    uint inputs;
    uint rows;
    uint activation;
    // Of launches in a row that read the same x, those after the first need not wait for what is ahead of them before
    // they have done their work.
    uint leads;   // whether one of them comes next
    uint follows; // whether this is one of them
};

// Which row of which matrix makes an output. Two that are gated make each output together.
struct Place {
    uint matrix, row;
};
__device__ __forceinline__ Place place_of(const Product &p, uint output) {
#if GATED
    return {0, output};
#else
    const uint matrix = output < p.ends[0] ? 0 : output < p.ends[1] ? 1 : 2;
    return {matrix, output - (matrix == 0 ? 0 : p.ends[matrix - 1])};
#endif
}

// Stores an output of one row of x, given its sum, or those of gate and up.
__device__ __forceinline__ void finish(const Product &p, uint row, uint output, Place place, float sum, float up) {
    const ELEMENT *bias = p.biases[place.matrix];
    const ulong at = ulong(row) * p.width + output;
    float y = activation<ELEMENT>(sum + (bias ? widen(bias[place.row]) : 0.0f), p.activation);
#if GATED
    y *= up + (p.biases[1] ? widen(p.biases[1][place.row]) : 0.0f);
#endif
    narrow(y + (p.residual ? widen(p.residual[at]) : 0.0f), p.out + at);
}

// Rows of x one after the other; those beyond the last repeat it, and are not stored.
struct NextRows {
    __device__ __forceinline__ static bool skips(const Product &, uint) { return false; }
    __device__ __forceinline__ const ELEMENT *x(const Product &p, uint row) const {
        return p.x + ulong(min(row, p.rows - 1)) * p.inputs;
    }
    __device__ __forceinline__ uint out(uint row) const { return row; }
};

// The experts of a mixture, of which each choice of a row has one: their matrices stand in for those of the product.
struct Choices {
    const ulong *table; // [experts, 2, MATRICES]: matrices and their biases
    const uint *chosen; // [choices]
    const uint *order;  // [choices]; null: as they are
    const uint *tiles;  // [tiles, 2]: choices of one expert that follow each other in the order: the first, and how many
    uint per_row;       // so many choices follow each other that read the same row of x
};
// Choices of one expert that follow each other in the order: those of this thread block.
struct ChosenTile {
    const uint *order;
    uint first, per_row;

    __device__ __forceinline__ uint out(uint row) const { return order ? order[first + row] : first + row; }
    __device__ __forceinline__ const ELEMENT *x(const Product &p, uint row) const {
        return p.x + ulong(out(row) / per_row) * p.inputs;
    }

    // Makes the product that of their expert; false where there are none.
    __device__ __forceinline__ bool take(Product &p, const Choices &all) {
        order = all.order;
        per_row = all.per_row;
        first = all.tiles ? all.tiles[2 * blockIdx.y] : blockIdx.y;
        p.rows = all.tiles ? all.tiles[2 * blockIdx.y + 1] : 1;
        if (p.rows == 0) { return false; }
        const ulong *matrices = all.table + ulong(all.chosen[out(0)]) * (2 * MATRICES);
        #pragma unroll
        for (int i = 0; i < MATRICES; i++) {
            p.weights[i] = (const WEIGHT *)matrices[i];
            p.biases[i] = (const ELEMENT *)matrices[MATRICES + i];
        }
        return true;
    }
};
// The same, looked up once.
struct ChosenRows {
    uint choices[ROWS];
    uint per_row;

    __device__ __forceinline__ static bool skips(const Product &p, uint row) { return row >= p.rows; }
    __device__ __forceinline__ const ELEMENT *x(const Product &p, uint row) const {
        return p.x + ulong(choices[row] / per_row) * p.inputs;
    }
    __device__ __forceinline__ uint out(uint row) const { return choices[row]; }

    __device__ __forceinline__ bool take(Product &p, const Choices &all) {
        ChosenTile tile;
        if (!tile.take(p, all)) { return false; }
        per_row = tile.per_row;
        #pragma unroll
        for (uint row = 0; row < ROWS; row++) { choices[row] = tile.out(min(row, p.rows - 1)); }
        return true;
    }
};

// A weight is read by one warp: it need not stay in the first cache.
__device__ __forceinline__ uint4 stream_sixteen(const void *from) {
    uint4 out;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w) : "l"(from));
    return out;
}

struct Sums {
    float v[ROWS];
};

// Adds up what the lanes of a warp have.
__device__ __forceinline__ void add_up(Sums &sums) {
    #pragma unroll
    for (int row = 0; row < ROWS; row++) {
        #pragma unroll
        for (int step = 16; step > 0; step /= 2) { sums.v[row] += __shfl_xor_sync(0xffffffffu, sums.v[row], step); }
    }
}

// Stores an output of all rows, by one thread.
template <typename Rows>
__device__ __forceinline__ void finish_rows(
    const Product &p, const Rows &rows, uint output, Place place, const Sums &sums, const Sums &ups
) {
    #pragma unroll
    for (uint row = 0; row < ROWS; row++) {
        if (row >= p.rows) { break; }
        finish(p, rows.out(row), output, place, sums.v[row], ups.v[row]);
    }
}
