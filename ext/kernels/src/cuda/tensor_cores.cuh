// A product of 16 outputs and 8 rows of x, 16 elements deep, by a warp: of four lanes in a row, a `group`, each has four
// of the elements of outputs `group` and `group + 8`, and of row `group` of x. Which of the 16 they are does not
// matter, as long as weights and x agree.

struct Tile {
    float v[4]; // outputs group and group + 8 of columns 2 member and 2 member + 1
};

__device__ __forceinline__ void multiply(Tile &sum, const uint (&a)[4], uint2 b, f16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void multiply(Tile &sum, const uint (&a)[4], uint2 b, bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
