//! The sequences of a batch as attention sees them: whose queries meet whose keys.

use candle_core::{Device, Tensor};

use crate::nn::{attention, Alignment, AttentionOptions, PackedSequences};
use crate::Result;

pub struct Spans<'a> {
    boundaries: &'a [u32],
    /// Where some tokens are not attended to: the rows of those that are, and their boundaries.
    attended: Option<(Tensor, Vec<u32>)>,
}

impl<'a> Spans<'a> {
    pub fn of(sequences: &'a PackedSequences, device: &Device) -> Result<Self> {
        let attended = match sequences.attended() {
            Some((rows, boundaries)) => {
                let count = rows.len();
                Some((Tensor::from_vec(rows, count, device)?, boundaries))
            }
            None => None,
        };
        Ok(Self {
            boundaries: sequences.boundaries(),
            attended,
        })
    }

    /// Of sequences all of whose tokens are attended to.
    pub fn whole(boundaries: &'a [u32]) -> Self {
        Self {
            boundaries,
            attended: None,
        }
    }

    /// The keys or values that are attended to, of those of all tokens.
    pub fn attended(&self, all: Tensor) -> Result<Tensor> {
        match &self.attended {
            Some((rows, _)) => Ok(all.contiguous()?.index_select(rows, 0)?),
            None => Ok(all),
        }
    }

    /// `k` and `v` are those that are attended to.
    pub fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Result<Tensor> {
        match &self.attended {
            Some((_, keys)) => {
                let options = AttentionOptions {
                    alignment: Alignment::First,
                    ..*options
                };
                attention(q, k, v, self.boundaries, keys, &options)
            }
            None => attention(q, k, v, self.boundaries, self.boundaries, options),
        }
    }
}
