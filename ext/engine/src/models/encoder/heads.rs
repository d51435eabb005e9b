//! The heads of encoder checkpoints.

use crate::kernels::Activation;
use crate::models::heads::{Head, HeadKind, HeadPooling};
use crate::nn::Linear;
use crate::weights::WeightSource;
use crate::Result;

use super::config::SequencePooling;
use super::parts::{Part, Parts};
use super::{Blueprint, Encoder};

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
        }
    }
}

impl Encoder {
    /// The head that the checkpoint carries for a task; `None` where it has none.
    pub fn load_head(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        let parts = Parts::new(source, blueprint.names, &self.device, self.dtype)?;
        let wanted = HeadParts::of(kind, self);
        let masked = kind == HeadKind::MaskedLanguage;
        let present = if masked { wanted.dense } else { wanted.output };
        if !parts.has(present, 0) {
            return Ok(None);
        }
        let output = match masked {
            false => parts.linear(wanted.output, 0)?,
            true => {
                let weight = match parts.optional_weight(wanted.output, 0)? {
                    Some(weight) => weight,
                    None => self.words().expanded()?,
                };
                let bias = parts.optional_weight(Part::MaskedBias, 0)?;
                Linear::new(weight, bias)?
            }
        };
        let config = self.config();
        let head = Head {
            dense: parts.optional_linear(wanted.dense, 0)?,
            activation: wanted.activation,
            norm: parts.optional_norm(wanted.norm, 0, config.norm, config.epsilon)?,
            output,
            pooling: match config.heads_on_top.pooling {
                SequencePooling::First => HeadPooling::First,
                SequencePooling::Mean => HeadPooling::Mean,
            },
        };
        head.check(config.hidden).map(Some)
    }
}
