//! What a checkpoint carries on top of the encoder: one transformation and one output matrix, for
//! sequences, tokens and masks alike.

use candle_core::{DType, Tensor};

use crate::kernels::Activation;
use crate::nn::{Epilogue, Linear, Norm, PackedSequences, Pooling};
use crate::weights::WeightSource;
use crate::{Error, Result};

use super::config::SequencePooling;
use super::parts::{Part, Parts};
use super::Encoder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Logits per sequence.
    Sequence,
    /// Logits per token.
    Token,
    /// Logits over the vocabulary per token.
    MaskedLanguage,
}

#[derive(Debug)]
pub struct Head {
    dense: Option<Linear>,
    activation: Activation,
    norm: Option<Norm>,
    output: Linear,
    pooling: Pooling,
}

/// The parts of a head kind.
struct HeadParts {
    dense: Part,
    norm: Option<Part>,
    output: Part,
    activation: Activation,
    what: &'static str,
}

impl HeadKind {
    fn parts(self, encoder: &Encoder) -> HeadParts {
        let heads = encoder.config().heads_on_top;
        match self {
            Self::Sequence => HeadParts {
                dense: Part::SequenceDense,
                norm: Some(Part::SequenceNorm),
                output: Part::SequenceOutput,
                activation: heads.sequence_activation,
                what: "a sequence classification head",
            },
            Self::Token => HeadParts {
                dense: Part::TokenDense,
                norm: Some(Part::TokenNorm),
                output: Part::TokenOutput,
                activation: heads.token_activation,
                what: "a token classification head",
            },
            Self::MaskedLanguage => HeadParts {
                dense: Part::MaskedDense,
                norm: Some(Part::MaskedNorm),
                output: Part::MaskedOutput,
                activation: heads.masked_activation,
                what: "a masked language model head",
            },
        }
    }
}

impl Head {
    pub(super) fn load(
        encoder: &Encoder,
        parts: &Parts<'_>,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Self> {
        let wanted = kind.parts(encoder);
        let masked = kind == HeadKind::MaskedLanguage;
        let present = if masked { wanted.dense } else { wanted.output };
        if !parts.has(present, 0) {
            return Err(Error::unsupported(
                &source.file(""),
                format!(
                    "the checkpoint has no {}: it holds {} without it. Use a checkpoint that was trained for \
                     this task",
                    wanted.what.trim_start_matches("a "),
                    encoder.config().family
                ),
            ));
        }
        let output = match masked {
            false => parts.linear(wanted.output, 0)?,
            true => {
                let weight = match parts.optional_weight(wanted.output, 0)? {
                    Some(weight) => weight,
                    None => encoder.words().clone(),
                };
                let bias = parts.optional_weight(Part::MaskedBias, 0)?;
                Linear::new(weight, bias)?
            }
        };
        let config = encoder.config();
        let norm = match wanted.norm {
            Some(part) => parts.optional_norm(part, 0, config.norm, config.epsilon)?,
            None => None,
        };
        let head = Self {
            dense: parts.optional_linear(wanted.dense, 0)?,
            activation: wanted.activation,
            norm,
            output,
            pooling: match config.heads_on_top.pooling {
                SequencePooling::First => Pooling::Cls,
                SequencePooling::Mean => Pooling::Mean,
                SequencePooling::Last => Pooling::Last,
            },
        };
        head.check(config.hidden)?;
        Ok(head)
    }

    /// A head whose one logit is the last token's preference of `yes` over `no` as the next token.
    pub fn yes_or_no(encoder: &Encoder, table: &Tensor, yes: u32, no: u32) -> Result<Self> {
        let rows = table.dim(0)?;
        if (yes.max(no) as usize) >= rows {
            return Err(Error::CorruptModel(format!(
                "the tokens yes ({yes}) and no ({no}) are beyond the {rows} rows of the output matrix"
            )));
        }
        let row = |id: u32| -> Result<Tensor> {
            Ok(table.narrow(0, id as usize, 1)?.to_dtype(DType::F32)?)
        };
        let weight = (row(yes)? - row(no)?)?.to_dtype(encoder.dtype())?;
        Ok(Self {
            dense: None,
            activation: Activation::Identity,
            norm: None,
            output: Linear::new(weight, None)?,
            pooling: Pooling::Last,
        })
    }

    fn check(&self, hidden: usize) -> Result<()> {
        let inner = self.dense.as_ref().map_or(hidden, Linear::outputs);
        let fits = self
            .dense
            .as_ref()
            .is_none_or(|dense| dense.inputs() == hidden)
            && self.output.inputs() == inner
            && self.norm.as_ref().is_none_or(|norm| norm.width() == inner);
        if fits {
            return Ok(());
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
        let pooled = self.pooling.pool(hidden, sequences, 0)?;
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

    /// f32 [rows, labels] from [rows, hidden].
    pub fn logits(&self, rows: &Tensor) -> Result<Tensor> {
        let mut x = rows.clone();
        if let Some(dense) = &self.dense {
            x = dense.forward_with(
                &x,
                &Epilogue {
                    activation: Some(self.activation),
                    residual: None,
                },
            )?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(&x)?;
        }
        Ok(self.output.forward(&x)?.to_dtype(DType::F32)?)
    }
}
