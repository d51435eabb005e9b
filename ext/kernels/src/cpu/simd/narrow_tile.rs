//! The loop of a tile of three rows and a panel of 32 columns in AVX2: twelve sums, three numbers and a vector of the panel
//! are all sixteen registers. Compilers read the panel early, and then keep some of the sums in memory, at half the speed.

use std::arch::asm;
use std::arch::x86_64::*;

use super::Turns;

/// The products of one input, `$x` bytes behind where the rows are read, and the vectors of the panel at the others.
#[rustfmt::skip]
macro_rules! products {
    ($x:literal, $first:literal, $second:literal, $third:literal, $fourth:literal) => {
        concat!(
            "vbroadcastss {b0:y}, dword ptr [{x} + ", $x, "]\n",
            "vbroadcastss {b1:y}, dword ptr [{x} + {stride} + ", $x, "]\n",
            "vbroadcastss {b2:y}, dword ptr [{x} + 2*{stride} + ", $x, "]\n",
            "vmovups {panel_vector:y}, ymmword ptr [{panel} + ", $first, "]\n",
            "vfmadd231ps {s00:y}, {b0:y}, {panel_vector:y}\n",
            "vfmadd231ps {s10:y}, {b1:y}, {panel_vector:y}\n",
            "vfmadd231ps {s20:y}, {b2:y}, {panel_vector:y}\n",
            "vmovups {panel_vector:y}, ymmword ptr [{panel} + ", $second, "]\n",
            "vfmadd231ps {s01:y}, {b0:y}, {panel_vector:y}\n",
            "vfmadd231ps {s11:y}, {b1:y}, {panel_vector:y}\n",
            "vfmadd231ps {s21:y}, {b2:y}, {panel_vector:y}\n",
            "vmovups {panel_vector:y}, ymmword ptr [{panel} + ", $third, "]\n",
            "vfmadd231ps {s02:y}, {b0:y}, {panel_vector:y}\n",
            "vfmadd231ps {s12:y}, {b1:y}, {panel_vector:y}\n",
            "vfmadd231ps {s22:y}, {b2:y}, {panel_vector:y}\n",
            "vmovups {panel_vector:y}, ymmword ptr [{panel} + ", $fourth, "]\n",
            "vfmadd231ps {s03:y}, {b0:y}, {panel_vector:y}\n",
            "vfmadd231ps {s13:y}, {b1:y}, {panel_vector:y}\n",
            "vfmadd231ps {s23:y}, {b2:y}, {panel_vector:y}\n",
        )
    };
}

/// All turns, with what follows the products of an input.
macro_rules! turns {
    ($sums:expr, $turns:expr, [$($ask:literal),*] $(, $ahead:ident)?) => {{
        let [[s00, s01, s02, s03], [s10, s11, s12, s13], [s20, s21, s22, s23]] = $sums;
        asm!(
            "2:",
            products!("0", "0", "32", "64", "96"),
            $($ask,)*
            products!("4", "128", "160", "192", "224"),
            $($ask,)*
            products!("8", "256", "288", "320", "352"),
            $($ask,)*
            products!("12", "384", "416", "448", "480"),
            $($ask,)*
            "add {x}, 16",
            "add {panel}, 512",
            "dec {turns}",
            "jnz 2b",
            x = inout(reg) $turns.x => _,
            stride = in(reg) $turns.x_stride * size_of::<f32>(),
            panel = inout(reg) $turns.panel => _,
            turns = inout(reg) $turns.count => _,
            $(
                ahead = inout(reg) $turns.$ahead => _,
                step = in(reg) $turns.ahead_step * size_of::<f32>(),
            )?
            b0 = out(ymm_reg) _, b1 = out(ymm_reg) _, b2 = out(ymm_reg) _, panel_vector = out(ymm_reg) _,
            s00 = inout(ymm_reg) *s00, s01 = inout(ymm_reg) *s01, s02 = inout(ymm_reg) *s02, s03 = inout(ymm_reg) *s03,
            s10 = inout(ymm_reg) *s10, s11 = inout(ymm_reg) *s11, s12 = inout(ymm_reg) *s12, s13 = inout(ymm_reg) *s13,
            s20 = inout(ymm_reg) *s20, s21 = inout(ymm_reg) *s21, s22 = inout(ymm_reg) *s22, s23 = inout(ymm_reg) *s23,
            options(nostack, readonly),
        );
    }};
}

/// # Safety
/// x has three rows and the panel as many inputs as the turns take, and the CPU has AVX2 and FMA.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add_products(sums: &mut [[__m256; 4]; 3], turns: Turns, asks: bool) {
    if turns.count == 0 {
        return;
    }
    // SAFETY: the loop reads what the caller vouches for, four inputs a turn, and writes registers alone; AVX2 and
    // FMA are enabled. A prefetch reads nothing and cannot fault.
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
