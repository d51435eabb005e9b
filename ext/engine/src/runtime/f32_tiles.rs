//! Whether products of f32 may be computed by tiles of bf16, where the CPU has them: up to twice as fast,
//! but on 17 bits of every number instead of 24. `CANDLE_F32=tiles` asks for it.

use super::switch::Switch;

static WANTED: Switch = Switch::new(c"CANDLE_F32", c"tiles");

/// Reads the environment; to be called once, where nobody changes it meanwhile.
pub fn init() {
    are_wanted();
}

pub(crate) fn are_wanted() -> bool {
    WANTED.is_on()
}
