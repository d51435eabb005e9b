//! The head of checkpoints that classify texts (BART).

use super::{Blueprint, Seq2Seq};
use crate::models::heads::{Head, HeadKind, HeadPooling};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::Linear;
use crate::Result;
use formats::weights::WeightSource;
use kernels::Activation;

impl Seq2Seq {
    /// The head that the checkpoint carries for a task; `None` where it has none. It reads the decoder's
    /// state at the last token that ends the text.
    pub fn load_head(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        let (device, dtype) = (self.encoder.device(), self.encoder.dtype());
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?;
        if kind != HeadKind::Sequence || !parameters.has(Part::SequenceOutput) {
            return Ok(None);
        }
        let hidden = self.config.decoder.hidden_size;
        let dense = parameters.optional_linear(Part::SequenceDense, hidden)?;
        let inner = dense.as_ref().map_or(hidden, Linear::outputs);
        let labels = parameters.outputs(Part::SequenceOutput)?;
        let head = Head {
            second_dense: None,
            residual: None,
            dense,
            activation: Activation::Tanh,
            norm: None,
            output: parameters.linear(Part::SequenceOutput, inner, labels)?,
            last: Activation::Identity,
            pooling: HeadPooling::LastOf {
                token: self.config.end,
            },
        };
        head.check(hidden).map(Some)
    }
}
