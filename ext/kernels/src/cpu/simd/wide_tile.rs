//! The loop of a tile of twelve rows and 32 columns in AVX-512: 24 sums, two vectors of the panel and two numbers. What a
//! compiler makes of it depends on what it is compiled with, and where it reads numbers early some sums are in memory.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Turns;

/// A number of x in every lane, and its products with both vectors of the panel.
#[rustfmt::skip]
macro_rules! row {
    ($number:literal, $from:literal, $x:literal, $first:literal, $second:literal) => {
        concat!(
            "vbroadcastss ", $number, ", dword ptr [", $from, " + ", $x, "]\n",
            "vfmadd231ps {", $first, "}, ", $number, ", zmm28\n",
            "vfmadd231ps {", $second, "}, ", $number, ", zmm29\n",
        )
    };
}

/// The products of one input, `$x` bytes behind where the rows are read, and the vectors of the panel at the others.
#[rustfmt::skip]
macro_rules! products {
    ($x:literal, $first:literal, $second:literal) => {
        concat!(
            "vmovups zmm28, zmmword ptr [{panel} + ", $first, "]\n",
            "vmovups zmm29, zmmword ptr [{panel} + ", $second, "]\n",
            row!("zmm30", "{x0}", $x, "s0", "t0"),
            row!("zmm31", "{x0} + {stride}", $x, "s1", "t1"),
            row!("zmm30", "{x0} + 2*{stride}", $x, "s2", "t2"),
            row!("zmm31", "{x0} + {thrice}", $x, "s3", "t3"),
            row!("zmm30", "{x4}", $x, "s4", "t4"),
            row!("zmm31", "{x4} + {stride}", $x, "s5", "t5"),
            row!("zmm30", "{x4} + 2*{stride}", $x, "s6", "t6"),
            row!("zmm31", "{x4} + {thrice}", $x, "s7", "t7"),
            row!("zmm30", "{x8}", $x, "s8", "t8"),
            row!("zmm31", "{x8} + {stride}", $x, "s9", "t9"),
            row!("zmm30", "{x8} + 2*{stride}", $x, "s10", "t10"),
            row!("zmm31", "{x8} + {thrice}", $x, "s11", "t11"),
        )
    };
}

/// All turns, with what follows the products of an input.
macro_rules! turns {
    ($sums:expr, $turns:expr, [$($ask:literal),*] $(, $ahead:ident)?) => {{
        let [
            [s0, t0], [s1, t1], [s2, t2], [s3, t3], [s4, t4], [s5, t5],
            [s6, t6], [s7, t7], [s8, t8], [s9, t9], [s10, t10], [s11, t11],
        ] = $sums;
        let stride = $turns.x_stride * size_of::<f32>();
        asm!(
            "2:",
            products!("0", "0", "64"),
            $($ask,)*
            products!("4", "128", "192"),
            $($ask,)*
            products!("8", "256", "320"),
            $($ask,)*
            products!("12", "384", "448"),
            $($ask,)*
            "add {x0}, 16",
            "add {x4}, 16",
            "add {x8}, 16",
            "add {panel}, 512",
            "dec {turns}",
            "jnz 2b",
            x0 = inout(reg) $turns.x => _,
            x4 = inout(reg) $turns.x.add(4 * $turns.x_stride) => _,
            x8 = inout(reg) $turns.x.add(8 * $turns.x_stride) => _,
            stride = in(reg) stride,
            thrice = in(reg) 3 * stride,
            panel = inout(reg) $turns.panel => _,
            turns = inout(reg) $turns.count => _,
            $(
                ahead = inout(reg) $turns.$ahead => _,
                step = in(reg) $turns.ahead_step * size_of::<f32>(),
            )?
            s0 = inout(zmm_reg) *s0, t0 = inout(zmm_reg) *t0,
            s1 = inout(zmm_reg) *s1, t1 = inout(zmm_reg) *t1,
            s2 = inout(zmm_reg) *s2, t2 = inout(zmm_reg) *t2,
            s3 = inout(zmm_reg) *s3, t3 = inout(zmm_reg) *t3,
            s4 = inout(zmm_reg) *s4, t4 = inout(zmm_reg) *t4,
            s5 = inout(zmm_reg) *s5, t5 = inout(zmm_reg) *t5,
            s6 = inout(zmm_reg) *s6, t6 = inout(zmm_reg) *t6,
            s7 = inout(zmm_reg) *s7, t7 = inout(zmm_reg) *t7,
            s8 = inout(zmm_reg) *s8, t8 = inout(zmm_reg) *t8,
            s9 = inout(zmm_reg) *s9, t9 = inout(zmm_reg) *t9,
            s10 = inout(zmm_reg) *s10, t10 = inout(zmm_reg) *t10,
            s11 = inout(zmm_reg) *s11, t11 = inout(zmm_reg) *t11,
            out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(nostack, readonly),
        );
    }};
}

/// # Safety
/// x has twelve rows and the panel as many inputs as the turns take, and the CPU has AVX-512F.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_products(sums: &mut [[__m512; 2]; 12], turns: Turns, asks: bool) {
    if turns.count == 0 {
        return;
    }
    // SAFETY: the loop reads what the caller vouches for, four inputs a turn, and writes registers alone; AVX-512F is
    // enabled. A prefetch reads nothing and cannot fault.
    unsafe {
        if asks {
            turns!(
                sums,
                turns,
                [
                    "prefetcht0 byte ptr [{ahead}]",
                    "prefetcht0 byte ptr [{ahead} + 64]",
                    "add {ahead}, {step}"
                ],
                ahead
            );
        } else {
            turns!(sums, turns, []);
        }
    }
}
