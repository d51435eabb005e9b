//! What the stand-in for objc2-metal asks of the software device: a table of C functions. The device is a library of
//! its own, named by `SOFTMETAL_RUNTIME`: work on it rebuilds neither candle nor the engine, and the two sides
//! may have different allocators.

use std::ffi::{c_void, CString};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// An object of the device, borrowed for a call.
pub type Raw = *const c_void;

/// Bytes of the caller's, borrowed for a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub start: *const u8,
    pub length: usize,
}

impl Bytes {
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// # Safety
    /// The caller's bytes are alive.
    pub unsafe fn get<'a>(self) -> &'a [u8] {
        match self.length {
            0 => &[],
            // SAFETY: as promised above.
            length => unsafe { std::slice::from_raw_parts(self.start, length) },
        }
    }
}

/// The value of a function constant.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Constant {
    pub index: usize,
    pub value: Bytes,
}

/// Where a text goes that the device answers with.
#[repr(C)]
pub struct Sink {
    context: *mut c_void,
    write: unsafe extern "C" fn(*mut c_void, Bytes),
}

impl Sink {
    /// Runs `call` with a sink and returns what was written to it.
    pub fn collect<R>(call: impl FnOnce(&Sink) -> R) -> (R, String) {
        unsafe extern "C" fn append(context: *mut c_void, text: Bytes) {
            // SAFETY: the context is the `String` below, and the text is alive during the call.
            unsafe {
                let collected = &mut *context.cast::<String>();
                collected.push_str(&String::from_utf8_lossy(text.get()));
            }
        }
        let mut text = String::new();
        let sink = Sink {
            context: (&raw mut text).cast(),
            write: append,
        };
        let result = call(&sink);
        (result, text)
    }

    pub fn put(&self, text: &str) {
        // SAFETY: the maker of the sink gave a function that takes its context.
        unsafe { (self.write)(self.context, Bytes::of(text.as_bytes())) }
    }
}

/// A place in a buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Place {
    pub buffer: Raw,
    pub offset: usize,
}

pub const COMMITTED: usize = 2;
pub const COMPLETED: usize = 4;
pub const ERROR: usize = 5;

macro_rules! interface {
    ($($(#[$note:meta])* fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        /// Objects come back with a reference of the caller's, who releases it; null stands for Metal's nil.
        #[repr(C)]
        pub struct Interface {
            $($(#[$note])* pub $name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
        }
    };
}

interface! {
    fn retain(object: Raw);
    fn release(object: Raw);

    fn buffer(length: usize, private: bool) -> Raw;
    fn buffer_with_bytes(bytes: Bytes) -> Raw;
    fn length(buffer: Raw) -> usize;
    fn contents(buffer: Raw) -> *mut c_void;
    fn allocated() -> usize;

    fn library(source: Bytes) -> Raw;
    /// Null where there is none, and the sink then says why.
    fn function(library: Raw, name: Bytes, constants: *const Constant, count: usize, problem: &Sink) -> Raw;
    fn pipeline(function: Raw, problem: &Sink) -> Raw;
    fn maximum_threads(pipeline: Raw) -> usize;

    fn fence() -> Raw;
    fn queue() -> Raw;
    fn command_buffer(queue: Raw) -> Raw;
    fn commit(command_buffer: Raw);
    fn wait(command_buffer: Raw);
    /// As Metal numbers them.
    fn status(command_buffer: Raw) -> usize;
    /// Whether there is one.
    fn error(command_buffer: Raw, text: &Sink) -> bool;
    /// Calls the handler once, with its context.
    fn on_completion(command_buffer: Raw, handler: unsafe extern "C" fn(*mut c_void), context: *mut c_void);

    fn encoder(command_buffer: Raw, concurrent: bool) -> Raw;
    fn set_pipeline(encoder: Raw, pipeline: Raw);
    fn set_buffer(encoder: Raw, place: Place, index: usize);
    fn set_bytes(encoder: Raw, bytes: Bytes, index: usize);
    fn set_threadgroup_length(encoder: Raw, length: usize, index: usize);
    fn dispatch(encoder: Raw, grid: &[usize; 3], group_size: &[usize; 3]);
    fn barrier(encoder: Raw);
    fn wait_for_fence(encoder: Raw, fence: Raw);
    fn update_fence(encoder: Raw, fence: Raw);
    fn copy(encoder: Raw, from: Place, to: Place, bytes: usize);
    fn fill(encoder: Raw, place: Place, bytes: usize, value: u8);
    /// Lets go of what is bound.
    fn end(encoder: Raw);

    /// What was counted so far, as in the file that `SOFTMETAL_COUNTS` names.
    fn counts(text: &Sink);
}

/// A counted reference to an object of the device.
pub struct Handle(NonNull<c_void>);

// SAFETY: the device's objects count their references atomically and lock what they change.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes over the reference that a call returned; `None` for null.
    pub fn take(raw: Raw) -> Option<Self> {
        NonNull::new(raw.cast_mut()).map(Self)
    }

    pub fn raw(&self) -> Raw {
        self.0.as_ptr()
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // SAFETY: the object lives, since this is a reference to it.
        unsafe { (runtime().retain)(self.raw()) };
        Self(self.0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `self` owns one reference, which is released once, here.
        unsafe { (runtime().release)(self.raw()) };
    }
}

/// The device of this process.
///
/// # Panics
/// Where `SOFTMETAL_RUNTIME` names no software device.
pub fn runtime() -> &'static Interface {
    static RUNTIME: OnceLock<&'static Interface> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let path = std::env::var("SOFTMETAL_RUNTIME").unwrap_or_default();
        let text = CString::new(path.clone()).expect("a path without zero bytes");
        // SAFETY: the library is ours, and `softmetal_interface` has this type in it.
        unsafe {
            let library = libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(
                !library.is_null(),
                "SOFTMETAL_RUNTIME={path:?} does not load"
            );
            let symbol = libc::dlsym(library, c"softmetal_interface".as_ptr());
            assert!(
                !symbol.is_null(),
                "SOFTMETAL_RUNTIME={path:?} is not a software device"
            );
            let interface: extern "C" fn() -> &'static Interface = std::mem::transmute(symbol);
            interface()
        }
    })
}
