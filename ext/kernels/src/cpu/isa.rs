//! Which instruction set the CPU kernels use: the best that the machine has, or what
//! `CANDLE_CPU_ISA` asks for, so that one machine can test every path it is able to run.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::{Error, Result};

const SETTING: &str = "CANDLE_CPU_ISA";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 with products of bytes (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with products of bytes (VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// `Avx512Vnni` with products of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// `Avx512Bf16` with tiles of bf16 and of bytes.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    DotProd,
    /// `DotProd` with products of small matrices of bytes.
    #[cfg(target_arch = "aarch64")]
    I8mm,
    /// `I8mm` with products of small matrices of bf16.
    #[cfg(target_arch = "aarch64")]
    Bf16,
}

thread_local! {
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

impl Isa {
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::DotProd => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Self::I8mm => "i8mm",
            #[cfg(target_arch = "aarch64")]
            Self::Bf16 => "bf16",
        }
    }

    /// What of it runs rows and products of f32 and f16.
    pub fn for_numbers(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.name(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni | Self::Avx512Bf16 | Self::Amx => Self::Avx512.name(),
            #[cfg(target_arch = "aarch64")]
            Self::DotProd | Self::I8mm | Self::Bf16 => Self::Neon.name(),
            other => other.name(),
        }
    }

    /// What of it runs products of bf16.
    pub fn for_bf16(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => Self::Avx2.name(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.name(),
            #[cfg(target_arch = "aarch64")]
            Self::DotProd | Self::I8mm => Self::Neon.name(),
            other => other.name(),
        }
    }

    /// What of it runs products of bytes outside tiles.
    pub fn for_bytes(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 | Self::Amx => Self::Avx512Vnni.name(),
            #[cfg(target_arch = "aarch64")]
            Self::Bf16 => Self::I8mm.name(),
            other => other.name(),
        }
    }

    pub fn has_tiles(self) -> bool {
        self.name() == "amx"
    }

    /// What this machine runs, slowest first.
    pub fn available() -> &'static [Isa] {
        static AVAILABLE: OnceLock<Vec<Isa>> = OnceLock::new();
        AVAILABLE.get_or_init(|| {
            #[allow(unused_mut)]
            let mut found = vec![Self::Scalar];
            #[cfg(target_arch = "x86_64")]
            found.extend(detect_x86());
            #[cfg(target_arch = "aarch64")]
            found.extend(detect_arm());
            found
        })
    }

    /// Those of `available()` that differ for f32 rows, since the others only add products of short numbers.
    pub fn of_numbers() -> Vec<Isa> {
        let is_plain = |isa: &Isa| isa.name() == isa.for_numbers();
        Self::available().iter().copied().filter(is_plain).collect()
    }

    /// What tests of row kernels run: the one that the environment forces, else `of_numbers()`.
    pub fn for_rows() -> Result<Vec<Isa>> {
        if std::env::var_os(SETTING).is_some() {
            return Ok(vec![Self::current()?]);
        }
        Ok(Self::of_numbers())
    }

    /// The instruction set of the operation that starts now on this thread.
    pub fn current() -> Result<Self> {
        static CHOSEN: OnceLock<std::result::Result<Isa, String>> = OnceLock::new();
        if let Some(forced) = FORCED.get() {
            return Ok(forced);
        }
        CHOSEN
            .get_or_init(|| choose(std::env::var(SETTING).ok().as_deref()))
            .clone()
            .map_err(Error::InvalidInput)
    }

    /// Runs `work` with the operations that this thread starts bound to this instruction set, which
    /// must be one of `available()`.
    pub fn force<T>(self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Isa>);
        impl Drop for Restore {
            fn drop(&mut self) {
                FORCED.set(self.0);
            }
        }
        assert!(Self::available().contains(&self));
        let _restore = Restore(FORCED.replace(Some(self)));
        work()
    }
}

/// The levels of x86 that this machine has beyond the baseline. Each includes those before it, but for AVX-VNNI, which
/// older processors with AVX-512 do not have.
#[cfg(target_arch = "x86_64")]
fn detect_x86() -> Vec<Isa> {
    use std::arch::is_x86_feature_detected as has;
    let levels: [(Isa, &dyn Fn() -> bool); 6] = [
        (Isa::Avx2, &|| has!("avx2") && has!("fma") && has!("f16c")),
        (Isa::AvxVnni, &|| has!("avxvnni")),
        (Isa::Avx512, &|| {
            has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
        }),
        (Isa::Avx512Vnni, &|| has!("avx512vnni")),
        (Isa::Avx512Bf16, &|| has!("avx512bf16")),
        (Isa::Amx, &super::product::amx::is_usable),
    ];
    levels_of(levels.map(|(isa, is_there)| (isa, is_there())))
}

#[cfg(target_arch = "x86_64")]
fn levels_of(levels: [(Isa, bool); 6]) -> Vec<Isa> {
    levels
        .into_iter()
        .take_while(|&(isa, is_there)| is_there || isa == Isa::AvxVnni)
        .filter_map(|(isa, is_there)| is_there.then_some(isa))
        .collect()
}

/// The levels of ARM that this machine has. Each includes those before it.
#[cfg(target_arch = "aarch64")]
fn detect_arm() -> Vec<Isa> {
    use std::arch::is_aarch64_feature_detected as has;
    let levels = [
        (Isa::Neon, true),
        (Isa::DotProd, has!("dotprod")),
        (Isa::I8mm, has!("i8mm")),
        (Isa::Bf16, has!("bf16")),
    ];
    let there = levels.into_iter().take_while(|&(_, is_there)| is_there);
    there.map(|(isa, _)| isa).collect()
}

/// The last, but for vectors of bf16 where they multiply slower than those of f32, as Intel's do.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
fn best_of(available: &[Isa], bf16_is_faster: impl FnOnce() -> bool) -> Isa {
    match available {
        #[cfg(target_arch = "x86_64")]
        [.., before, Isa::Avx512Bf16] if !bf16_is_faster() => *before,
        [.., last] => *last,
        [] => Isa::Scalar,
    }
}

/// Measured once, where it decides.
fn bf16_is_faster() -> bool {
    #[cfg(target_arch = "x86_64")]
    if Isa::available().contains(&Isa::Avx512Bf16) {
        // SAFETY: the set is available.
        return unsafe { super::product::half_matrix::pairs_are_faster() };
    }
    false
}

fn choose(wanted: Option<&str>) -> std::result::Result<Isa, String> {
    let available = Isa::available();
    match wanted.map(|name| name.trim().to_ascii_lowercase()) {
        None => Ok(best_of(available, bf16_is_faster)),
        Some(name) if name.is_empty() => Ok(best_of(available, bf16_is_faster)),
        Some(name) => available
            .iter()
            .copied()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
                format!(
                    "{SETTING} is {name:?}, but this CPU runs {}. Choose one of them or unset it",
                    names.join(", ")
                )
            }),
    }
}

/// Defines `$name(isa, ...)`, which runs `$generic::<S>(...)` compiled for the instruction set.
macro_rules! dispatched {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $generic:ident) => {
        $(#[$meta])*
        $vis unsafe fn $name(isa: $crate::cpu::isa::Isa, $($arg: $type),*) $(-> $ret)? {
            use $crate::cpu::{isa::Isa, simd};
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $type),*) $(-> $ret)? {
                // SAFETY: the caller vouches for the arguments, the features are enabled.
                unsafe { $generic::<simd::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $type),*) $(-> $ret)? {
                // SAFETY: the caller vouches for the arguments, the features are enabled.
                unsafe { $generic::<simd::Avx512>($($arg),*) }
            }
            // SAFETY: the pointers are valid as the generic function asks for, for which the caller vouches; an `Isa`
            // other than `Scalar` comes from detection, so the CPU has the features.
            unsafe {
                match isa {
                    Isa::Scalar => $generic::<simd::Portable>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 | Isa::AvxVnni => avx2($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => avx512($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon | Isa::DotProd | Isa::I8mm | Isa::Bf16 => $generic::<simd::Neon>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use dispatched;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_default_and_names_choose() {
        let best = best_of(Isa::available(), bf16_is_faster);
        assert_eq!(choose(None).unwrap(), best);
        for &isa in Isa::available() {
            assert_eq!(choose(Some(isa.name())).unwrap(), isa);
        }
        let message = choose(Some("sve9")).unwrap_err();
        assert!(message.contains("sve9") && message.contains("scalar"));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn vectors_of_bf16_are_chosen_where_they_are_fast() {
        let with_vectors = [Isa::Scalar, Isa::Avx512Vnni, Isa::Avx512Bf16];
        assert_eq!(best_of(&with_vectors, || true), Isa::Avx512Bf16);
        assert_eq!(best_of(&with_vectors, || false), Isa::Avx512Vnni);
        let unasked = || -> bool { panic!("nothing depends on it") };
        let with_tiles = [Isa::Avx512Vnni, Isa::Avx512Bf16, Isa::Amx];
        assert_eq!(best_of(&with_tiles, unasked), Isa::Amx);
        assert_eq!(best_of(&[Isa::Scalar], unasked), Isa::Scalar);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn only_products_of_bytes_at_256_bits_may_be_missing_in_between() {
        let levels = [
            Isa::Avx2,
            Isa::AvxVnni,
            Isa::Avx512,
            Isa::Avx512Vnni,
            Isa::Avx512Bf16,
            Isa::Amx,
        ];
        let found = |there: &[Isa]| levels_of(levels.map(|isa| (isa, there.contains(&isa))));
        let laptop = [Isa::Avx2, Isa::AvxVnni];
        assert_eq!(found(&laptop), laptop);
        let server = [Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];
        assert_eq!(found(&server), server);
        assert_eq!(found(&levels), levels);
        let gap = [Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::Amx];
        assert_eq!(found(&gap), laptop);
        // A hypervisor may hide AVX2 and leave the rest.
        assert_eq!(found(&[Isa::AvxVnni, Isa::Avx512]), []);
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn every_level_of_arm_includes_those_before_it() {
        let all = [Isa::Scalar, Isa::Neon, Isa::DotProd, Isa::I8mm, Isa::Bf16];
        assert!(all.starts_with(Isa::available()) && Isa::available().len() > 1);
        let names = |name: fn(Isa) -> &'static str| all.map(name);
        assert_eq!(
            names(Isa::for_numbers),
            ["scalar", "neon", "neon", "neon", "neon"]
        );
        assert_eq!(
            names(Isa::for_bytes),
            ["scalar", "neon", "dotprod", "i8mm", "i8mm"]
        );
        assert_eq!(
            names(Isa::for_bf16),
            ["scalar", "neon", "neon", "neon", "bf16"]
        );
    }

    #[test]
    fn a_forced_set_holds_for_the_work_alone() {
        let before = Isa::current().unwrap();
        assert_eq!(Isa::Scalar.force(|| Isa::current().unwrap()), Isa::Scalar);
        assert_eq!(Isa::current().unwrap(), before);
    }
}
