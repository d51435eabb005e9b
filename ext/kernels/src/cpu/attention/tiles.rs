//! The products inside attention by tiles of bf16, on 32 queries at a time.

use std::ops::Range;

use super::few_queries::StridedRows;
use super::scores::pack_keys;
use crate::cpu::isa::{dispatched, Isa};
use crate::cpu::product::amx::{multiply_bf16, Operands, Tiles, TILE};
use crate::cpu::product::gemm::PANEL;
use crate::cpu::rows::softmax::{bf16_exponentials, bf16_multiples};
use crate::cpu::simd::Simd;

/// Queries that are worked on together: two tiles.
pub const TILED_QUERIES: usize = 2 * TILE;

/// Keys, widths and value widths are padded to this by zeros: the depth of a tile, and a panel.
const PADDING: usize = 32;

/// One sequence under one head; everything it needs lies in the caller's scratch.
///
/// Many queries are the rows of products with panels of keys. Of few queries one panel is made, and the
/// keys are the rows, read where they lie: a product's factors may change places, so that a score is the
/// same to the bit either way.
pub struct TiledUnit<'a> {
    isa: Isa,
    tiles: Tiles,
    /// Panels of 32 keys, each [width / 2, 32] pairs; of few queries the one panel of those.
    keys: &'a mut [u32],
    /// Panels of 32 columns, each [keys / 2, 32] pairs of neighbouring keys.
    values: &'a mut [u32],
    /// [32, width], rows that are not set are zeros: queries that can't be read where they lie, or keys where the
    /// queries are few.
    queries: &'a mut [u16],
    /// [32, keys]
    scores: &'a mut [f32],
    /// [32, keys], probabilities but for a factor for each row.
    exponentials: &'a mut [u16],
    factors: [f32; TILED_QUERIES],
    /// [32, value width]
    sums: &'a mut [f32],
    padded: Sizes,
}

/// Keys, width and value width.
type Sizes = (usize, usize, usize);

fn padded((keys, width, value_width): Sizes) -> Sizes {
    let up = |size: usize| size.max(1).next_multiple_of(PADDING);
    (up(keys), up(width), up(value_width))
}

impl<'a> TiledUnit<'a> {
    /// How many f32 the scratch must hold.
    pub fn room(sizes: Sizes, few: bool) -> usize {
        Self::parts(padded(sizes), few).iter().sum()
    }

    fn parts((keys, width, value_width): Sizes, few: bool) -> [usize; 6] {
        let in_panels = if few { PANEL } else { keys };
        [
            in_panels * width / 2,
            keys * value_width / 2,
            TILED_QUERIES * width / 2,
            TILED_QUERIES * keys,
            TILED_QUERIES * keys / 2,
            TILED_QUERIES * value_width,
        ]
    }

    /// Runs on `Isa::Amx` alone.
    pub fn new(isa: Isa, sizes: Sizes, few: bool, scratch: &'a mut [f32]) -> Self {
        assert!(isa == Isa::Amx);
        let padded = padded(sizes);
        let [keys, values, queries, scores, exponentials, _] = Self::parts(padded, few);
        let (keys, rest) = scratch.split_at_mut(keys);
        let (values, rest) = rest.split_at_mut(values);
        let (queries, rest) = rest.split_at_mut(queries);
        let (scores, rest) = rest.split_at_mut(scores);
        let (exponentials, sums) = rest.split_at_mut(exponentials);
        let mut unit = Self {
            isa,
            // SAFETY: the CPU has AMX, since the set of this name is only available where tiles are usable; no
            // pointer is passed.
            tiles: unsafe { Tiles::configure(TILE) },
            keys: words(keys),
            values: words(values),
            queries: half_words(queries),
            scores,
            exponentials: half_words(exponentials),
            factors: [0.0; TILED_QUERIES],
            sums,
            padded,
        };
        unit.clear_padding(sizes);
        unit
    }

    /// Zeros wherever `set_keys`, `set_values` and `set_row` do not write.
    fn clear_padding(&mut self, (keys, width, value_width): Sizes) {
        let (_, padded_width, padded_values) = self.padded;
        if keys % PANEL != 0 || width != padded_width || keys == 0 {
            self.keys.fill(0);
        }
        if value_width != padded_values {
            self.values.fill(0);
        } else {
            for panel in self.values.chunks_mut(self.padded.0 / 2 * PANEL) {
                panel[keys / 2 * PANEL..].fill(0);
            }
        }
        self.queries.fill(0);
    }

    /// So many keys from the first of a panel on; `key` counts from there, and gives rows of one slice that
    /// are evenly apart.
    pub fn set_keys<'k>(&mut self, first: usize, count: usize, key: impl Fn(usize) -> &'k [u16]) {
        assert!(first.is_multiple_of(PANEL) && (1..=PANEL).contains(&count));
        let Some(rows) = in_pairs(key(0), key(count - 1), count) else {
            return (0..count).for_each(|at| self.set_key(first + at, key(at)));
        };
        let panel = &mut self.keys[first * self.padded.1 / 2..][..rows.width * PANEL];
        pack_keys(self.isa, (rows, count), singles(panel));
    }

    fn set_key(&mut self, key: usize, row: &[u16]) {
        let panel = key / PANEL * (self.padded.1 / 2) * PANEL + key % PANEL;
        for (to, pair) in self.keys[panel..]
            .iter_mut()
            .step_by(PANEL)
            .zip(row.chunks(2))
        {
            *to = join(pair[0], pair.get(1).copied().unwrap_or(0));
        }
    }

    /// Two neighbouring keys' values, the first of an even number.
    pub fn set_values(&mut self, key: usize, first: &[u16], second: Option<&[u16]>) {
        let pairs = self.padded.0 / 2;
        for (panel, part) in first.chunks(PANEL).enumerate() {
            let to = &mut self.values[(panel * pairs + key / 2) * PANEL..][..part.len()];
            match second {
                Some(second) => {
                    let second = &second[panel * PANEL..][..part.len()];
                    let (from, to) = ((part.as_ptr(), second.as_ptr()), to.as_mut_ptr());
                    // SAFETY: `first`, `second` and `to` are slices of `part.len()` elements; `isa` was detected.
                    unsafe { join_rows(self.isa, from, to, part.len()) };
                }
                None => to
                    .iter_mut()
                    .zip(part)
                    .for_each(|(to, &first)| *to = join(first, 0)),
            }
        }
    }

    /// One of few queries, which `score_few` takes.
    pub fn set_few(&mut self, query: usize, row: &[u16]) {
        assert!(query < PANEL);
        self.set_key(query, row);
    }

    /// `score` for queries that `set_few` took: `key` gives rows of one slice that are evenly
    /// apart.
    pub fn score_few<'k>(
        &mut self,
        count: usize,
        seen: &Range<usize>,
        key: impl Fn(usize) -> &'k [u16],
    ) {
        let (keys, width, value_width) = self.padded;
        assert!(count <= PANEL && seen.end <= keys);
        for first in seen.clone().step_by(TILED_QUERIES) {
            let rows = TILED_QUERIES.min(seen.end - first);
            let operand = self.rows((first, rows), &key);
            let (panel, out) = (self.keys.as_ptr(), self.sums.as_mut_ptr());
            // SAFETY: there are 32 rows of keys, as wide as the panel is deep, and the sums have 32 rows of whole
            // panels; `Tiles` exists only on a CPU with AMX and AVX-512.
            unsafe { multiply(&self.tiles, rows, operand, panel, width, (out, value_width)) };
            for (row, sums) in self.sums.chunks(value_width).enumerate().take(rows) {
                for (query, &score) in sums.iter().enumerate().take(count) {
                    self.scores[query * keys + first + row] = score;
                }
            }
        }
    }

    fn set_row(&mut self, row: usize, numbers: &[u16]) {
        self.queries[row * self.padded.1..][..numbers.len()].copy_from_slice(numbers);
    }

    /// The scores of `count` queries with the keys of `seen`. `query` gives rows of one slice that are evenly
    /// apart.
    pub fn score<'q>(
        &mut self,
        count: usize,
        seen: &Range<usize>,
        query: impl Fn(usize) -> &'q [u16],
    ) {
        let (keys, width, _) = self.padded;
        assert!(count <= TILED_QUERIES && seen.end <= keys);
        let operand = self.rows((0, count), query);
        for first in (seen.start / PANEL * PANEL..seen.end).step_by(PANEL) {
            let panel = self.keys[first / PANEL * (width / 2) * PANEL..].as_ptr();
            let out = self.scores[first..].as_mut_ptr();
            // SAFETY: there are 32 rows of queries, as wide as the panel is deep, and the scores have 32 rows of
            // whole panels; `Tiles` exists only on a CPU with AMX and AVX-512.
            unsafe { multiply(&self.tiles, count, operand, panel, width, (out, keys)) };
        }
    }

    /// The scores of a query.
    pub fn scores(&mut self, row: usize) -> &mut [f32] {
        let keys = self.padded.0;
        &mut self.scores[row * keys..][..keys]
    }

    /// Turns the scores of a query, which sees these keys of `all`, into probabilities.
    pub fn soften(&mut self, row: usize, seen: &Range<usize>, all: &Range<usize>, scale: f32) {
        let keys = self.padded.0;
        let padded = padded_range(all);
        assert!(padded.end <= keys);
        let exponentials = &mut self.exponentials[row * keys..][..keys];
        if seen.is_empty() {
            exponentials[padded].fill(0);
            self.factors[row] = 0.0;
            return;
        }
        assert!(padded.start <= seen.start && seen.end <= padded.end);
        exponentials[padded.start..seen.start].fill(0);
        exponentials[seen.end..padded.end].fill(0);
        let from = self.scores[row * keys..][seen.clone()].as_ptr();
        let to = exponentials[seen.clone()].as_mut_ptr();
        // SAFETY: both have the keys that are seen; `Tiles` exists only on a CPU with AMX, which has AVX512-BF16.
        let sum = unsafe { bf16_exponentials(from, to, seen.len(), scale) };
        self.factors[row] = 1.0 / sum;
    }

    /// 32 rows, of which `count` from `first` on are `row`'s, and how far they are apart: where they lie, or copied
    /// where there are fewer or narrower ones.
    fn rows<'r>(
        &mut self,
        (first, count): (usize, usize),
        row: impl Fn(usize) -> &'r [u16],
    ) -> (*const u16, usize) {
        let width = self.padded.1;
        if count == TILED_QUERIES && row(first).len() == width {
            let (start, next) = (row(first).as_ptr(), row(first + 1).as_ptr());
            // SAFETY: both rows lie in one slice, the second behind the first.
            return (start, unsafe { next.offset_from_unsigned(start) });
        }
        for at in 0..count {
            self.set_row(at, row(first + at));
        }
        (self.queries.as_ptr(), width)
    }

    /// The sums of the values of `seen` keys by the probabilities of `count` softened queries, to the places of
    /// their rows, `width` numbers each.
    ///
    /// # Safety
    /// The places have room for a row.
    pub unsafe fn weigh(
        &mut self,
        count: usize,
        seen: &Range<usize>,
        width: usize,
        place: impl Fn(usize) -> *mut u16,
    ) {
        let (keys, _, value_width) = self.padded;
        assert!(count <= TILED_QUERIES && seen.end <= keys && width <= value_width);
        let Range {
            start: first,
            end: last,
        } = padded_range(seen);
        for column in (0..value_width).step_by(PANEL) {
            let pairs = column * keys / 2 + first / 2 * PANEL;
            let out = self.sums[column..].as_mut_ptr();
            if first == last {
                self.sums[..count * value_width].fill(0.0);
                break;
            }
            let operand = (self.exponentials[first..].as_ptr(), keys);
            let panel = self.values[pairs..].as_ptr();
            // SAFETY: the exponentials have 32 rows of `keys`, the panel is deep enough from this pair on, and the
            // sums have 32 rows of whole panels; `Tiles` exists only on a CPU with AMX and AVX-512.
            unsafe {
                multiply(
                    &self.tiles,
                    count,
                    operand,
                    panel,
                    last - first,
                    (out, value_width),
                );
            }
        }
        let rows = self.sums.chunks_exact(value_width).zip(&self.factors);
        for (row, (sums, &factor)) in rows.enumerate().take(count) {
            // SAFETY: the sums are as long, and the caller vouches for the place; `Tiles` exists only on a CPU with
            // AMX, which has AVX512-BF16.
            unsafe { bf16_multiples(sums.as_ptr(), place(row), width, factor) };
        }
    }
}

/// Whole tiles of keys around those that are seen.
fn padded_range(seen: &Range<usize>) -> Range<usize> {
    seen.start / PADDING * PADDING..seen.end.next_multiple_of(PADDING)
}

/// # Safety
/// `x` has 32 rows of `depth`, a multiple of 32, `stride` apart; `panel` holds as many inputs; `out`
/// has 32 rows, and 32 columns of each.
unsafe fn multiply(
    tiles: &Tiles,
    count: usize,
    (x, stride): (*const u16, usize),
    panel: *const u32,
    depth: usize,
    (out, out_stride): (*mut f32, usize),
) {
    let operands = Operands {
        a: x.cast(),
        a_stride: stride * size_of::<u16>(),
        b: panel.cast(),
        steps: depth / PADDING,
        sums: out.cast(),
        stride: out_stride * size_of::<f32>(),
        later: None,
    };
    // SAFETY: the caller promises 32 rows of `depth` at `x`, a panel as deep, and 32 rows at `out`, at these
    // strides; `Tiles` exists only where AMX does.
    unsafe { multiply_bf16(tiles, count, operands) };
}

/// `count` rows of halves as rows of pairs, of which the first and the last are given; none where a pair does
/// not begin with every row.
fn in_pairs<'a>(first: &'a [u16], last: &'a [u16], count: usize) -> Option<StridedRows<'a>> {
    let apart = last.as_ptr() as usize - first.as_ptr() as usize;
    let stride = apart / (count - 1).max(1);
    let whole = |bytes: usize| bytes.is_multiple_of(size_of::<f32>());
    let fits = whole(first.as_ptr() as usize) && whole(stride) && whole(size_of_val(first));
    let (stride, width) = (stride / size_of::<f32>(), first.len() / 2);
    fits.then(|| StridedRows {
        // SAFETY: both rows lie in one slice, the last behind the first, at addresses of f32; every bit pattern
        // is a value of both types.
        values: unsafe {
            std::slice::from_raw_parts(first.as_ptr().cast(), (count - 1) * stride + width)
        },
        stride,
        width,
    })
}

#[inline(always)]
fn join(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

/// As the compiler makes it of the instruction set.
#[inline(always)]
unsafe fn join_rows_with<S: Simd>(
    (first, second): (*const u16, *const u16),
    to: *mut u32,
    count: usize,
) {
    for at in 0..count {
        // SAFETY: `first` and `second` are valid for reads and `to` for writes of `count` elements, as the caller
        // promises.
        unsafe { *to.add(at) = join(*first.add(at), *second.add(at)) };
    }
}

dispatched! {
    /// # Safety
    /// All have the length.
    unsafe fn join_rows(rows: (*const u16, *const u16), to: *mut u32, count: usize) = join_rows_with
}

fn words(values: &mut [f32]) -> &mut [u32] {
    // SAFETY: both types have one size and alignment, and every bit pattern is a value of both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

fn singles(words: &mut [u32]) -> &mut [f32] {
    // SAFETY: both types have one size and alignment, and every bit pattern is a value of both.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
}

fn half_words(values: &mut [f32]) -> &mut [u16] {
    // SAFETY: two halves fit an f32, whose alignment is larger; every bit pattern is a value of both.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), 2 * values.len()) }
}
