//! What makes states fewer behind the encoder (`add_adapter`).

use candle_core::{DType, Device, Tensor};

use super::config::{AdapterConfig, AdapterKind, SpeechConfig};
use super::conformer::gated;
use crate::models::modules::Modules;
use crate::nn::{
    attention, elementwise, AttentionKind, AttentionOptions, Conv1d, Epilogue, Inventory, Linear,
    Norm,
};
use crate::{CancelToken, Result};
use formats::weights::WeightSource;
use kernels::Activation;

/// The names of the models that checkpoints with a head stand around.
const BODIES: &str = "wav2vec2|wav2vec2_bert|wavlm";

#[derive(Debug)]
pub struct Adapter {
    config: AdapterConfig,
    /// Counts half beside the states.
    before: Option<Feed>,
    projection: Option<(Linear, Norm)>,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Feed {
    up: Linear,
    down: Linear,
    activation: Activation,
}

#[derive(Debug)]
enum Layer {
    Convolution(Conv1d),
    Attention(Box<AttentionLayer>),
}

/// Attention on states that a convolution made fewer, beside others.
#[derive(Debug)]
struct AttentionLayer {
    residual_norm: Norm,
    residual: Conv1d,
    norm: Norm,
    convolution: Conv1d,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: usize,
    feed_norm: Norm,
    feed: Feed,
}

impl Adapter {
    pub fn load(
        speech: &SpeechConfig,
        config: &AdapterConfig,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
    ) -> Result<Self> {
        let names = source.names();
        let all = Modules::new(source, &names, (device, dtype), int8);
        let body = if all.has("adapter") {
            all
        } else {
            all.at(BODIES)
        };
        let modules = body.at("adapter");
        let hidden = speech.encoder.hidden_size;
        let (width, epsilon) = (config.width, config.epsilon);
        let layers = (0..config.layers).map(|number| {
            let modules = modules.at(format!("layers.{number}"));
            Layer::load(config, speech.encoder.head_count, &modules)
        });
        Ok(Self {
            before: if config.feeds_before {
                let modules = body.at("intermediate_ffn");
                Some(Feed::load(&modules, hidden, Activation::Relu)?)
            } else {
                None
            },
            projection: if width == hidden {
                None
            } else {
                Some((
                    modules.sized_linear("proj", hidden, width)?,
                    modules.layer_norm("proj_layer_norm", width, epsilon)?,
                ))
            },
            layers: layers.collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        if let Some(feed) = &self.before {
            feed.list(inventory)?;
        }
        if let Some((linear, norm)) = &self.projection {
            inventory.add_linear(linear)?;
            inventory.add_norm(norm)?;
        }
        self.layers
            .iter()
            .try_for_each(|layer| layer.list(inventory))
    }

    /// How many states come of so many.
    pub fn states(&self, states: usize) -> usize {
        let layers = self.layers.iter();
        layers.fold(states, |states, layer| layer.convolution().frames(states))
    }

    /// Of states [states, hidden] with their boundaries.
    pub fn forward(
        &self,
        x: &Tensor,
        boundaries: &[u32],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<u32>)> {
        let mut x = match &self.before {
            Some(feed) => {
                let fed = elementwise::scale(&feed.forward(x)?, 0.5)?;
                elementwise::add(x, &fed)?
            }
            None => x.clone(),
        };
        if let Some((linear, norm)) = &self.projection {
            x = norm.forward(&linear.forward(&x)?)?;
        }
        let mut ends = vec![0u32];
        let mut rows = Vec::with_capacity(boundaries.len());
        for pair in boundaries.windows(2) {
            let length = (pair[1] - pair[0]) as usize;
            let mut part = x.narrow(0, pair[0] as usize, length)?.contiguous()?;
            // Transformers counts the states that are attended to by another padding.
            let mut attended = length;
            for layer in &self.layers {
                attended = self.config.attended(attended);
                part = layer.forward(&part, attended, cancel)?;
            }
            ends.push(ends.last().copied().unwrap_or(0) + part.dim(0)? as u32);
            rows.push(part);
        }
        Ok((Tensor::cat(&rows, 0)?, ends))
    }
}

impl Feed {
    fn load(modules: &Modules<'_>, width: usize, activation: Activation) -> Result<Self> {
        let up = modules.linear("intermediate_dense", width)?;
        let inner = up.outputs();
        Ok(Self {
            up,
            down: modules.sized_linear("output_dense", inner, width)?,
            activation,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.up)?;
        inventory.add_linear(&self.down)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        self.down.forward(&self.up.forward_with(x, &inner)?)
    }
}

impl Layer {
    fn load(config: &AdapterConfig, heads: usize, modules: &Modules<'_>) -> Result<Self> {
        let width = config.width;
        let convolution = |name: &str| -> Result<Conv1d> {
            let module = modules.at(name);
            let weight = module.shaped("weight", &[2 * width, width, config.kernel])?;
            let bias = module.optional("bias")?;
            let shape = (config.stride, config.padding(), 1);
            Conv1d::new(&weight, bias.as_ref(), shape)
        };
        let activation = match config.kind {
            AdapterKind::Convolutions => return Ok(Self::Convolution(convolution("conv")?)),
            AdapterKind::Attention { activation } => activation,
        };
        crate::models::detection::attention::check_heads(modules, width, heads)?;
        let norm = |name: &str| modules.layer_norm(name, width, config.epsilon);
        let own = modules.at("self_attn");
        let linear = |name: &str| own.sized_linear(name, width, width);
        Ok(Self::Attention(Box::new(AttentionLayer {
            residual_norm: norm("residual_layer_norm")?,
            residual: convolution("residual_conv")?,
            norm: norm("self_attn_layer_norm")?,
            convolution: convolution("self_attn_conv")?,
            query: linear("linear_q")?,
            key: linear("linear_k")?,
            value: linear("linear_v")?,
            output: linear("linear_out")?,
            heads,
            feed_norm: norm("ffn_layer_norm")?,
            feed: Feed::load(&modules.at("ffn"), width, activation)?,
        })))
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let layer = match self {
            Self::Convolution(convolution) => return convolution.list(inventory),
            Self::Attention(layer) => layer,
        };
        layer.residual.list(inventory)?;
        layer.convolution.list(inventory)?;
        layer.feed.list(inventory)?;
        for linear in [&layer.query, &layer.key, &layer.value, &layer.output] {
            inventory.add_linear(linear)?;
        }
        for norm in [&layer.residual_norm, &layer.norm, &layer.feed_norm] {
            inventory.add_norm(norm)?;
        }
        Ok(())
    }

    fn convolution(&self) -> &Conv1d {
        match self {
            Self::Convolution(convolution) => convolution,
            Self::Attention(layer) => &layer.convolution,
        }
    }

    /// Of one audio's states; the first `attended` of the new ones are attended to.
    fn forward(&self, x: &Tensor, attended: usize, cancel: &CancelToken) -> Result<Tensor> {
        let layer = match self {
            Self::Convolution(convolution) => return gated(&convolution.forward(x, None, cancel)?),
            Self::Attention(layer) => layer,
        };
        let pooled = |norm: &Norm, convolution: &Conv1d| -> Result<Tensor> {
            gated(&convolution.forward(&norm.forward(x)?, None, cancel)?)
        };
        let residual = pooled(&layer.residual_norm, &layer.residual)?;
        let states = pooled(&layer.norm, &layer.convolution)?;
        let mixed = layer.attend(&states, attended)?;
        let x = elementwise::add(&residual, &layer.output.forward(&mixed)?)?;
        let fed = layer.feed.forward(&layer.feed_norm.forward(&x)?)?;
        elementwise::add(&x, &fed)
    }
}

impl AttentionLayer {
    fn attend(&self, x: &Tensor, attended: usize) -> Result<Tensor> {
        let (count, width) = x.dims2()?;
        let size = width / self.heads;
        let seen = attended.clamp(1, count);
        let split = |linear: &Linear, rows: usize| -> Result<Tensor> {
            let all = linear.forward(x)?.narrow(0, 0, rows)?.contiguous()?;
            Ok(all.reshape((rows, self.heads, size))?)
        };
        let q = split(&self.query, count)?;
        let (k, v) = (split(&self.key, seen)?, split(&self.value, seen)?);
        let scale = 1.0 / (size as f32).sqrt();
        let options = AttentionOptions::new(AttentionKind::Bidirectional, scale);
        let ends = ([0, count as u32], [0, seen as u32]);
        let mixed = attention(&q, &k, &v, &ends.0, &ends.1, &options)?;
        Ok(mixed.reshape((count, width))?)
    }
}
