//! What the classes and masks of queries say of a picture: a label for every place, things, or things and grounds.

use rayon::prelude::*;

use candle_core::{DType, Tensor};

use crate::models::masked::Found;
use crate::nn::feature_map::{between, FeatureMap};
use crate::{CancelToken, Result};
use base::runtime::memory;
use formats::image::{Image, CHANNELS};
use kernels::tensor::matmul::matmul;
use kernels::Activation;

/// Masks are brought to a square of so many places before they are compared.
const EDGE: usize = 384;
/// How often these numbers are held at once.
const COPIES: usize = 4;
/// From here on a place belongs to a mask.
const INSIDE: f32 = 0.5;
/// A mask that loses more than the rest of its places to others is left out.
const KEPT: f32 = 0.8;

/// A thing in a picture, or what it stands before.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub label: usize,
    pub score: f32,
    /// White where it is.
    pub mask: Image,
}

/// What becomes of queries.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Things, which may lie upon each other.
    Instances,
    /// Everything: every pixel belongs to one part or to none. Parts of these labels are one each.
    Panoptic { merged: Vec<usize> },
}

/// The likeness of all labels to the places of a square.
pub fn labels(found: &Found) -> Result<FeatureMap> {
    let masks = stretched(found)?.activated(Activation::Sigmoid)?;
    let queries = masks.channels()?;
    let rows = probabilities(found, queries);
    let classes = rows.first().map_or(0, |row| row.len() - 1);
    let known: Vec<f32> = rows
        .iter()
        .flat_map(|row| &row[..classes])
        .copied()
        .collect();
    let known = Tensor::from_vec(known, (queries, classes), masks.rows.device())?;
    let known = known.to_dtype(masks.rows.dtype())?;
    masks.with(matmul(
        &masks.rows.contiguous()?,
        &known,
        &CancelToken::new(),
    )?)
}

/// The masks of all queries, as they are compared: in several copies on the way.
fn stretched(found: &Found) -> Result<FeatureMap> {
    let count = [COPIES, EDGE, EDGE, found.masks.channels()?];
    memory::ensure_elements(&count, 4, "the masks of an image")?;
    found.masks.stretched((EDGE, EDGE))
}

/// The parts of a picture of (width, height) whose score is above the threshold, best first.
pub fn parts(
    found: &Found,
    kind: &Kind,
    threshold: f32,
    size: (usize, usize),
    cancel: &CancelToken,
) -> Result<Vec<Part>> {
    let masks = stretched(found)?.rows;
    let rows = probabilities(found, masks.dim(1)?);
    // [queries, places]
    let masks: Vec<Vec<f32>> = masks.to_dtype(DType::F32)?.t()?.contiguous()?.to_vec2()?;
    let mut parts = match kind {
        Kind::Instances => instances(&rows, &masks, threshold, size, cancel)?,
        Kind::Panoptic { merged } => panoptic(&rows, &masks, merged, threshold, size, cancel)?,
    };
    parts.sort_by(|a, b| b.score.total_cmp(&a.score));
    Ok(parts)
}

/// For each query the shares of all classes.
fn probabilities(found: &Found, queries: usize) -> Vec<Vec<f32>> {
    let rows = found
        .logits
        .chunks_exact((found.logits.len() / queries.max(1)).max(1));
    rows.map(|row| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = row.iter().map(|logit| (logit - most).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.iter().map(|power| power / sum).collect()
    })
    .collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The best pairs of a query and a class, as many as there are queries.
fn instances(
    rows: &[Vec<f32>],
    masks: &[Vec<f32>],
    threshold: f32,
    (width, height): (usize, usize),
    cancel: &CancelToken,
) -> Result<Vec<Part>> {
    let mut pairs: Vec<(f32, usize, usize)> = Vec::new();
    for (query, row) in rows.iter().enumerate() {
        let known = row.iter().take(row.len() - 1).enumerate();
        pairs.extend(known.map(|(label, &share)| (share, query, label)));
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (across, down) = (nearest(width), nearest(height));
    let mut parts = Vec::new();
    for (share, query, label) in pairs.into_iter().take(rows.len()) {
        cancel.check()?;
        let mask = &masks[query];
        let inside = mask.iter().filter(|&&value| value > 0.0);
        let (sum, count) = inside.fold((0f32, 0f32), |(sum, count), &value| {
            (sum + sigmoid(value), count + 1.0)
        });
        let score = share * sum / (count + 1e-6);
        if score < threshold {
            continue;
        }
        let place = |(y, x): (&usize, &usize)| mask[y * EDGE + x] > 0.0;
        let pixels = down.iter().flat_map(|y| across.iter().map(move |x| (y, x)));
        let pixels: Vec<bool> = pixels.map(place).collect();
        if pixels.contains(&true) {
            parts.push(Part {
                label,
                score,
                mask: shown((width, height), |at| pixels[at])?,
            });
        }
    }
    Ok(parts)
}

/// For each of so many places the nearest one before it of `EDGE`.
fn nearest(places: usize) -> Vec<usize> {
    let scale = EDGE as f32 / places as f32;
    let place = |at: usize| ((at as f32 * scale) as usize).min(EDGE - 1);
    (0..places).map(place).collect()
}

fn shown((width, height): (usize, usize), inside: impl Fn(usize) -> bool) -> Result<Image> {
    memory::ensure_elements(&[width, height], CHANNELS, "the mask of a part of an image")?;
    let shade = |at: usize| [if inside(at) { 255 } else { 0 }; CHANNELS];
    Image::new(width, height, (0..width * height).flat_map(shade).collect())
}

/// A query that is something.
struct Candidate {
    label: usize,
    score: f32,
    /// Of each place of the square, how sure it is.
    shares: Vec<f32>,
}

fn panoptic(
    rows: &[Vec<f32>],
    masks: &[Vec<f32>],
    merged: &[usize],
    threshold: f32,
    (width, height): (usize, usize),
    cancel: &CancelToken,
) -> Result<Vec<Part>> {
    let found = rows.iter().zip(masks).filter_map(|(row, mask)| {
        let all = row.iter().copied().enumerate();
        let (label, score) = all.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
        (label + 1 < row.len() && score > threshold).then(|| Candidate {
            label,
            score,
            shares: mask.iter().map(|&value| sigmoid(value)).collect(),
        })
    });
    let found: Vec<Candidate> = found.collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    memory::ensure_elements(&[width, height], 2, "the parts of an image")?;
    let mut owners = vec![0u16; width * height];
    let (across, down) = (between(EDGE, width), between(EDGE, height));
    let lines = owners.par_chunks_mut(width.max(1)).zip(&down);
    let covered = lines
        .map(|(owners, &down)| -> Result<Vec<usize>> {
            cancel.check()?;
            Ok(line(owners, &found, &across, down))
        })
        .try_reduce(|| vec![0usize; found.len()], |a, b| Ok(sums(&a, &b)))?;
    let mut owned = vec![0usize; found.len()];
    owners.iter().for_each(|&at| owned[usize::from(at)] += 1);
    // The part that a query is, if it is one.
    let mut parts_of: Vec<Option<usize>> = vec![None; found.len()];
    let mut firsts: Vec<usize> = Vec::new();
    for (at, candidate) in found.iter().enumerate() {
        let exists = owned[at] > 0 && covered[at] > 0;
        if !exists || owned[at] as f32 / covered[at] as f32 <= KEPT {
            continue;
        }
        let same = |&first: &usize| {
            found[first].label == candidate.label && merged.contains(&candidate.label)
        };
        let known = firsts.iter().position(same);
        parts_of[at] = Some(known.unwrap_or_else(|| {
            firsts.push(at);
            firsts.len() - 1
        }));
    }
    let part = |(number, &first): (usize, &usize)| {
        cancel.check()?;
        let inside = |at: usize| parts_of[usize::from(owners[at])] == Some(number);
        Ok(Part {
            label: found[first].label,
            score: found[first].score,
            mask: shown((width, height), inside)?,
        })
    };
    firsts.iter().enumerate().map(part).collect()
}

/// Who owns the pixels of a line, and how many each would cover alone.
fn line(
    owners: &mut [u16],
    found: &[Candidate],
    across: &[(usize, usize, f32)],
    (top, below, lower): (usize, usize, f32),
) -> Vec<usize> {
    let mut covered = vec![0usize; found.len()];
    for (owner, &(left, right, later)) in owners.iter_mut().zip(across) {
        let mut best = f32::NEG_INFINITY;
        for (at, candidate) in found.iter().enumerate() {
            let share = |y: usize, x: usize| candidate.shares[y * EDGE + x];
            let upper = share(top, left) * (1.0 - later) + share(top, right) * later;
            let under = share(below, left) * (1.0 - later) + share(below, right) * later;
            let score = (upper * (1.0 - lower) + under * lower) * candidate.score;
            covered[at] += usize::from(score >= INSIDE);
            if score > best {
                (best, *owner) = (score, at as u16);
            }
        }
    }
    covered
}

fn sums(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use candle_core::Device;

    #[test]
    fn no_further_masks_are_made_for_a_call_that_is_over() {
        let rows = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
        let found = Found {
            logits: vec![1.0; 3 * 2],
            masks: FeatureMap::new(rows, (2, 2)).unwrap(),
        };
        let cancel = CancelToken::new();
        let parts = || parts(&found, &Kind::Instances, 0.0, (5, 5), &cancel);
        assert_eq!(parts().unwrap().len(), 3);
        cancel.cancel();
        assert!(matches!(parts(), Err(Error::Interrupted)));
    }
}
