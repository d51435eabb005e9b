//! What a model says of the next token, as far as a sampler has to know.

use crate::Result;
use candle_core::Tensor;

#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// A logit for every token.
    All(Vec<f32>),
    /// The largest finite logits and their tokens, in the order of tokens: at least as many as a sampler
    /// `needs`, where there are so many.
    Largest(Vec<(u32, f32)>),
}

impl Scores {
    /// Of each row of f32 logits [rows, vocabulary]. `needs` are those of everybody who chooses by them: how many
    /// of the largest, `None` for all. Where a few are enough, they are found where the logits lie, and the rest
    /// is not copied.
    pub fn read(
        logits: &Tensor,
        mut needs: impl Iterator<Item = Option<usize>>,
    ) -> Result<Vec<Self>> {
        let most = needs.try_fold(1, |most: usize, need| Some(most.max(need?)));
        if let Some(most) = most {
            if let Some(rows) = kernels::largest(logits, most)? {
                return Ok(rows.into_iter().map(Self::Largest).collect());
            }
        }
        Ok(logits.to_vec2()?.into_iter().map(Self::All).collect())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn all_logits_are_read_where_somebody_needs_them() {
        let logits = Tensor::new(&[[1f32, 3.0, 2.0], [0.0, -1.0, 0.0]], &Device::Cpu).unwrap();
        let read = |needs: &[Option<usize>]| Scores::read(&logits, needs.iter().copied()).unwrap();
        let largest = [(1, 3.0), (0, 0.0)].map(|one| Scores::Largest(vec![one]));
        assert_eq!(read(&[Some(1), Some(1)]), largest);
        let all = logits.to_vec2().unwrap().into_iter().map(Scores::All);
        assert_eq!(read(&[Some(1), None]), all.collect::<Vec<_>>());
    }
}
