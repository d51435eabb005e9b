//! The products inside attention over pages. Every sum is one chain of multiplications in the order of
//! the depth, so that a row's result does not depend on how many rows there are beside it.

use crate::cpu::isa::dispatched;
use crate::cpu::product::row_tiles::in_row_tiles;
use crate::cpu::simd::Simd;

/// Rows of a against b, [depth, columns]; `columns` is whole vectors.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub a: *const f32,
    pub a_stride: usize,
    pub b: *const f32,
    pub b_stride: usize,
    pub depth: usize,
    pub columns: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// R rows and V vectors of columns; what `out` holds is added to where `ADD` says so.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const V: usize, const ADD: bool>(product: Product) {
    let Product {
        a,
        a_stride,
        b,
        b_stride,
        depth,
        out,
        out_stride,
        ..
    } = product;
    // SAFETY: `a` has R rows of the depth, `b` the depth in rows of V vectors from where it points, and `out` room
    // for R rows of V vectors, as the caller vouches, who has the instruction set.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        if ADD {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(out.add(r * out_stride + v * S::LANES));
                }
            }
        }
        let mut row = b;
        for k in 0..depth {
            let mut vectors = [S::splat(0.0); V];
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = S::load(row.add(v * S::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let value = S::splat(*a.add(r * a_stride + k));
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = S::fma(value, vector, *sum);
                }
            }
            // Wrapping, since after the last row it stands behind the end, by the column it began with.
            row = row.wrapping_add(b_stride);
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                S::store(out.add(r * out_stride + v * S::LANES), sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_with<S: Simd, const ADD: bool>(product: Product, rows: usize) {
    let at = |row: usize, column: usize| Product {
        a: product.a.wrapping_add(row * product.a_stride),
        b: product.b.wrapping_add(column),
        out: product.out.wrapping_add(row * product.out_stride + column),
        ..product
    };
    // SAFETY: `a` and `out` have the rows and `b` the depth, of `columns` that are whole vectors, as the caller
    // vouches, who has the instruction set; tiles lie within all three.
    unsafe {
        let mut column = 0;
        while column + 4 * S::LANES <= product.columns {
            in_row_tiles!(rows, most if S::REGISTERS >= 32 { 6 } else { 2 }, (row, HEIGHT) => {
                tile::<S, HEIGHT, 4, ADD>(at(row, column));
            });
            column += 4 * S::LANES;
        }
        while column < product.columns {
            in_row_tiles!(rows, most if S::REGISTERS >= 32 { 12 } else { 6 }, (row, HEIGHT) => {
                tile::<S, HEIGHT, 1, ADD>(at(row, column));
            });
            column += S::LANES;
        }
    }
}

#[inline(always)]
unsafe fn multiply_fresh_with<S: Simd>(product: Product, rows: usize) {
    // SAFETY: the caller has the pointers and the instruction set of `S` as `multiply_with` asks for.
    unsafe { multiply_with::<S, false>(product, rows) }
}

#[inline(always)]
unsafe fn multiply_onto_with<S: Simd>(product: Product, rows: usize) {
    // SAFETY: the caller has the pointers and the instruction set of `S` as `multiply_with` asks for; `out` holds
    // numbers.
    unsafe { multiply_with::<S, true>(product, rows) }
}

dispatched! {
    /// # Safety
    /// `a` and `out` have the rows, `b` the depth.
    pub(super) unsafe fn multiply(product: Product, rows: usize) = multiply_fresh_with
}
dispatched! {
    /// `multiply`, added to what `out` holds.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn multiply_onto(product: Product, rows: usize) = multiply_onto_with
}
