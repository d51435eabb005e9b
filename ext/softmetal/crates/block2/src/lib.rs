//! Stands in for block2: blocks of one argument, each a closure behind an `Arc`.

use std::sync::Arc;

pub struct Block<F: ?Sized>(Box<F>);
pub type DynBlock<F> = Block<F>;

pub struct RcBlock<F: ?Sized>(Arc<Block<F>>);

impl<A: 'static> RcBlock<dyn Fn(A)> {
    pub fn new(closure: impl Fn(A) + 'static) -> Self {
        Self(Arc::new(Block(Box::new(closure))))
    }

    /// # Safety
    /// The pointer is null or came from [`RcBlock::as_ptr`] of a living block.
    pub unsafe fn copy(block: *mut Block<dyn Fn(A)>) -> Option<Self> {
        if block.is_null() {
            return None;
        }
        // SAFETY: as promised above.
        unsafe {
            Arc::increment_strong_count(block);
            Some(Self(Arc::from_raw(block)))
        }
    }

    pub fn as_ptr(this: &Self) -> *mut Block<dyn Fn(A)> {
        Arc::as_ptr(&this.0).cast_mut()
    }

    pub fn call(&self, argument: (A,)) {
        (self.0 .0)(argument.0)
    }
}
