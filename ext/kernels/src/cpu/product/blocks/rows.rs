//! Rows of bytes as the products read them.

use super::format::GROUP;
use super::quantize::{ByteRows, Group, FINER, PLANES};

/// Some rows of x.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    bytes: *const i8,
    groups: *const Group,
    /// Groups in a row.
    pub width: usize,
}

/// What the elements of a group share, by row of x.
///
/// # Safety
/// Every method needs a row that is there.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Shared {
    /// What 1 is worth of the whole numbers that stand for the elements.
    unsafe fn scale(&self, row: usize) -> f32;
    /// The sum of the elements.
    unsafe fn sum(&self, row: usize) -> f32;
    /// The sum of the whole numbers of half a group.
    unsafe fn half_sum(&self, row: usize, half: usize) -> f32;
}

/// A group of some rows.
pub(super) struct InGroup<'a>(&'a Rows, usize);

impl Rows {
    /// From a row on.
    pub fn new(x: &ByteRows, row: usize, width: usize) -> Self {
        let first = row * PLANES * width;
        Self {
            bytes: x.bytes[first * GROUP..].as_ptr(),
            groups: x.groups[first..].as_ptr(),
            width,
        }
    }

    #[inline(always)]
    pub unsafe fn group(&self, row: usize, plane: usize, group: usize) -> Group {
        // SAFETY: the caller vouches for the row, the plane and the group, of which each row has `width` for every
        // plane.
        unsafe { *self.groups.add((row * PLANES + plane) * self.width + group) }
    }

    #[inline(always)]
    pub fn in_group(&self, group: usize) -> InGroup<'_> {
        InGroup(self, group)
    }

    /// The rows from `row` on.
    #[inline(always)]
    pub unsafe fn starting_at(&self, row: usize) -> Self {
        let groups = row * PLANES * self.width;
        // SAFETY: the caller vouches that the row is one of these, so that both pointers stay within their slices.
        unsafe {
            Self {
                bytes: self.bytes.add(groups * GROUP),
                groups: self.groups.add(groups),
                width: self.width,
            }
        }
    }

    #[inline(always)]
    pub unsafe fn step(&self, row: usize, plane: usize, group: usize, step: usize) -> *const i8 {
        let group = (row * PLANES + plane) * self.width + group;
        // SAFETY: the caller vouches for the row, the plane, the group and the step, of which a group has eight.
        unsafe { self.bytes.add(group * GROUP + 4 * step) }
    }

    /// Where the 16 inputs of half a group are: in both planes, or, where planes are joined, by eights.
    #[inline(always)]
    pub unsafe fn half(
        &self,
        row: usize,
        group: usize,
        half: usize,
        joined: bool,
    ) -> [*const i8; PLANES] {
        // SAFETY: the caller vouches for the row and the group, of which a half is one of two.
        unsafe {
            if joined {
                let group = (row * self.width + group) * PLANES;
                let first = self.bytes.add(group * GROUP + half * GROUP);
                return [first, first.add(GROUP / 2)];
            }
            [
                self.step(row, 0, group, 4 * half),
                self.step(row, 1, group, 4 * half),
            ]
        }
    }
}

impl InGroup<'_> {
    /// Of the last plane, whose scale and sum are those of the elements.
    #[inline(always)]
    unsafe fn last(&self, row: usize) -> Group {
        // SAFETY: the caller vouches for the row; the group is one of its own, and the last plane exists.
        unsafe { self.0.group(row, PLANES - 1, self.1) }
    }
}

impl Shared for InGroup<'_> {
    #[inline(always)]
    unsafe fn scale(&self, row: usize) -> f32 {
        // SAFETY: the caller vouches for the row.
        unsafe { self.last(row) }.scale
    }

    #[inline(always)]
    unsafe fn sum(&self, row: usize) -> f32 {
        // SAFETY: the caller vouches for the row.
        unsafe { self.last(row) }.sum
    }

    #[inline(always)]
    unsafe fn half_sum(&self, row: usize, half: usize) -> f32 {
        let mut sum = 0;
        for plane in 0..PLANES {
            // SAFETY: the caller vouches for the row; the group is one of its own, and `plane` one of the planes.
            sum = FINER * sum + unsafe { self.0.group(row, plane, self.1) }.byte_sums[half];
        }
        sum as f32
    }
}
