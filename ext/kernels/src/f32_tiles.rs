//! Whether products of f32 may be computed by int8 tiles (24-bit fixed point), where the CPU has them: several
//! times as fast. `CANDLE_F32=exact` asks for f32 itself.

use base::runtime::switch::Switch;

static EXACT: Switch = Switch::new(c"CANDLE_F32", c"exact");

/// Reads the environment; to be called once, where nobody changes it meanwhile.
pub fn init() {
    are_wanted();
}

pub fn are_wanted() -> bool {
    !EXACT.is_on()
}
