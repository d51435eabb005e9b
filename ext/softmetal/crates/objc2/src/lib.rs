//! Stands in for objc2 without an Objective-C runtime: an object is a Rust value behind an `Arc`, and every class or
//! protocol type is a transparent view of it. Names that begin with `soft` do not exist in objc2.

pub mod rc;
pub mod runtime;

/// # Safety
/// The type is a transparent view of an `AnyObject`.
pub unsafe trait Message {}
// SAFETY: it is one.
unsafe impl Message for runtime::AnyObject {}
// SAFETY: `repr(transparent)`.
unsafe impl<P: ?Sized> Message for runtime::ProtocolObject<P> {}

#[doc(hidden)]
pub fn soft_msg_send<T: Message>(object: &T, _selector: &str) -> *const runtime::AnyObject {
    (object as *const T).cast()
}

/// candle only asks whether a property is nil; here none is.
#[macro_export]
macro_rules! msg_send {
    [$object:expr, $selector:ident] => { $crate::soft_msg_send($object, stringify!($selector)) };
}

/// Every version of the system is available.
#[macro_export]
macro_rules! available {
    ($($condition:tt)*) => {
        true
    };
}
