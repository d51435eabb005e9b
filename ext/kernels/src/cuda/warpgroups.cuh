// What Hopper's tensor cores are fed by: copies of tiles that signal a barrier, and products of warpgroups whose factors
// lie in shared memory. A tile has rows of 64 numbers of 16 bits, 128 bytes, whose 16-byte parts are exchanged within
// eight rows (the "128-byte swizzle"), and begins at a multiple of 1,024 bytes.

#define TILE_DEPTH 64 // numbers of a row of a tile
#define WARPGROUP 128 // threads

struct alignas(64) TensorMap { ulong opaque[16]; };

__device__ __forceinline__ void make_barrier(uint barrier, uint arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals));
}
// One arrival, which also says how many bytes copies are to bring.
__device__ __forceinline__ void expect_bytes(uint barrier, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive_at(uint barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// At the barrier of that place in another block of the cluster.
__device__ __forceinline__ void arrive_in(uint barrier, uint block) {
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" :: "r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void await_phase(uint barrier, uint phase) {
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}" :: "r"(barrier), "r"(phase) : "memory");
}

__device__ __forceinline__ void copy_tile(uint to, const TensorMap &map, int column, int row, uint barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// Into the same place of every block of the cluster that `blocks` has a bit for, whose barriers are told too.
__device__ __forceinline__ void copy_tile_to_all(uint to, const TensorMap &map, int column, int row, uint barrier, uint blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"((unsigned short)blocks) : "memory");
}

// A tile as a factor whose rows are summed along.
__device__ __forceinline__ ulong factor(uint tile) { return ulong(tile >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int STILL>
__device__ __forceinline__ void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(STILL) : "memory"); }

#define SIXTEEN(s, i)                                                                                                \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]),      \
        "+f"(s[i + 7]), "+f"(s[i + 8]), "+f"(s[i + 9]), "+f"(s[i + 10]), "+f"(s[i + 11]), "+f"(s[i + 12]),           \
        "+f"(s[i + 13]), "+f"(s[i + 14]), "+f"(s[i + 15])
#define SUMS_64                                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "     \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "      \
    "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// sums of 64 x 128, 16 numbers deep; they are counted from 0 where they do not go `on`.
#define MULTIPLY_128(TYPE)                                                                                           \
    asm volatile("{.reg .pred on;\nsetp.ne.b32 on, %66, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " SUMS_64 ", %64, %65, on, 1, 1, 0, 0;}" \
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 16), SIXTEEN(sums, 32), SIXTEEN(sums, 48)                         \
                 : "l"(a), "l"(b), "r"(int(on)))
__device__ __forceinline__ void multiply_128(float (&sums)[64], ulong a, ulong b, bool on, f16) { MULTIPLY_128("f16"); }
__device__ __forceinline__ void multiply_128(float (&sums)[64], ulong a, ulong b, bool on, bf16) { MULTIPLY_128("bf16"); }

#define SUMS_32                                                                                                      \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "     \
    "%23, %24, %25, %26, %27, %28, %29, %30, %31}"

// sums of 64 x 64, 16 numbers deep; they are counted from 0 where they do not go `on`.
#define MULTIPLY_64(TYPE)                                                                                            \
    asm volatile("{.reg .pred on;\nsetp.ne.b32 on, %34, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_32 ", %32, %33, on, 1, 1, 0, 0;}" \
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 16)                                                               \
                 : "l"(a), "l"(b), "r"(int(on)))
__device__ __forceinline__ void multiply_64(float (&sums)[32], ulong a, ulong b, bool on, f16) { MULTIPLY_64("f16"); }
__device__ __forceinline__ void multiply_64(float (&sums)[32], ulong a, ulong b, bool on, bf16) { MULTIPLY_64("bf16"); }

// The same with the first factor in registers and the rows of the other across.
#define MULTIPLY_TURNED(TYPE)                                                                                        \
    asm volatile("{.reg .pred on;\nsetp.ne.b32 on, %37, 0;\n"                                                        \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " SUMS_32                             \
                 ", {%32, %33, %34, %35}, %36, on, 1, 1, 1;}"                                                        \
                 : SIXTEEN(sums, 0), SIXTEEN(sums, 16)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(on)))
__device__ __forceinline__ void multiply_turned(float (&sums)[32], const uint (&a)[4], ulong b, bool on, f16) { MULTIPLY_TURNED("f16"); }
__device__ __forceinline__ void multiply_turned(float (&sums)[32], const uint (&a)[4], ulong b, bool on, bf16) { MULTIPLY_TURNED("bf16"); }

// Sums are read after `await_products`, not before.
__device__ __forceinline__ void settle(float (&sums)[32]) { asm volatile("" : SIXTEEN(sums, 0), SIXTEEN(sums, 16) :: "memory"); }
__device__ __forceinline__ void settle(float (&sums)[64]) {
    asm volatile("" : SIXTEEN(sums, 0), SIXTEEN(sums, 16), SIXTEEN(sums, 32), SIXTEEN(sums, 48) :: "memory");
}
