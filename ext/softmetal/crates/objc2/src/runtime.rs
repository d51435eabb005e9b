//! Objects, known as themselves or by a protocol.

use std::any::Any;
use std::marker::PhantomData;

use crate::Message;

pub struct AnyObject {
    body: Box<dyn Any>,
}

impl AnyObject {
    pub fn soft_new(body: impl Any) -> Self {
        Self {
            body: Box::new(body),
        }
    }

    /// The Rust value of an object.
    ///
    /// # Panics
    /// Where the object is of another class.
    pub fn soft_body<B: Any>(&self) -> &B {
        self.body
            .downcast_ref()
            .expect("the object is of another class")
    }
}

/// An object known by a protocol it conforms to.
#[repr(transparent)]
pub struct ProtocolObject<P: ?Sized> {
    object: AnyObject,
    protocol: PhantomData<P>,
}

impl<P: ?Sized> ProtocolObject<P> {
    pub fn from_ref<T: Message>(object: &T) -> &Self {
        // SAFETY: both are transparent views of an `AnyObject`.
        unsafe { &*(object as *const T).cast() }
    }

    pub fn soft_body<B: Any>(&self) -> &B {
        self.object.soft_body()
    }
}

pub trait NSObjectProtocol {}
impl<P: ?Sized> NSObjectProtocol for ProtocolObject<P> {}
