//! The heads of encoder checkpoints.

use crate::models::heads::{Head, HeadKind, HeadPooling};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Embedding, Linear};
use crate::Result;
use candle_core::Tensor;
use formats::weights::WeightSource;
use kernels::Activation;

use super::config::{SeesAll, SequencePooling};
use super::{Blueprint, Encoder, RowsThatSeeAll};

/// The parts of a head kind.
struct HeadParts {
    dense: Part,
    norm: Part,
    output: Part,
    activation: Activation,
}

impl HeadParts {
    fn of(kind: HeadKind, encoder: &Encoder) -> Self {
        let heads = encoder.config().heads_on_top;
        match kind {
            HeadKind::Sequence => Self {
                dense: Part::SequenceDense,
                norm: Part::SequenceNorm,
                output: Part::SequenceOutput,
                activation: heads.sequence_activation,
            },
            HeadKind::Token => Self {
                dense: Part::TokenDense,
                norm: Part::TokenNorm,
                output: Part::TokenOutput,
                activation: heads.token_activation,
            },
            HeadKind::MaskedLanguage => Self {
                dense: Part::MaskedDense,
                norm: Part::MaskedNorm,
                output: Part::MaskedOutput,
                activation: heads.masked_activation,
            },
            HeadKind::Question => Self {
                dense: Part::QuestionDense,
                norm: Part::QuestionNorm,
                output: Part::QuestionOutput,
                activation: heads.token_activation,
            },
        }
    }
}

impl Encoder {
    /// The head that the checkpoint carries for a task; `None` where it has none.
    pub fn load_head(
        &mut self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        let parameters = Parameters::new(source, &blueprint.names, &self.device, self.dtype)?;
        let wanted = HeadParts::of(kind, self);
        let masked = kind == HeadKind::MaskedLanguage;
        let tied = masked && self.config.heads_on_top.masked_tied;
        let signs = [wanted.output, wanted.dense, Part::MaskedBias];
        let signs = if masked { &signs[..] } else { &signs[..1] };
        if !tied && !signs.iter().any(|&part| parameters.has(part)) {
            return Ok(None);
        }
        self.sees_all = match (self.config.mechanisms.sees_all, kind) {
            (SeesAll::ByTask { .. }, HeadKind::Sequence) => RowsThatSeeAll::First,
            (
                SeesAll::ByTask {
                    separator: Some(id),
                },
                HeadKind::Question,
            ) => RowsThatSeeAll::Before(id),
            _ => RowsThatSeeAll::None,
        };
        let config = self.config();
        let dense = parameters.optional_linear(wanted.dense, config.hidden_size)?;
        let inner = dense.as_ref().map_or(config.hidden_size, Linear::outputs);
        let second_dense = if masked {
            parameters.optional_linear(Part::MaskedSecond, inner)?
        } else {
            None
        };
        let inner = second_dense.as_ref().map_or(inner, Linear::outputs);
        let residual = if kind == HeadKind::Question {
            parameters.optional_linear(Part::QuestionSecond, inner)?
        } else {
            None
        };
        let inner = residual.as_ref().map_or(inner, Linear::outputs);
        let output = if masked {
            self.masked_output(&parameters)?
        } else {
            let labels = parameters.outputs(wanted.output)?;
            parameters.linear(wanted.output, inner, labels)?
        };
        let head = Head {
            norm: parameters.optional_norm(wanted.norm, &[inner], config.norm)?,
            dense,
            second_dense,
            residual,
            activation: wanted.activation,
            last: match kind {
                HeadKind::Sequence => config.heads_on_top.sequence_last,
                _ => Activation::Identity,
            },
            output,
            pooling: match config.heads_on_top.pooling {
                SequencePooling::First => HeadPooling::First,
                SequencePooling::Mean => HeadPooling::Mean,
                SequencePooling::Last { padding } => HeadPooling::Last { padding },
                SequencePooling::MeanLogits => HeadPooling::MeanLogits,
            },
        };
        head.check(config.hidden_size).map(Some)
    }

    /// A masked-LM head without a matrix of its own reads logits off the token embedding.
    fn masked_output(&self, parameters: &Parameters<'_>) -> Result<Linear> {
        let own = if self.config.heads_on_top.masked_untied {
            parameters.bias(Part::MaskedOutput)?
        } else {
            None
        };
        let bias = match own {
            Some(bias) => Some(bias),
            None => parameters.optional_tensor(Part::MaskedBias)?,
        };
        if let Some(weight) = parameters.optional_tensor(Part::MaskedOutput)? {
            return match parameters.optional_tensor(Part::MaskedRest)? {
                Some(rest) => Linear::new(Tensor::cat(&[&weight, &rest.t()?], 1)?, bias),
                None => Linear::new(weight, bias),
            };
        }
        match self.embeddings.tokens() {
            Embedding::Dense(table) => match parameters.optional_tensor(Part::MaskedRest)? {
                // The columns that the embedding is too narrow for, as rows of the vocabulary's length.
                Some(rest) => Linear::new(Tensor::cat(&[table, &rest.t()?], 1)?, bias),
                None => Linear::new(table.clone(), bias),
            },
            table => table.tied_output(bias),
        }
    }
}
