//! Choices that the environment makes once for the whole process.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

const UNREAD: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// Whether an environment variable has a certain value. An allocator may ask, so nothing here
/// allocates; and whatever was answered first is answered ever after.
pub struct Switch {
    variable: &'static CStr,
    value: &'static CStr,
    state: AtomicU8,
}

impl Switch {
    pub const fn new(variable: &'static CStr, value: &'static CStr) -> Self {
        Self {
            variable,
            value,
            state: AtomicU8::new(UNREAD),
        }
    }

    /// The first call reads the environment, which Ruby changes under its lock: to be made with
    /// that held.
    pub fn is_on(&self) -> bool {
        match self.state.load(Ordering::Relaxed) {
            UNREAD => self.read(),
            state => state == ON,
        }
    }

    #[cold]
    fn read(&self) -> bool {
        // SAFETY: the name ends in a zero byte; what comes back is null or such a text too, and is
        // compared before anything can change the environment.
        let is_set = unsafe {
            let found = libc::getenv(self.variable.as_ptr());
            !found.is_null() && CStr::from_ptr(found) == self.value
        };
        let answer = if is_set { ON } else { OFF };
        let order = Ordering::Relaxed;
        match self.state.compare_exchange(UNREAD, answer, order, order) {
            Ok(_) => answer == ON,
            Err(earlier) => earlier == ON,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_on_for_its_value_alone() {
        assert!(!Switch::new(c"CANDLE_NO_SUCH_VARIABLE", c"0").is_on());
        let home = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        assert!(!Switch::new(c"CARGO_MANIFEST_DIR", c"0").is_on());
        let home: &'static CStr = Box::leak(std::ffi::CString::new(home).unwrap().into());
        let switch = Switch::new(c"CARGO_MANIFEST_DIR", home);
        assert!(switch.is_on() && switch.is_on());
    }

    #[test]
    fn the_first_answer_stays() {
        let switch = Switch::new(c"CANDLE_NO_SUCH_VARIABLE", c"0");
        switch.state.store(ON, Ordering::Relaxed);
        assert!(switch.is_on() && switch.read());
    }
}
