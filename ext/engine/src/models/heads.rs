//! What a checkpoint carries on top of its hidden states: one transformation and one output matrix,
//! for sequences, tokens and masks alike.

use candle_core::{DType, Tensor};

use crate::nn::{pooling, Epilogue, Inventory, Linear, Norm, PackedSequences, Pooling};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Logits per sequence.
    Sequence,
    /// Logits per token.
    Token,
    /// Logits over the vocabulary per token.
    MaskedLanguage,
    /// How likely an answer starts and ends at a token.
    Question,
}

impl HeadKind {
    /// As messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence classification head",
            Self::Token => "token classification head",
            Self::MaskedLanguage => "masked language model head",
            Self::Question => "question answering head",
        }
    }
}

#[derive(Debug)]
pub struct Head {
    pub dense: Option<Linear>,
    /// Another one behind it, with the same activation (UltraBERT).
    pub second_dense: Option<Linear>,
    /// Another one behind it without an activation, which the head's input is added to (BigBird).
    pub residual: Option<Linear>,
    pub activation: Activation,
    pub norm: Option<Norm>,
    /// Behind the logits.
    pub last: Activation,
    pub output: Linear,
    pub pooling: HeadPooling,
}

/// Which hidden state stands for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadPooling {
    First,
    Mean,
    /// The mean of the logits of all tokens.
    MeanLogits,
    /// The last token's that is not this padding token, which a text may end in when it also marks
    /// the end of texts.
    Last {
        padding: Option<u32>,
    },
    /// The last one of this token, which ends texts; the last of all where a text has none.
    LastOf {
        token: Option<u32>,
    },
}

impl Head {
    /// An output matrix alone, on the last token's hidden state.
    pub fn of_last_token(output: Linear, padding: Option<u32>) -> Self {
        Self {
            dense: None,
            second_dense: None,
            residual: None,
            activation: Activation::Identity,
            norm: None,
            last: Activation::Identity,
            output,
            pooling: HeadPooling::Last { padding },
        }
    }

    /// A `CorruptModel` error unless the matrices fit each other.
    pub fn check(self, hidden: usize) -> Result<Self> {
        let inner = self.dense.as_ref().map_or(hidden, Linear::outputs);
        let second = self.second_dense.as_ref();
        let reads = second.is_none_or(|dense| dense.inputs() == inner);
        let inner = second.map_or(inner, Linear::outputs);
        let residual = self.residual.as_ref();
        let adds =
            residual.is_none_or(|dense| dense.inputs() == inner && dense.outputs() == hidden);
        let inner = residual.map_or(inner, Linear::outputs);
        let fits = self
            .dense
            .as_ref()
            .is_none_or(|dense| dense.inputs() == hidden)
            && reads
            && adds
            && self.output.inputs() == inner
            && self.norm.as_ref().is_none_or(|norm| norm.width() == inner);
        if fits {
            return Ok(self);
        }
        Err(Error::CorruptModel(format!(
            "the head's matrices do not fit each other and the hidden size {hidden}"
        )))
    }

    /// How many logits a row has.
    pub fn outputs(&self) -> usize {
        self.output.outputs()
    }

    /// f32 [sequences, labels] from [tokens, hidden], as the checkpoint was trained.
    pub fn sequence_logits(&self, hidden: &Tensor, sequences: &PackedSequences) -> Result<Tensor> {
        if self.pooling == HeadPooling::MeanLogits {
            return Pooling::Mean.pool(&self.logits(hidden)?, sequences, 0);
        }
        let pooled = self.pooling.pool(hidden, sequences)?;
        self.logits(&pooled.to_dtype(hidden.dtype())?)
    }

    /// The output matrix alone, on vectors pooled in another way.
    pub fn logits_of_pooled(
        &self,
        hidden: &Tensor,
        sequences: &PackedSequences,
        pooling: Pooling,
    ) -> Result<Tensor> {
        let pooled = pooling
            .pool(hidden, sequences, 0)?
            .to_dtype(hidden.dtype())?;
        if self.output.inputs() != pooled.dim(1)? {
            return Err(Error::InvalidInput(
                "this model's classifier does not take hidden states: use the pooling method \"pooler\"".into(),
            ));
        }
        Ok(self.output.forward(&pooled)?.to_dtype(DType::F32)?)
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let dense = self.dense.iter().chain(&self.second_dense);
        for linear in dense.chain(&self.residual).chain([&self.output]) {
            inventory.add_linear(linear)?;
        }
        match &self.norm {
            Some(norm) => inventory.add_norm(norm),
            None => Ok(()),
        }
    }

    /// f32 [rows, labels] from [rows, hidden].
    pub fn logits(&self, rows: &Tensor) -> Result<Tensor> {
        let mut x = rows.clone();
        for dense in self.dense.iter().chain(&self.second_dense) {
            x = dense.forward_with(
                &x,
                &Epilogue {
                    activation: Some(self.activation),
                    residual: None,
                },
            )?;
        }
        if let Some(dense) = &self.residual {
            x = dense.forward_with(
                &x,
                &Epilogue {
                    activation: None,
                    residual: Some(rows),
                },
            )?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        let epilogue = Epilogue {
            activation: (self.last != Activation::Identity).then_some(self.last),
            residual: None,
        };
        Ok(self
            .output
            .forward_with(&x, &epilogue)?
            .to_dtype(DType::F32)?)
    }
}

impl HeadPooling {
    fn pool(self, hidden: &Tensor, sequences: &PackedSequences) -> Result<Tensor> {
        match self {
            Self::First => Pooling::Cls.pool(hidden, sequences, 0),
            Self::Mean | Self::MeanLogits => Pooling::Mean.pool(hidden, sequences, 0),
            Self::Last { padding } => last_where(hidden, sequences, |id| Some(id) != padding, 0),
            Self::LastOf { token } => {
                last_where(hidden, sequences, |id| Some(id) == token, usize::MAX)
            }
        }
    }
}

/// The state of each sequence's last token that is wanted; where none is, of the one at `otherwise`, or
/// of the last.
fn last_where(
    hidden: &Tensor,
    sequences: &PackedSequences,
    wanted: impl Fn(u32) -> bool,
    otherwise: usize,
) -> Result<Tensor> {
    let last = |range: std::ops::Range<usize>| {
        let ids = &sequences.ids()[range.clone()];
        let end = ids.len().checked_sub(1)?;
        let found = ids.iter().rposition(|&id| wanted(id));
        Some(range.start + found.unwrap_or(otherwise.min(end)))
    };
    let rows: Vec<_> = sequences.ranges().map(last).collect();
    pooling::pick(hidden, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_last_token_is_the_last_that_is_not_padding() {
        let mut sequences = PackedSequences::new();
        for ids in [&[5, 6, 0][..], &[0, 0], &[], &[0, 7]] {
            sequences.push(ids, None).unwrap();
        }
        let hidden = Tensor::arange(1f32, 8f32, &Device::Cpu).unwrap();
        let hidden = hidden.reshape((7, 1)).unwrap();
        let pooled = |padding| -> Vec<f32> {
            let pooled = HeadPooling::Last { padding }.pool(&hidden, &sequences);
            pooled.unwrap().flatten_all().unwrap().to_vec1().unwrap()
        };
        assert_eq!(pooled(Some(0)), [2.0, 4.0, 0.0, 7.0]);
        assert_eq!(pooled(None), [3.0, 5.0, 0.0, 7.0]);
    }
}
