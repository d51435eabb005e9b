//! The pools of the crate that stands in for objc2.

use std::sync::Arc;

use objc2::rc::{autoreleasepool, soft_autoreleased_count, Retained};
use objc2::runtime::AnyObject;

#[test]
fn a_pool_releases_what_was_autoreleased_in_it() {
    let object = |body: &Arc<()>| Retained::<AnyObject>::soft_new(body.clone());
    let (outer, inner) = (Arc::new(()), Arc::new(()));
    let before = soft_autoreleased_count();
    autoreleasepool(|()| {
        drop(object(&outer).soft_autoreleased());
        let kept = autoreleasepool(|()| {
            drop(object(&inner).soft_autoreleased());
            assert_eq!(Arc::strong_count(&inner), 2);
            object(&inner).soft_autoreleased()
        });
        assert_eq!(
            (Arc::strong_count(&outer), Arc::strong_count(&inner)),
            (2, 2)
        );
        drop(kept);
        assert_eq!(soft_autoreleased_count(), before + 1);
        assert_eq!(Arc::strong_count(&inner), 1);
    });
    assert_eq!(
        (Arc::strong_count(&outer), soft_autoreleased_count()),
        (1, before)
    );
    // Without a pool it lives as long as its thread.
    let (kept, thread) = (outer.clone(), object);
    std::thread::scope(|scope| {
        let run = || {
            drop(thread(&kept).soft_autoreleased());
            assert_eq!(soft_autoreleased_count(), before + 1);
        };
        scope.spawn(run).join().expect("a thread that ends");
    });
    assert_eq!(soft_autoreleased_count(), before);
}
