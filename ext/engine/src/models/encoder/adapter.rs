//! X-MOD's adapter of one language, which stands behind the MLP of each layer.

use candle_core::Tensor;

use super::config::{Adapter, AdapterNorm, EncoderConfig};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{Epilogue, Inventory, Linear, Norm};
use crate::Result;
use kernels::Activation;

#[derive(Debug)]
pub struct LanguageAdapter {
    norm: Option<Norm>,
    down: Linear,
    up: Linear,
    activation: Activation,
    residual_behind_norm: bool,
}

impl LanguageAdapter {
    pub fn load(
        adapter: &Adapter,
        config: &EncoderConfig,
        mlp_norm: &Norm,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let hidden = config.hidden_size;
        let parameters = &parameters.of_variant(&adapter.language);
        let down = Part::AdapterDown.at(number);
        let width = parameters.outputs(down)?;
        Ok(Self {
            norm: match adapter.norm {
                AdapterNorm::None => None,
                AdapterNorm::Own => Some(parameters.norm(
                    Part::AdapterNorm.at(number),
                    &[hidden],
                    config.layer_norm(),
                )?),
                AdapterNorm::Shared => Some(mlp_norm.clone()),
            },
            down: parameters.linear(down, hidden, width)?,
            up: parameters.linear(Part::AdapterUp.at(number), width, hidden)?,
            activation: config.mlp.activation,
            residual_behind_norm: adapter.residual_behind_norm,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(norm) = &self.norm {
            inventory.add_norm(norm)?;
        }
        inventory.add_linear(&self.down)?;
        inventory.add_linear(&self.up)
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let read = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        let inner = self.down.forward_with(
            &read,
            &Epilogue {
                activation: Some(self.activation),
                ..Epilogue::default()
            },
        )?;
        let residual = if self.residual_behind_norm { &read } else { x };
        self.up.forward_with(
            &inner,
            &Epilogue {
                residual: Some(residual),
                ..Epilogue::default()
            },
        )
    }
}
