//! How the codes and scales of each block type lie in a panel.
//!
//! A panel holds 16 outputs and all their inputs, block after block, read from front to back. A block
//! begins with an f16 of scale for each output, then an f16 of minimum for each where the type has one.
//! Its groups of 32 inputs follow, each of up to three parts:
//!
//! - in blocks of 256, a byte of scale for each output (for each run of 16 inputs in some types), then
//!   as many of minimum;
//! - the high bits of the codes: one bit per code as 64-bit masks of the eight steps, or two bits laid
//!   out like low ones;
//! - the low bits: eight steps of four inputs, a step being 16 outputs × 4 bytes, so that one
//!   instruction adds four products to each of 16 outputs. With 4 bits, bytes are shared by steps s and
//!   s + 4; with 2 bits, by steps s, s + 2, s + 4 and s + 6, the first in the lowest bits.
//!
//! ARM differs in two ways. Wide codes are signed bytes, since its instructions multiply those. And with products of
//! small matrices codes are zipped: of every two steps, 16 bytes have the eight inputs of outputs 0 and 1, then those
//! of 2 and 3, where they would have the four of one step for outputs 0 to 3, then those of the other.

use base::quant::BlockType;

/// Outputs of a panel.
pub(super) const PANEL: usize = 16;
/// Inputs of a group, which share one scale of x.
pub(super) const GROUP: usize = 32;
/// Whether wide codes are signed, and the sums of planes are added as integers.
pub(super) const SIGNED: bool = cfg!(target_arch = "aarch64");
/// Outputs of a vector of 16 bytes.
pub(super) const QUAD: usize = 4;
/// Groups in a block of 256.
const GROUPS_OF_SUPER: usize = 8;

/// What a kernel is compiled for; see the module's notes.
pub(super) trait Format {
    const KIND: BlockType;
    /// 2, 4 or 8.
    const LOW_BITS: usize;
    /// 0, 1 or 2.
    const HIGH_BITS: usize = 0;
    /// Taken from a code of less than 8 bits.
    const OFFSET: i32 = 0;
    /// Whether levels fill a signed byte: 8-bit codes, and those that are looked up.
    const WIDE: bool = false;
    /// Whether 4-bit codes are numbers of levels in a table.
    const LOOKED_UP: bool = false;
    /// Whether every 16 inputs have a scale of their own.
    const RUNS: bool = false;
    const MINIMUM: bool = false;
    /// Whether blocks are of 256, with a byte of scale for each group.
    const SUPER: bool = false;

    /// No level is further from 0.
    #[cfg(target_arch = "x86_64")]
    const MOST: i32 = match (
        Self::WIDE,
        (1 << (Self::LOW_BITS + Self::HIGH_BITS)) - 1 - Self::OFFSET,
    ) {
        (true, _) => 128,
        (false, above) if above > Self::OFFSET => above,
        _ => Self::OFFSET,
    };
    /// Inputs that share a scale.
    #[cfg(target_arch = "x86_64")]
    const RUN: usize = if Self::RUNS { GROUP / 2 } else { GROUP };

    /// Groups that share a block's scale.
    const GROUPS: usize = if Self::SUPER { GROUPS_OF_SUPER } else { 1 };
    const LOW_BYTES: usize = PANEL * GROUP / 8 * Self::LOW_BITS;
    const HIGH_BYTES: usize = PANEL * GROUP / 8 * Self::HIGH_BITS;
    /// How often a byte of scale, or of minimum, occurs in a group, times the bytes of a panel.
    const STEP_BYTES: usize = match (Self::SUPER, Self::RUNS) {
        (false, _) => 0,
        (true, false) => PANEL,
        (true, true) => 2 * PANEL,
    };
    const PARTS: usize = if Self::MINIMUM { 2 } else { 1 };
    /// Bytes of what a block's groups share.
    const HEADER_BYTES: usize = Self::PARTS * 2 * PANEL;
    /// Bytes of a group before its codes.
    const SCALE_BYTES: usize = Self::PARTS * Self::STEP_BYTES;
    const GROUP_BYTES: usize = Self::SCALE_BYTES + Self::HIGH_BYTES + Self::LOW_BYTES;
    const BLOCK_BYTES: usize = Self::HEADER_BYTES + Self::GROUPS * Self::GROUP_BYTES;

    /// Bytes from panel to panel, whole cache lines.
    fn stride(inputs: usize) -> usize {
        (inputs / (GROUP * Self::GROUPS) * Self::BLOCK_BYTES).next_multiple_of(64)
    }
}

macro_rules! formats {
    ($($name:ident: $low:literal $(+ $high:literal)? $(, $constant:ident = $value:expr)*;)*) => {
        $(
            pub(super) struct $name;
            impl Format for $name {
                const KIND: BlockType = BlockType::$name;
                const LOW_BITS: usize = $low;
                $(const HIGH_BITS: usize = $high;)?
                $(const $constant: type_of!($constant) = $value;)*
            }
        )*
    };
}

macro_rules! type_of {
    (OFFSET) => {
        i32
    };
    ($other:ident) => {
        bool
    };
}

formats! {
    Q4_0: 4, OFFSET = 8;
    Q4_1: 4, MINIMUM = true;
    Q5_0: 4 + 1, OFFSET = 16;
    Q5_1: 4 + 1, MINIMUM = true;
    Q8_0: 8, WIDE = true;
    Q2K: 2, RUNS = true, MINIMUM = true, SUPER = true;
    Q3K: 2 + 1, OFFSET = 4, RUNS = true, SUPER = true;
    Q4K: 4, MINIMUM = true, SUPER = true;
    Q5K: 4 + 1, MINIMUM = true, SUPER = true;
    Q6K: 4 + 2, OFFSET = 32, RUNS = true, SUPER = true;
    Iq4Nl: 4, WIDE = true, LOOKED_UP = true;
    Iq4Xs: 4, WIDE = true, LOOKED_UP = true, SUPER = true;
}

/// Runs `$body` with `$F` the format of a block type; `$none` for those that have none, which do not
/// occur as weights.
macro_rules! for_format {
    ($kind:expr, $F:ident => $body:expr, $none:expr) => {{
        use $crate::cpu::product::blocks::format;
        macro_rules! run {
            ($name:ident) => {{
                type $F = format::$name;
                $body
            }};
        }
        match $kind {
            // The sum that Q8_1 adds is not used, so it packs like Q8_0.
            BlockType::Q8_0 | BlockType::Q8_1 => run!(Q8_0),
            BlockType::Q4_0 => run!(Q4_0),
            BlockType::Q4_1 => run!(Q4_1),
            BlockType::Q5_0 => run!(Q5_0),
            BlockType::Q5_1 => run!(Q5_1),
            BlockType::Q2K => run!(Q2K),
            BlockType::Q3K => run!(Q3K),
            BlockType::Q4K => run!(Q4K),
            BlockType::Q5K => run!(Q5K),
            BlockType::Q6K => run!(Q6K),
            BlockType::Iq4Nl => run!(Iq4Nl),
            BlockType::Iq4Xs => run!(Iq4Xs),
            _ => $none,
        }
    }};
}
pub(super) use for_format;
