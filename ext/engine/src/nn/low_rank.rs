//! Low-rank additions to products, each for a range of the rows: sequences with several adapters, or with none, share
//! one product with the base weights.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::input_sums::InputSums;
use super::linear::{Epilogue, Linear};
use crate::Result;
use kernels::{self, Activation};

/// What a matrix's output gets in addition: B·A·x, B already scaled.
#[derive(Clone, Debug)]
pub struct LowRank {
    pub down: Linear,
    pub up: Linear,
}

/// What happens to rows of a matrix's output.
#[derive(Clone, Debug)]
pub enum RowUpdate {
    Add(Box<LowRank>),
    /// Nothing: the inputs are added up. It must be so for all rows of a forward pass.
    Observe(Arc<InputSums>),
}

impl RowUpdate {
    fn apply(&self, x: &Tensor, base: Tensor) -> Result<Tensor> {
        match self {
            Self::Add(update) => update.add(x, &base),
            Self::Observe(sums) => {
                sums.add(x)?;
                Ok(base)
            }
        }
    }
}

impl LowRank {
    /// B·A·x on top of `base`.
    fn add(&self, x: &Tensor, base: &Tensor) -> Result<Tensor> {
        let epilogue = Epilogue {
            residual: Some(base),
            ..Epilogue::default()
        };
        self.up.forward_with(&self.down.forward(x)?, &epilogue)
    }
}

/// The additions to a matrix's output, by rows. Ranges may end beyond the last row; rows in none of them get nothing,
/// those in several all of their additions. Without any it holds no memory.
#[derive(Clone, Debug, Default)]
pub struct RowUpdates<'a>(Vec<(Range<usize>, &'a RowUpdate)>);

impl<'a> FromIterator<(Range<usize>, &'a RowUpdate)> for RowUpdates<'a> {
    fn from_iter<I: IntoIterator<Item = (Range<usize>, &'a RowUpdate)>>(parts: I) -> Self {
        Self(parts.into_iter().collect())
    }
}

impl RowUpdates<'_> {
    pub const NONE: RowUpdates<'static> = RowUpdates(Vec::new());

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `base`, which is nobody else's, with the additions that `x` gives.
    pub(super) fn add(&self, x: &Tensor, base: Tensor) -> Result<Tensor> {
        let parts = self.0.iter().cloned();
        change_rows(base, parts, |base, rows, update| {
            update.apply(&x.narrow(0, rows.start, rows.len())?, base)
        })
    }

    /// Those of some rows, counted from the first of these.
    fn within(&self, rows: &Range<usize>) -> Self {
        let parts = self.0.iter().filter_map(|(range, update)| {
            let (start, end) = (range.start.max(rows.start), range.end.min(rows.end));
            (start < end).then(|| (start - rows.start..end - rows.start, *update))
        });
        parts.collect()
    }
}

/// Replaces ranges of a tensor's rows by what `change` makes of them. The tensor must be nobody else's, since it is
/// written to.
pub(crate) fn change_rows<T>(
    x: Tensor,
    parts: impl IntoIterator<Item = (Range<usize>, T)>,
    change: impl Fn(Tensor, Range<usize>, T) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut x = x;
    for (range, part) in parts {
        let count = x.dim(0)?;
        let rows = range.start.min(count)..range.end.min(count);
        if rows.len() == count {
            x = change(x, rows, part)?;
        } else if !rows.is_empty() {
            let old = x.narrow(0, rows.start, rows.len())?;
            let new = change(old, rows.clone(), part)?;
            x.slice_set(&new.contiguous()?, 0, rows.start)?;
        }
    }
    Ok(x)
}

/// The rows as stretches of which each has additions everywhere or nowhere; a single one where all are alike.
fn stretches(updates: &[RowUpdates<'_>], count: usize) -> Vec<Range<usize>> {
    let ranges = updates.iter().flat_map(|updates| &updates.0);
    let ranges = ranges.map(|(range, _)| range.start.min(count)..range.end.min(count));
    let mut ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    let (mut stretches, mut end) = (Vec::<Range<usize>>::new(), 0);
    for range in ranges {
        match stretches.last_mut() {
            // It overlaps the one before, or goes on from it.
            Some(last) if range.start <= end => last.end = last.end.max(range.end),
            _ => {
                if end < range.start {
                    stretches.push(end..range.start);
                }
                stretches.push(range.clone());
            }
        }
        end = end.max(range.end);
    }
    if end < count {
        stretches.push(end..count);
    }
    stretches
}

/// What `compute` makes of the rows with additions and of those without, each by itself, where there are both; `None`
/// where all rows are alike. A product that runs in another way with additions gives other last bits, and no row
/// depends on its neighbours.
pub(super) fn apart<'a>(
    x: &Tensor,
    updates: &[RowUpdates<'a>],
    compute: impl Fn(&Tensor, &[RowUpdates<'a>]) -> Result<Vec<Tensor>>,
) -> Result<Option<Vec<Tensor>>> {
    if updates.iter().all(RowUpdates::is_empty) {
        return Ok(None);
    }
    let stretches = stretches(updates, x.dim(0)?);
    if stretches.len() < 2 {
        return Ok(None);
    }
    let mut parts: Vec<Vec<Tensor>> = Vec::new();
    for rows in &stretches {
        let own: Vec<_> = updates.iter().map(|one| one.within(rows)).collect();
        let found = compute(&x.narrow(0, rows.start, rows.len())?, &own)?;
        parts.resize_with(found.len(), Vec::new);
        for (part, rows) in parts.iter_mut().zip(found) {
            part.push(rows);
        }
    }
    let whole = parts.iter().map(|part| Ok(Tensor::cat(part, 0)?));
    whole.collect::<Result<_>>().map(Some)
}

impl Linear {
    /// `forward`, plus the updates' B·A·x.
    pub fn forward_updated(&self, x: &Tensor, updates: &RowUpdates<'_>) -> Result<Tensor> {
        updates.add(x, self.forward(x)?)
    }

    /// A function of it.
    pub fn forward_activated(
        &self,
        x: &Tensor,
        activation: Activation,
        updates: &RowUpdates<'_>,
    ) -> Result<Tensor> {
        if updates.is_empty() {
            let epilogue = Epilogue {
                activation: Some(activation),
                ..Epilogue::default()
            };
            return self.forward_with(x, &epilogue);
        }
        let compute = |x: &Tensor, updates: &[RowUpdates<'_>]| {
            let all = updates.iter();
            let found = all.map(|updates| self.forward_activated(x, activation, updates));
            found.collect::<Result<Vec<_>>>()
        };
        match apart(x, std::slice::from_ref(updates), compute)? {
            Some(mut parts) if parts.len() == 1 => Ok(parts.remove(0)),
            _ => kernels::activate(&self.forward_updated(x, updates)?, activation),
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges are compared"
)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn linear(outputs: usize, inputs: usize, seed: usize) -> Linear {
        let values =
            (0..outputs * inputs).map(|i| ((i * 37 + seed * 101) % 29) as f32 / 29.0 - 0.4);
        let values: Vec<f32> = values.collect();
        let weight = Tensor::from_vec(values, (outputs, inputs), &Device::Cpu).unwrap();
        Linear::new(weight, None).unwrap()
    }

    fn bits(x: &Tensor) -> Vec<u32> {
        let values: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn rows_are_cut_where_additions_begin_and_end() {
        let update = RowUpdate::Add(Box::new(LowRank {
            down: linear(1, 2, 1),
            up: linear(2, 1, 2),
        }));
        let updates = |ranges: &[Range<usize>]| -> RowUpdates<'_> {
            ranges
                .iter()
                .map(|range| (range.clone(), &update))
                .collect()
        };
        let cut = |all: &[&[Range<usize>]], count| {
            let all: Vec<_> = all.iter().map(|ranges| updates(ranges)).collect();
            stretches(&all, count)
        };
        assert_eq!(cut(&[&[0..usize::MAX]], 5), [0..5]);
        assert_eq!(cut(&[], 5), [0..5]);
        assert_eq!(cut(&[&[2..4, 4..7]], 9), [0..2, 2..7, 7..9]);
        assert_eq!(cut(&[&[2..3], &[1..2, 6..20]], 8), [0..1, 1..3, 3..6, 6..8]);
    }

    #[test]
    fn every_row_is_computed_as_it_is_alone() {
        let (base, x) = (linear(7, 5, 1), linear(6, 5, 9));
        let unit = Tensor::eye(5, candle_core::DType::F32, &Device::Cpu).unwrap();
        let x = x.forward(&unit).unwrap().t().unwrap().contiguous().unwrap();
        let x = Tensor::cat(&[&x, &x], 1).unwrap().narrow(1, 0, 5).unwrap();
        let x = x.contiguous().unwrap();
        let update = |seed| {
            RowUpdate::Add(Box::new(LowRank {
                down: linear(2, 5, seed),
                up: linear(7, 2, seed + 1),
            }))
        };
        let (one, two) = (update(3), update(5));
        let of_row = [None, Some(&one), Some(&one), None, Some(&two)];
        let all: RowUpdates<'_> = [(1..3, &one), (4..5, &two)].into_iter().collect();
        let plain = base.forward_updated(&x, &all).unwrap();
        let activated = base.forward_activated(&x, Activation::Gelu, &all).unwrap();
        for (row, update) in of_row.into_iter().enumerate() {
            let own: RowUpdates<'_> = update.into_iter().map(|update| (0..1, update)).collect();
            let x = x.narrow(0, row, 1).unwrap();
            let alone = base.forward_updated(&x, &own).unwrap();
            assert_eq!(
                bits(&alone),
                bits(&plain.narrow(0, row, 1).unwrap()),
                "{row}"
            );
            let alone = base.forward_activated(&x, Activation::Gelu, &own).unwrap();
            let batched = activated.narrow(0, row, 1).unwrap();
            assert_eq!(bits(&alone), bits(&batched), "{row}");
        }
    }
}
