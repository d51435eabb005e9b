//! What every layer reads of the tokens beside the residual stream (Gemma 3n and 4).

use candle_core::Tensor;

use super::adapter_rows::{AdapterRows, LayerUpdates};
use super::batch::Batch;
use super::config::DecoderConfig;
use super::model::Decoder;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Embedding, Inventory, Linear, Norm};
use crate::Result;
use kernels::Activation;

impl Decoder {
    /// What each layer reads of a batch beside the residual stream.
    pub(super) fn layer_inputs(
        &self,
        batch: &Batch,
        embedded: &Tensor,
        adapters: &AdapterRows,
    ) -> Result<Vec<Tensor>> {
        match &self.layer_inputs {
            Some(inputs) => inputs.of(&batch.ids, embedded, &adapters.model()),
            None => Ok(Vec::new()),
        }
    }
}

/// Makes the inputs of all layers.
pub struct LayerInputs {
    /// `[tokens, layers · width]`
    table: Embedding,
    /// The row of what is not in the table.
    padding: u32,
    /// From the token embeddings, to the same width.
    pub(super) projection: Linear,
    /// Of one layer's part of what is projected.
    norm: Norm,
}

impl LayerInputs {
    pub fn load(parameters: &Parameters<'_>, config: &DecoderConfig) -> Result<Option<Self>> {
        let Some(width) = config.layer_input_size else {
            return Ok(None);
        };
        let all = config.layer_count * width;
        let table = parameters.table(Part::LayerInputTable, all)?;
        let known = (config.layer_input_padding as usize) < table.count();
        Ok(Some(Self {
            padding: if known { config.layer_input_padding } else { 0 },
            table,
            projection: parameters.linear(Part::LayerInputProjection, config.hidden_size, all)?,
            norm: parameters.norm(Part::LayerInputNorm, &[width], config.norm)?,
        }))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_embedding(&self.table);
        inventory.add_linear(&self.projection)?;
        inventory.add_norm(&self.norm)
    }

    /// For each layer `[tokens, width]`, given the tokens and their embeddings. What is not in the table has
    /// the row of padding.
    fn of(
        &self,
        ids: &[u32],
        embedded: &Tensor,
        updates: &LayerUpdates<'_>,
    ) -> Result<Vec<Tensor>> {
        let (tokens, hidden) = embedded.dims2()?;
        let (width, count) = (self.norm.width(), self.table.count());
        let layers = self.table.width() / width;
        let known = ids.iter().map(|&id| {
            if (id as usize) < count {
                id
            } else {
                self.padding
            }
        });
        let rows = self.table.rows(&known.collect::<Vec<u32>>())?;
        let rows = elementwise::scale(&rows, (width as f32).sqrt())?;
        let update = updates.part(Part::LayerInputProjection);
        let context = self.projection.forward_updated(embedded, &update)?;
        let context = elementwise::scale(&context, (hidden as f32).sqrt().recip())?;
        let context = self
            .norm
            .forward(&context.reshape((tokens, layers, width))?)?;
        let both = elementwise::add(&context, &rows.reshape((tokens, layers, width))?)?;
        let both = elementwise::scale(&both, std::f32::consts::FRAC_1_SQRT_2)?;
        (0..layers)
            .map(|layer| Ok(both.narrow(1, layer, 1)?.squeeze(1)?.contiguous()?))
            .collect()
    }
}

/// What a layer does with its input.
pub struct LayerInput {
    gate: Linear,
    output: Linear,
    norm: Norm,
}

impl LayerInput {
    pub fn load(
        parameters: &Parameters<'_>,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<Option<Self>> {
        let (Some(width), hidden) = (config.layer_input_size, config.hidden_size) else {
            return Ok(None);
        };
        let norm = Part::PostLayerInputNorm.at(index);
        Ok(Some(Self {
            gate: parameters.linear(Part::LayerInputGate.at(index), hidden, width)?,
            output: parameters.linear(Part::LayerInputOutput.at(index), width, hidden)?,
            norm: parameters.norm(norm, &[hidden], config.norm)?,
        }))
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.gate)?;
        inventory.add_linear(&self.output)?;
        inventory.add_norm(&self.norm)
    }

    /// What is added to the stream `x`, given the layer's input.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        input: &Tensor,
        activation: Activation,
        updates: &LayerUpdates<'_>,
    ) -> Result<Tensor> {
        let [(gate_part, gate), (output_part, output)] = self.linears();
        let gate = gate.forward_updated(x, &updates.part(gate_part))?;
        let inner = kernels::gated(&gate, input, activation)?;
        let output = output.forward_updated(&inner, &updates.part(output_part))?;
        self.norm.forward(&output)
    }

    /// What can be adapted.
    pub fn linears(&self) -> [(Part, &Linear); 2] {
        [
            (Part::LayerInputGate, &self.gate),
            (Part::LayerInputOutput, &self.output),
        ]
    }
}
