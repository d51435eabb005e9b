//! The instruction sets of products of bytes, which are finer than those of numbers.

use crate::cpu::isa::Isa;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// `Avx512Vnni` with tiles for many rows.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    #[cfg(target_arch = "aarch64")]
    NeonMatrices,
}

impl Level {
    /// The best there is within an instruction set.
    pub fn of(isa: Isa) -> Self {
        match isa {
            Isa::Scalar => Self::Portable,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Self::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Avx512Bf16 => Self::Avx512Vnni,
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Self::Amx,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Self::Neon,
            #[cfg(target_arch = "aarch64")]
            Isa::DotProd => Self::NeonDot,
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm | Isa::Bf16 => Self::NeonMatrices,
        }
    }

    #[cfg(target_arch = "x86_64")]
    const WITH_TILES: Option<Self> = Some(Self::Amx);
    #[cfg(not(target_arch = "x86_64"))]
    const WITH_TILES: Option<Self> = None;

    pub fn has_tiles(self) -> bool {
        Self::WITH_TILES == Some(self)
    }

    #[cfg(target_arch = "aarch64")]
    const WITH_MATRICES: Option<Self> = Some(Self::NeonMatrices);
    #[cfg(not(target_arch = "aarch64"))]
    const WITH_MATRICES: Option<Self> = None;

    /// Whether the two planes of a row are the two rows of a small matrix.
    pub fn joins_planes(self) -> bool {
        Self::WITH_MATRICES == Some(self)
    }

    /// Whether codes are zipped when they are packed: every level of this machine reads what the best needs.
    pub fn zips() -> bool {
        Isa::available()
            .iter()
            .any(|&isa| Self::of(isa).joins_planes())
    }

    /// All that this machine runs.
    #[cfg(test)]
    pub fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        for &isa in Isa::available() {
            if !levels.contains(&Self::of(isa)) {
                levels.push(Self::of(isa));
            }
        }
        levels
    }
}

/// Defines `$name::<F>(level, ...)`, which runs `$generic::<S, F>(...)` compiled for the instruction set. Each level
/// has a function for each format, so that profiles and disassemblies tell them apart.
macro_rules! leveled {
    (
        $(#[$meta:meta])*
        $vis:vis unsafe fn $name:ident<$F:ident: $format:path>(
            $($arg:ident: $type:ty),* $(,)?
        ) = $generic:ident
    ) => {
        $(#[$meta])*
        $vis unsafe fn $name<$F: $format>(
            level: $crate::cpu::product::blocks::level::Level, $($arg: $type),*
        ) {
            use $crate::cpu::{product::blocks::level::Level, simd};
            #[cfg(target_arch = "aarch64")]
            use $crate::cpu::product::blocks::arm;
            #[cfg(target_arch = "x86_64")]
            use $crate::cpu::product::blocks::x86;
            macro_rules! compiled {
                ($level:ident, $features:literal, $lanes:ty) => {
                    #[target_feature(enable = $features)]
                    unsafe fn $level<$F: $format>($($arg: $type),*) {
                        // SAFETY: the caller vouches for the arguments, the features are enabled.
                        unsafe { $generic::<$lanes, $F>($($arg),*) }
                    }
                };
            }
            #[cfg(target_arch = "x86_64")]
            compiled!(avx2, "avx2,fma,f16c", simd::Avx2);
            #[cfg(target_arch = "x86_64")]
            compiled!(avx_vnni, "avx2,fma,f16c,avxvnni", x86::Avx2Dot);
            #[cfg(target_arch = "x86_64")]
            compiled!(avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", simd::Avx512);
            #[cfg(target_arch = "x86_64")]
            compiled!(
                avx512_vnni,
                "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
                x86::Avx512Dot
            );
            #[cfg(target_arch = "aarch64")]
            compiled!(neon_dot, "neon,dotprod", arm::NeonDot);
            #[cfg(target_arch = "aarch64")]
            compiled!(neon_matrices, "neon,i8mm", arm::NeonMatrices);
            // SAFETY: the pointers are valid as the generic function asks for, for which the caller vouches; a
            // `Level` other than `Portable` comes from detection, so the CPU has the features.
            unsafe {
                match level {
                    Level::Portable => $generic::<simd::Portable, $F>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => avx2::<$F>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::AvxVnni => avx_vnni::<$F>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => avx512::<$F>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512Vnni | Level::Amx => avx512_vnni::<$F>($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon => $generic::<simd::Neon, $F>($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::NeonDot => neon_dot::<$F>($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::NeonMatrices => neon_matrices::<$F>($($arg),*),
                }
            }
        }
    };
}
pub(super) use leveled;
