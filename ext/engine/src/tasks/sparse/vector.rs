//! Weights of tokens, and how alike two lists of them are.

use crate::{Error, Result};

/// The weights of a text that are not 0, by ascending id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector {
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

/// How sentence-transformers compares vectors: the greater, the more alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SparseSimilarity {
    #[default]
    Dot,
    Cosine,
    /// Negative distances.
    Euclidean,
    Manhattan,
}

impl SparseVector {
    /// What of a whole vocabulary's weights is not 0: of the largest `top_k`, where that many are asked for.
    pub fn of(weights: &[f32], top_k: Option<usize>) -> Self {
        let mut ids: Vec<u32> = (0..weights.len() as u32)
            .filter(|&id| weights[id as usize] != 0.0)
            .collect();
        if let Some(most) = top_k.filter(|&most| most < ids.len()) {
            let size = |id: &u32| weights[*id as usize].abs();
            ids.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.cmp(b)));
            ids.truncate(most);
            ids.sort_unstable();
        }
        Self {
            weights: ids.iter().map(|&id| weights[id as usize]).collect(),
            ids,
        }
    }

    /// From pairs in any order, as a caller may have kept them.
    pub fn from_pairs(mut pairs: Vec<(u32, f32)>) -> Result<Self> {
        pairs.sort_by_key(|&(id, _)| id);
        if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::InvalidInput(format!(
                "a sparse vector has two weights for the token {}",
                pair[0].0
            )));
        }
        if let Some((id, weight)) = pairs.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(Error::InvalidInput(format!(
                "a sparse vector has the weight {weight} for the token {id}: weights must be finite"
            )));
        }
        let (ids, weights) = pairs.into_iter().unzip();
        Ok(Self { ids, weights })
    }

    fn norm(&self) -> f64 {
        let squares = self.weights.iter().map(|&weight| f64::from(weight).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// Both weights of every token that either has, 0 where one has none.
    fn for_each(&self, other: &Self, mut take: impl FnMut(f64, f64)) {
        let (mut i, mut j) = (0, 0);
        while i < self.ids.len() || j < other.ids.len() {
            let (left, right) = (self.ids.get(i), other.ids.get(j));
            let mine = right.is_none_or(|right| left.is_some_and(|left| left <= right));
            let theirs = left.is_none_or(|left| right.is_some_and(|right| right <= left));
            let weight = |taken: bool, weights: &[f32], at: usize| {
                if taken {
                    f64::from(weights[at])
                } else {
                    0.0
                }
            };
            take(
                weight(mine, &self.weights, i),
                weight(theirs, &other.weights, j),
            );
            i += usize::from(mine);
            j += usize::from(theirs);
        }
    }
}

impl SparseSimilarity {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "dot" | "dot_score" => Ok(Self::Dot),
            "cosine" => Ok(Self::Cosine),
            "euclidean" => Ok(Self::Euclidean),
            "manhattan" => Ok(Self::Manhattan),
            other => Err(Error::InvalidInput(format!(
                "unknown similarity {other:?}: use dot, cosine, euclidean or manhattan"
            ))),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Dot => "dot",
            Self::Cosine => "cosine",
            Self::Euclidean => "euclidean",
            Self::Manhattan => "manhattan",
        }
    }

    pub fn of(self, one: &SparseVector, other: &SparseVector) -> f32 {
        let mut sum = 0f64;
        one.for_each(other, |a, b| {
            sum += match self {
                Self::Dot | Self::Cosine => a * b,
                Self::Euclidean => (a - b).powi(2),
                Self::Manhattan => (a - b).abs(),
            }
        });
        let similarity = match self {
            Self::Dot => sum,
            // A text without weights is like none.
            Self::Cosine => match one.norm() * other.norm() {
                0.0 => 0.0,
                norms => sum / norms,
            },
            Self::Euclidean => -sum.sqrt(),
            Self::Manhattan => -sum,
        };
        similarity as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weights_are_kept_in_the_order_of_their_ids() {
        let weights = [0.0, 0.5, -2.0, 0.0, 0.5, 1.0];
        let kept = |top_k| SparseVector::of(&weights, top_k).ids;
        assert_eq!(kept(None), [1, 2, 4, 5]);
        assert_eq!(kept(Some(9)), [1, 2, 4, 5]);
        assert_eq!(kept(Some(3)), [1, 2, 5]);
        assert_eq!(SparseVector::of(&weights, Some(1)).weights, [-2.0]);
    }

    #[test]
    fn similarities_are_those_of_the_whole_vectors() {
        let vector = |pairs: &[(u32, f32)]| SparseVector::from_pairs(pairs.to_vec()).unwrap();
        let one = vector(&[(7, 4.0), (1, 1.0)]);
        let other = vector(&[(1, 3.0), (2, 2.0)]);
        let found = |similarity: SparseSimilarity| similarity.of(&one, &other);
        assert_eq!(found(SparseSimilarity::Dot), 3.0);
        assert!((found(SparseSimilarity::Cosine) - 3.0 / (17f32 * 13.0).sqrt()).abs() < 1e-6);
        assert!((found(SparseSimilarity::Euclidean) + 24f32.sqrt()).abs() < 1e-6);
        assert_eq!(found(SparseSimilarity::Manhattan), -8.0);
        let none = vector(&[]);
        assert_eq!(SparseSimilarity::Cosine.of(&one, &none), 0.0);
        assert!(SparseVector::from_pairs(vec![(1, 1.0), (1, 2.0)]).is_err());
        assert!(SparseVector::from_pairs(vec![(1, f32::NAN)]).is_err());
    }
}
