//! Where a group of a panel lies.

use super::format::Format;

/// A group in a panel, from the first lane of a vector on.
#[derive(Clone, Copy)]
pub(super) struct Place<V> {
    /// Of the block.
    pub scale: V,
    pub minimum: V,
    /// The group's own bytes of scale and of minimum.
    pub scales: *const u8,
    pub minimums: *const u8,
    /// Its low bits, and its high ones.
    pub planes: (*const u8, *const u8),
}

impl<V: Copy> Place<V> {
    /// The group at `at` of a block whose scale and minimum are `shared`, from the lane `first` on.
    #[inline(always)]
    pub fn new<F: Format>(shared: [V; 2], at: *const u8, first: usize) -> Self {
        let high = at.wrapping_add(F::SCALE_BYTES);
        // Four bytes of low bits a lane, as of two high bits; half a byte of masks.
        let high_lane = match F::HIGH_BITS {
            1 => first / 2,
            _ => 4 * first,
        };
        Self {
            scale: shared[0],
            minimum: shared[1],
            scales: at.wrapping_add(first),
            minimums: at.wrapping_add(F::STEP_BYTES + first),
            planes: (
                high.wrapping_add(F::HIGH_BYTES + 4 * first),
                high.wrapping_add(high_lane),
            ),
        }
    }
}
