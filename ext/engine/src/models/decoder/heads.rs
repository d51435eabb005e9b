//! The heads of decoder checkpoints, beside the one that predicts the next token.

use candle_core::{DType, Tensor};

use super::adapter_rows::AdapterRows;
use super::config::DecoderConfig;
use super::model::Decoder;
use super::{loading, Blueprint};
use crate::models::heads::{Head, HeadKind};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Norm};
use crate::{Error, Result};
use formats::weights::WeightSource;
use kernels::Activation;

/// What stands between hidden states and the matrix of the head.
pub struct TransformLayer {
    pub dense: Linear,
    pub activation: Option<Activation>,
    pub norm: Option<Norm>,
}

impl DecoderConfig {
    /// What goes into the matrix of the head.
    pub fn head_width(&self) -> usize {
        let transform = self.head_transform.as_ref();
        transform.map_or(self.hidden_size, |transform| transform.width)
    }
}

impl TransformLayer {
    pub(super) fn forward(&self, hidden: &Tensor, adapters: &AdapterRows) -> Result<Tensor> {
        let updates = adapters.model().part(Part::HeadDense);
        let mut states = self.dense.forward_updated(hidden, &updates)?;
        if let Some(activation) = self.activation {
            states = kernels::activate(&states, activation)?;
        }
        match &self.norm {
            Some(norm) => norm.forward(&states),
            None => Ok(states),
        }
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.dense)?;
        match &self.norm {
            Some(norm) => inventory.add_norm(norm),
            None => Ok(()),
        }
    }
}

impl Decoder {
    /// The head that the checkpoint carries for a task; `None` where it has none.
    pub fn load_head(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        kind: HeadKind,
    ) -> Result<Option<Head>> {
        let part = match kind {
            HeadKind::Sequence => Part::SequenceOutput,
            HeadKind::Token => Part::TokenOutput,
            HeadKind::Question => Part::QuestionOutput,
            HeadKind::MaskedLanguage => return Ok(None),
        };
        let parameters = Parameters::new(source, &blueprint.names, self.device(), self.dtype())?;
        let hidden = self.config().hidden_size;
        let Some(output) = parameters.optional_linear(part, hidden)? else {
            return Ok(None);
        };
        let head = Head::of_last_token(output, blueprint.padding_id);
        head.check(hidden).map(Some)
    }

    /// A head whose one logit is the last token's preference of `yes` over `no` as the next token.
    pub fn yes_or_no(
        &self,
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        [yes, no]: [u32; 2],
    ) -> Result<Head> {
        let config = self.config();
        if yes.max(no) as usize >= config.vocab_size {
            return Err(Error::CorruptModel(format!(
                "the tokens yes ({yes}) and no ({no}) are beyond the model's vocabulary of {}",
                config.vocab_size
            )));
        }
        if config.logit_soft_cap.is_some() || config.head_transform.is_some() {
            return Err(Error::UnsupportedModel(format!(
                "the logits of {} are not a linear function of its states, and such a model can't be read as a reranker",
                config.architecture
            )));
        }
        let parameters = Parameters::new(source, &blueprint.names, self.device(), self.dtype())?;
        let rows = loading::head_rows(&parameters, config, self.embedding(), &[yes, no])?;
        let rows = rows.to_dtype(DType::F32)?;
        let difference = (rows.narrow(0, 0, 1)? - rows.narrow(0, 1, 1)?)?;
        let weight = elementwise::scale(&difference, config.logit_scale)?.to_dtype(self.dtype())?;
        Ok(Head::of_last_token(Linear::new(weight, None)?, None))
    }
}
