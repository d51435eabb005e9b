//! Pools for what Metal's calls autorelease.

/// Runs `work`, and releases at its end what it autoreleased: command buffers and encoders, which candle makes in every
/// step and has no pool for. Without a pool around them they live as long as their thread.
pub fn pooled<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(feature = "metal")]
    return objc2::rc::autoreleasepool(|_| work());
    #[cfg(not(feature = "metal"))]
    work()
}
