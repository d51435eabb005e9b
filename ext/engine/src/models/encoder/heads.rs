//! The heads of encoder checkpoints.

use crate::models::heads::{Head, HeadKind, HeadPooling};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Embedding, Linear};
use crate::Result;
use formats::weights::WeightSource;
use kernels::Activation;

use super::config::SequencePooling;
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
        let parameters = Parameters::new(source, &blueprint.names, &self.device, self.dtype)?;
        let wanted = HeadParts::of(kind, self);
        let masked = kind == HeadKind::MaskedLanguage;
        let present = if masked { wanted.dense } else { wanted.output };
        if !parameters.has(present) {
            return Ok(None);
        }
        let config = self.config();
        let dense = parameters.optional_linear(wanted.dense, config.hidden_size)?;
        let inner = dense.as_ref().map_or(config.hidden_size, Linear::outputs);
        let output = if masked {
            self.masked_output(&parameters)?
        } else {
            let labels = parameters.outputs(wanted.output)?;
            parameters.linear(wanted.output, inner, labels)?
        };
        let head = Head {
            norm: parameters.optional_norm(wanted.norm, &[inner], config.norm)?,
            dense,
            activation: wanted.activation,
            output,
            pooling: match config.heads_on_top.pooling {
                SequencePooling::First => HeadPooling::First,
                SequencePooling::Mean => HeadPooling::Mean,
            },
        };
        head.check(config.hidden_size).map(Some)
    }

    /// A masked-LM head without a matrix of its own reads logits off the token embedding.
    fn masked_output(&self, parameters: &Parameters<'_>) -> Result<Linear> {
        let bias = parameters.optional_tensor(Part::MaskedBias)?;
        if let Some(weight) = parameters.optional_tensor(Part::MaskedOutput)? {
            return Linear::new(weight, bias);
        }
        match self.embeddings.tokens() {
            Embedding::Dense(table) => Linear::new(table.clone(), bias),
            table => table.tied_output(bias),
        }
    }
}
