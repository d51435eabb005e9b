//! Objects as the other side sees them: a pointer to a counted value of a known kind.

use std::sync::Arc;

use softmetal_interface::Raw;

use crate::commands::{CommandBuffer, Fence, Queue, Recorder};
use crate::library::{Function, Library, Pipeline};
use crate::memory::Allocation;

pub enum Object {
    Buffer(Arc<Allocation>),
    Library(Library),
    Function(Function),
    Pipeline(Arc<Pipeline>),
    Fence(Arc<Fence>),
    Queue(Arc<Queue>),
    CommandBuffer(Arc<CommandBuffer>),
    Encoder(Recorder),
}

impl Object {
    /// A reference that the caller releases.
    pub fn give(self) -> Raw {
        Arc::into_raw(Arc::new(self)).cast()
    }

    /// # Safety
    /// The object lives, and as long as the result.
    pub unsafe fn get<'a>(raw: Raw) -> &'a Object {
        // SAFETY: as promised above.
        unsafe { &*raw.cast::<Object>() }
    }
}

/// # Safety
/// The object lives.
pub unsafe extern "C" fn retain(raw: Raw) {
    // SAFETY: as promised above.
    unsafe { Arc::increment_strong_count(raw.cast::<Object>()) };
}

/// # Safety
/// The caller owns a reference, which this call releases.
pub unsafe extern "C" fn release(raw: Raw) {
    // SAFETY: as promised above.
    unsafe { drop(Arc::from_raw(raw.cast::<Object>())) };
}

fn wrong(raw: Raw, wanted: &str) -> ! {
    eprintln!("softmetal: the object {raw:p} is no {wanted}");
    std::process::abort();
}

macro_rules! views {
    ($($function:ident: $variant:ident => $kind:ty;)*) => {$(
        /// # Safety
        /// The object lives, and as long as the result.
        pub unsafe fn $function<'a>(raw: Raw) -> &'a $kind {
            // SAFETY: as promised above.
            match unsafe { Object::get(raw) } {
                Object::$variant(value) => value,
                _ => wrong(raw, stringify!($variant)),
            }
        }
    )*};
}

views! {
    buffer: Buffer => Arc<Allocation>;
    library: Library => Library;
    function: Function => Function;
    pipeline: Pipeline => Arc<Pipeline>;
    fence: Fence => Arc<Fence>;
    queue: Queue => Arc<Queue>;
    command_buffer: CommandBuffer => Arc<CommandBuffer>;
    recorder: Encoder => Recorder;
}
