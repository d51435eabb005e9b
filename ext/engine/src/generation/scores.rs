//! What a model says of the next token, as far as a sampler has to know.

use candle_core::Tensor;
use kernels::sampling::{sample, Found, Want};

use crate::Result;

#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// A logit for every token.
    All(Vec<f32>),
    /// The largest finite logits and their tokens, in the order of tokens: at least as many as a sampler
    /// `needs`, where there are so many.
    Largest(Vec<(u32, f32)>),
    /// The same, and the weight of all tokens: no other can be drawn.
    Nucleus(Vec<(u32, f32)>, f64),
    /// The token that all logits would have given.
    Drawn(u32),
}

/// What a sampler has to know of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needs {
    All,
    /// So many of the largest.
    Largest(usize),
    /// The tokens that top-p and min-p leave.
    Nucleus(Nucleus),
    /// The token that a number in [0, 1) draws by the weights of all.
    Draw {
        temperature: f32,
        uniform: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nucleus {
    pub temperature: f32,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
}

/// Of how many tokens a nucleus mostly is.
const NUCLEUS: usize = 256;

impl Needs {
    /// Of the largest ones, where a device finds them alone.
    fn largest(self) -> Option<usize> {
        match self {
            Self::Largest(count) => Some(count),
            Self::All | Self::Nucleus(_) | Self::Draw { .. } => None,
        }
    }

    pub(super) fn want(self) -> Want {
        match self {
            Self::All => Want::default(),
            Self::Largest(count) => Want {
                count,
                ..Want::default()
            },
            Self::Nucleus(Nucleus { temperature, .. }) => Want {
                count: NUCLEUS,
                temperature,
                uniform: None,
            },
            Self::Draw {
                temperature,
                uniform,
            } => Want {
                count: 0,
                temperature,
                uniform: Some(uniform),
            },
        }
    }

    /// What was found, where it is enough.
    pub(super) fn met(self, found: Found) -> Option<Scores> {
        match self {
            Self::All => None,
            Self::Largest(_) => Some(Scores::Largest(found.largest)),
            Self::Nucleus(nucleus) => {
                let holds = found.largest.len() < NUCLEUS || nucleus.is_within(&found);
                holds.then_some(Scores::Nucleus(found.largest, found.total))
            }
            Self::Draw { .. } => found.drawn.map(Scores::Drawn),
        }
    }
}

impl Nucleus {
    fn is_within(&self, found: &Found) -> bool {
        let logits = || found.largest.iter().map(|&(_, logit)| f64::from(logit));
        let (best, least) = (
            logits().fold(f64::NEG_INFINITY, f64::max),
            logits().fold(f64::INFINITY, f64::min),
        );
        let weight = |logit: f64| ((logit - best) / f64::from(self.temperature)).exp();
        // A little more, since sums in another order differ in their last bits.
        let reached = |top_p: f32| {
            logits().map(weight).sum::<f64>() > (f64::from(top_p) + 1e-9) * found.total
        };
        self.top_p.is_some_and(reached)
            || self
                .min_p
                .is_some_and(|min_p| self.top_p.is_none() && weight(least) < f64::from(min_p))
    }
}

impl Scores {
    /// Of each row of f32 logits [rows, vocabulary]. `needs` has one entry a row. Where a few logits
    /// are enough, they are found where the logits lie, and the rest is not copied.
    pub fn read(logits: &Tensor, needs: &[Needs]) -> Result<Vec<Self>> {
        let mut counts = needs.iter().map(|need| need.largest());
        if let Some(most) = counts.try_fold(1, |most: usize, count| Some(most.max(count?))) {
            if let Some(rows) = kernels::largest(logits, most)? {
                return Ok(rows.into_iter().map(Self::Largest).collect());
            }
        }
        let wants: Vec<Want> = needs.iter().map(|need| need.want()).collect();
        let asks = wants.iter().any(|want| *want != Want::default());
        let found = if asks { sample(logits, &wants)? } else { None };
        let Some(found) = found else {
            return Ok(logits.to_vec2()?.into_iter().map(Self::All).collect());
        };
        let rows = needs.iter().zip(found).enumerate();
        let rows = rows.map(|(row, (need, found))| match need.met(found) {
            Some(scores) => Ok(scores),
            None => Ok(Self::All(logits.get(row)?.to_vec1()?)),
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn all_logits_are_read_where_somebody_needs_them() {
        let logits = Tensor::new(&[[1f32, 3.0, 2.0], [0.0, -1.0, 0.0]], &Device::Cpu).unwrap();
        let read = |needs: &[Needs]| Scores::read(&logits, needs).unwrap();
        let largest = [(1, 3.0), (0, 0.0)].map(|one| Scores::Largest(vec![one]));
        assert_eq!(read(&[Needs::Largest(1), Needs::Largest(1)]), largest);
        let all = logits.to_vec2().unwrap().into_iter().map(Scores::All);
        assert_eq!(
            read(&[Needs::Largest(1), Needs::All]),
            all.collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_nucleus_beyond_the_largest_is_noticed() {
        let found = Found {
            largest: (0..NUCLEUS as u32).map(|token| (token, 0.0)).collect(),
            total: 400.0,
            drawn: None,
        };
        let met = |top_p, min_p| {
            let nucleus = Nucleus {
                temperature: 1.0,
                top_p,
                min_p,
            };
            Needs::Nucleus(nucleus).met(found.clone()).is_some()
        };
        assert!(met(Some(0.6), None));
        assert!(!met(Some(0.65), None));
        assert!(!met(Some(0.65), Some(0.9)));
        assert!(!met(None, Some(0.9)));
        let mut few = found.clone();
        few.largest[7].1 = -2.0;
        let nucleus = Nucleus {
            temperature: 1.0,
            top_p: None,
            min_p: Some(0.5),
        };
        assert!(Needs::Nucleus(nucleus).met(few).is_some());
    }
}
