//! Whether steps of decoding are recorded on CUDA and replayed. `CANDLE_CUDA_GRAPHS=0` has every one launched
//! kernel by kernel.

use base::runtime::switch::Switch;

static OFF: Switch = Switch::new(c"CANDLE_CUDA_GRAPHS", c"0");

/// Reads the environment; to be called once, where nobody changes it meanwhile.
pub fn init() {
    OFF.is_on();
}

pub fn are_wanted() -> bool {
    !OFF.is_on()
}
