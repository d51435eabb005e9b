//! Counted references.

use std::cell::RefCell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
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

    /// As a method returns an object whose name does not begin with `new`, `alloc` or `copy`: the pool of the thread
    /// has a reference, too, until it is drained. Whether Objective-C's runtime takes the shorter way is up to the
    /// compiler; here it never does.
    pub fn soft_autoreleased(self) -> Self {
        // SAFETY: the object lives and is behind an `Arc`; the count that is raised belongs to the new reference.
        let object = unsafe {
            let object = self.pointer.as_ptr().cast::<AnyObject>().cast_const();
            Arc::increment_strong_count(object);
            Arc::from_raw(object)
        };
        AUTORELEASED.fetch_add(1, Ordering::Relaxed);
        POOLED.with_borrow_mut(|pooled| pooled.0.push(object));
        self
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

/// Objects in pools that are not drained, of all threads.
static AUTORELEASED: AtomicUsize = AtomicUsize::new(0);

/// What is autoreleased on a thread, the pools' objects one behind the other; without a pool it stays until the thread
/// ends.
#[derive(Default)]
struct Pooled(Vec<Arc<AnyObject>>);

impl Drop for Pooled {
    fn drop(&mut self) {
        AUTORELEASED.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

thread_local! {
    static POOLED: RefCell<Pooled> = RefCell::default();
}

/// How many autoreleased objects wait for their pool.
pub fn soft_autoreleased_count() -> usize {
    AUTORELEASED.load(Ordering::Relaxed)
}

/// Runs `run` with a pool that is drained at the end, unless `SOFTMETAL_PLANT` is `no-pools`.
pub fn autoreleasepool<R>(run: impl FnOnce(()) -> R) -> R {
    /// How many objects the pools around it have.
    struct Drains(usize);
    impl Drop for Drains {
        fn drop(&mut self) {
            let own = POOLED.with_borrow_mut(|pooled| pooled.0.split_off(self.0));
            drop(Pooled(own));
        }
    }
    if has_no_pools() {
        return run(());
    }
    let _drains = Drains(POOLED.with_borrow(|pooled| pooled.0.len()));
    run(())
}

fn has_no_pools() -> bool {
    static PLANTED: OnceLock<bool> = OnceLock::new();
    *PLANTED.get_or_init(|| {
        std::env::var_os("SOFTMETAL_PLANT").is_some_and(|plant| plant == "no-pools")
    })
}
