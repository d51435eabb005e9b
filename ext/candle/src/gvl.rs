//! The one door off the GVL, and the guard for short work that keeps it.
//!
//! Work that leaves is cancellable: when Ruby wants the thread back (`Thread#kill`,
//! `Thread#raise`, `Timeout`, a signal), the unblock function trips the token, the engine returns
//! `Interrupted`, and Ruby's pending interrupt is raised. A signal whose handler raises nothing
//! must not cost the caller its result, so the work is then called again.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Mutex;

use base::runtime::autorelease::pooled;
use base::runtime::log::Level;
use base::runtime::threads;
use engine::{CancelToken, Error as EngineError};
use magnus::rb_sys::protect;
use magnus::value::ReprValue;
use magnus::{Error, Module, RModule, Ruby, Value};

use crate::error;

/// Where the latest panic happened; worker threads panic elsewhere than where it is caught.
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    static PANIC_PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics become exceptions, so their place goes into the message instead of to stderr.
pub fn init() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string);
        PANIC_PLACE.with(|slot| slot.borrow_mut().clone_from(&place));
        *LAST_PANIC.lock().unwrap_or_else(|e| e.into_inner()) = place;
    }));
}

/// Runs `work` without the GVL in the engine's pool. `work` is called again after an interrupt
/// that raised nothing: it goes on from the state it captured, or starts afresh.
pub fn leave<T, F>(ruby: &Ruby, mut work: F) -> Result<T, Error>
where
    T: Send,
    F: FnMut(&CancelToken) -> engine::Result<T> + Send,
{
    leave_waiting(ruby, |cancel| {
        threads::install(|| work(cancel)).and_then(|result| result)
    })
}

/// `leave` on the calling thread, for work that waits more than it computes, or that goes to the pool
/// part by part: it must not keep a worker of the pool from those that compute.
pub fn leave_waiting<T, F>(ruby: &Ruby, mut work: F) -> Result<T, Error>
where
    T: Send,
    F: FnMut(&CancelToken) -> engine::Result<T> + Send,
{
    let token = CancelToken::new();
    loop {
        token.reset();
        let outcome = call_without_gvl(&mut work, &token);
        forward_log(ruby)?;
        match outcome {
            // Nothing at all: Ruby had an interrupt pending and did not start the work.
            None => check_interrupts()?,
            Some(Ok(Err(EngineError::Interrupted))) if token.is_cancelled() => check_interrupts()?,
            Some(Ok(result)) => {
                // An interrupt that came too late to stop the work must not wait for the next call of
                // Ruby: that may be one of magnus that takes no exception.
                if token.is_cancelled() {
                    check_interrupts()?;
                }
                return result.map_err(error::raised(ruby));
            }
            Some(Err(payload)) => return Err(panicked(ruby, payload)),
        }
    }
}

/// Runs short `work` with the GVL held; a panic becomes `InternalError`.
pub fn hold<T>(ruby: &Ruby, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(panicked(ruby, payload)))
}

type Outcome<T> = std::thread::Result<engine::Result<T>>;

struct Call<'a, T, F> {
    work: &'a mut F,
    token: &'a CancelToken,
    outcome: Option<Outcome<T>>,
}

fn call_without_gvl<T, F>(work: &mut F, token: &CancelToken) -> Option<Outcome<T>>
where
    T: Send,
    F: FnMut(&CancelToken) -> engine::Result<T> + Send,
{
    let mut call = Call {
        work,
        token,
        outcome: None,
    };
    // Without the second flag Ruby starts a thread for every call of a program that has just one, and
    // the garbage of that thread can keep interrupts pending for ever.
    let flags = rb_sys::RB_NOGVL_INTR_FAIL | rb_sys::RB_NOGVL_UBF_ASYNC_SAFE;
    // SAFETY: `call` and `token` outlive this blocking call; `run` and `unblock` receive exactly
    // these pointers and neither touches Ruby nor unwinds, and `unblock` only stores to an atomic,
    // which a signal handler may do. INTR_FAIL does not raise on return, so no Rust frame is jumped
    // over.
    unsafe {
        rb_sys::rb_nogvl(
            Some(run::<T, F>),
            ptr::from_mut(&mut call).cast(),
            Some(unblock),
            ptr::from_ref(token).cast_mut().cast(),
            flags as std::ffi::c_int,
        );
    }
    call.outcome
}

unsafe extern "C" fn run<T, F>(data: *mut c_void) -> *mut c_void
where
    T: Send,
    F: FnMut(&CancelToken) -> engine::Result<T> + Send,
{
    // SAFETY: `data` is the `Call` that `call_without_gvl` passed and still owns.
    let call = unsafe { &mut *data.cast::<Call<'_, T, F>>() };
    let (work, token) = (&mut *call.work, call.token);
    let work = || pooled(|| threads::interruptible(token, || work(token)));
    call.outcome = Some(panic::catch_unwind(AssertUnwindSafe(work)));
    ptr::null_mut()
}

unsafe extern "C" fn unblock(data: *mut c_void) {
    // SAFETY: `data` is the token that `call_without_gvl` passed and still borrows.
    unsafe { &*data.cast::<CancelToken>() }.cancel();
}

/// Raises what Ruby has pending for this thread, as an `Error` that unwinds Rust properly.
pub fn check_interrupts() -> Result<(), Error> {
    protect(|| {
        // SAFETY: called with the GVL held, inside `protect`.
        unsafe { rb_sys::rb_thread_check_ints() };
        rb_sys::Qnil as rb_sys::VALUE
    })
    .map(|_| ())
}

fn panicked(ruby: &Ruby, payload: Box<dyn Any + Send>) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    let place = PANIC_PLACE
        .with(|slot| slot.borrow_mut().take())
        .or_else(|| LAST_PANIC.lock().unwrap_or_else(|e| e.into_inner()).take())
        .unwrap_or_else(|| "an unknown place".to_owned());
    error::to_ruby(
        ruby,
        EngineError::Internal(format!(
            "internal error in red-candle: {message} (at {place}). Please report it"
        )),
    )
}

/// Hands the engine's messages to `Candle.logger`. A logger that fails is the user's business, and
/// must not lose the result at hand; what arrives from outside while it writes (`Timeout`, `raise`,
/// `kill`, a signal) goes on.
fn forward_log(ruby: &Ruby) -> Result<(), Error> {
    for (level, message) in base::runtime::log::drain() {
        let method = match level {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
        };
        ruby.class_object()
            .const_get::<_, RModule>("Candle")?
            .funcall::<_, _, Value>("log_from_engine", (ruby.to_symbol(method), message))?;
    }
    Ok(())
}
