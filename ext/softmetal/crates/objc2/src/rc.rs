//! Counted references.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{any, fmt, hash};

use crate::runtime::AnyObject;
use crate::Message;

/// A counted reference to an object seen as `T`.
pub struct Retained<T: Message> {
    pointer: NonNull<T>,
}

impl<T: Message> Retained<T> {
    /// A new object with a Rust body.
    pub fn soft_new(body: impl any::Any) -> Self {
        let object = Arc::into_raw(Arc::new(AnyObject::soft_new(body)));
        Self {
            pointer: NonNull::new(object.cast_mut().cast()).expect("an Arc is not null"),
        }
    }

    /// Another reference to a living object, which was made by `soft_new`.
    pub fn soft_from_ref(object: &T) -> Self {
        let pointer = NonNull::from(object);
        // SAFETY: objects exist behind an `Arc` only, and this one lives.
        unsafe { Arc::increment_strong_count(pointer.as_ptr().cast::<AnyObject>()) };
        Self { pointer }
    }

    pub fn as_ptr(this: &Self) -> *const T {
        this.pointer.as_ptr()
    }
}

impl<T: Message> Clone for Retained<T> {
    fn clone(&self) -> Self {
        Self::soft_from_ref(self)
    }
}

impl<T: Message> Drop for Retained<T> {
    fn drop(&mut self) {
        // SAFETY: `self` owns one reference, which is released once, here.
        unsafe { Arc::decrement_strong_count(self.pointer.as_ptr().cast::<AnyObject>()) };
    }
}

impl<T: Message> Deref for Retained<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object lives as long as this reference.
        unsafe { self.pointer.as_ref() }
    }
}

impl<T: Message> AsRef<T> for Retained<T> {
    fn as_ref(&self) -> &T {
        self
    }
}

impl<T: Message> fmt::Debug for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<object {:p}>", self.pointer)
    }
}

impl<T: Message + fmt::Display> fmt::Display for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Identity, as NSObject's `isEqual:` and `hash`.
impl<T: Message> PartialEq for Retained<T> {
    fn eq(&self, other: &Self) -> bool {
        self.pointer == other.pointer
    }
}

impl<T: Message> Eq for Retained<T> {}

impl<T: Message> hash::Hash for Retained<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.pointer.hash(state)
    }
}

// SAFETY: the count is atomic.
unsafe impl<T: Message + Sync + Send> Send for Retained<T> {}
// SAFETY: as above.
unsafe impl<T: Message + Sync + Send> Sync for Retained<T> {}

pub fn autoreleasepool<R>(run: impl FnOnce(()) -> R) -> R {
    run(())
}
