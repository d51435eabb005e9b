//! MobileBERT's layer: attention and several MLPs on narrower rows than the hidden states.

use candle_core::Tensor;

use super::config::{EncoderConfig, LayerConfig, Narrow, NarrowAttention};
use super::spans::Spans;
use crate::models::config::NormConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::nn::{elementwise, AttentionOptions, Epilogue, Inventory, Linear, Norm};
use crate::Result;
use kernels::Activation;

/// Of the norms of the embeddings and of the last MLP, which do not follow the configuration.
pub const UNSAID_EPSILON: f32 = 1e-5;

#[derive(Debug)]
pub struct NarrowLayer {
    input: Option<Sublayer>,
    shared: Option<Sublayer>,
    output: Option<Sublayer>,
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Sublayer,
    /// The last one is that of the layer itself.
    mlps: Vec<(Linear, Sublayer)>,
    attention: NarrowAttention,
    activation: Activation,
    head_size: usize,
    scale: f32,
}

/// A linear layer and a norm of what it gives, with what it adds to.
#[derive(Debug)]
struct Sublayer {
    linear: Linear,
    norm: ScaledNorm,
}

/// A norm, or the factors and addends of one alone.
#[derive(Debug)]
pub enum ScaledNorm {
    Norm(Norm),
    Linear { weight: Tensor, bias: Tensor },
}

impl ScaledNorm {
    pub fn load(
        parameters: &Parameters<'_>,
        place: impl Into<Place>,
        width: usize,
        config: NormConfig,
        linear: bool,
    ) -> Result<Self> {
        let place = place.into();
        if !linear {
            return Ok(Self::Norm(parameters.norm(place, &[width], config)?));
        }
        let weight = parameters.shaped(place, &[width])?;
        let bias = parameters.bias(place)?;
        let bias = bias.filter(|bias| bias.dims() == [width]);
        Ok(Self::Linear {
            weight,
            bias: bias.ok_or_else(|| parameters.misfit(place, &[width]))?,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        match self {
            Self::Norm(norm) => inventory.add_norm(norm),
            Self::Linear { weight, bias } => {
                inventory.add_tensor(weight);
                inventory.add_tensor(bias);
                Ok(())
            }
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Norm(norm) => norm.forward(x),
            Self::Linear { weight, bias } => {
                let weight = weight.to_dtype(x.dtype())?;
                let scaled = elementwise::multiply(x, &weight)?;
                elementwise::add(&scaled, &bias.to_dtype(x.dtype())?)
            }
        }
    }
}

impl Sublayer {
    fn forward(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let epilogue = Epilogue {
            residual,
            ..Epilogue::default()
        };
        self.norm.forward(&self.linear.forward_with(x, &epilogue)?)
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.linear)?;
        self.norm.list(inventory)
    }
}

impl NarrowLayer {
    pub fn load(
        config: &EncoderConfig,
        narrow: Narrow,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let (hidden, width) = (config.hidden_size, narrow.width);
        let sublayer = |linear: Place, norm: Place, inputs: usize, outputs: usize| {
            let mut norms = config.layer_norm();
            if norm.part == Part::MlpNorm {
                norms.epsilon = UNSAID_EPSILON;
            }
            Ok::<_, crate::Error>(Sublayer {
                linear: parameters.linear(linear, inputs, outputs)?,
                norm: ScaledNorm::load(parameters, norm, outputs, norms, narrow.linear_norms)?,
            })
        };
        let between = |linear: Part, norm: Part, inputs: usize, outputs: usize| {
            sublayer(linear.at(number), norm.at(number), inputs, outputs)
        };
        let has_narrow = narrow.attention != NarrowAttention::Whole;
        let when =
            |wanted: bool, load: &dyn Fn() -> Result<Sublayer>| wanted.then(load).transpose();
        let mut mlps = Vec::new();
        for earlier in 0..narrow.earlier_mlps {
            let at = |part: Part| part.at(number).expert(earlier);
            let inner = parameters.outputs(at(Part::EarlierUp))?;
            mlps.push((
                parameters.linear(at(Part::EarlierUp), width, inner)?,
                sublayer(at(Part::EarlierDown), at(Part::EarlierNorm), inner, width)?,
            ));
        }
        let inner = parameters.outputs(Part::Up.at(number))?;
        let up = parameters.linear(Part::Up.at(number), width, inner)?;
        mlps.push((up, between(Part::Down, Part::MlpNorm, inner, width)?));
        let read = match narrow.attention {
            NarrowAttention::Shared | NarrowAttention::Narrow => width,
            NarrowAttention::Wide | NarrowAttention::Whole => hidden,
        };
        let value_read = match narrow.attention {
            NarrowAttention::Narrow => width,
            _ => hidden,
        };
        let heads = config.head_count * config.head_size;
        Ok(Self {
            input: when(has_narrow, &|| {
                between(Part::NarrowInput, Part::NarrowInputNorm, hidden, width)
            })?,
            shared: when(narrow.attention == NarrowAttention::Shared, &|| {
                between(Part::NarrowShared, Part::NarrowSharedNorm, hidden, width)
            })?,
            output: when(has_narrow, &|| {
                between(Part::NarrowOutput, Part::NarrowOutputNorm, width, hidden)
            })?,
            query: parameters.linear(Part::Query.at(number), read, heads)?,
            key: parameters.linear(Part::Key.at(number), read, heads)?,
            value: parameters.linear(Part::Value.at(number), value_read, heads)?,
            attended: between(Part::AttentionOutput, Part::AttentionNorm, heads, width)?,
            mlps,
            attention: narrow.attention,
            activation: config.mlp.activation,
            head_size: config.head_size,
            scale: 1.0 / (config.head_size as f32).sqrt(),
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        let sublayers = [&self.input, &self.shared, &self.output];
        for sublayer in sublayers.into_iter().flatten().chain([&self.attended]) {
            sublayer.list(inventory)?;
        }
        for linear in [&self.query, &self.key, &self.value] {
            inventory.add_linear(linear)?;
        }
        for (up, down) in &self.mlps {
            inventory.add_linear(up)?;
            down.list(inventory)?;
        }
        Ok(())
    }

    pub fn forward(&self, x: &Tensor, spans: &Spans<'_>, layer: &LayerConfig) -> Result<Tensor> {
        let narrow = match &self.input {
            Some(input) => input.forward(x, None)?,
            None => x.clone(),
        };
        let read = match (&self.shared, self.attention) {
            (Some(shared), _) => shared.forward(x, None)?,
            (None, NarrowAttention::Narrow) => narrow.clone(),
            (None, _) => x.clone(),
        };
        let value_read = match self.attention {
            NarrowAttention::Narrow => &narrow,
            _ => x,
        };
        let tokens = x.dim(0)?;
        let heads = |linear: &Linear, x: &Tensor| -> Result<Tensor> {
            let made = linear.forward(x)?;
            Ok(made.reshape((tokens, linear.outputs() / self.head_size, self.head_size))?)
        };
        let (q, k) = (heads(&self.query, &read)?, heads(&self.key, &read)?);
        let v = heads(&self.value, value_read)?;
        let options = AttentionOptions::new(layer.attention, self.scale);
        let mixed = spans.attend(&q, &spans.attended(k)?, &spans.attended(v)?, &options)?;
        let mixed = mixed.reshape((tokens, self.query.outputs()))?;
        let mut state = self.attended.forward(&mixed, Some(&narrow))?;
        for (up, down) in &self.mlps {
            let epilogue = Epilogue {
                activation: Some(self.activation),
                ..Epilogue::default()
            };
            state = down.forward(&up.forward_with(&state, &epilogue)?, Some(&state))?;
        }
        match &self.output {
            Some(output) => output.forward(&state, Some(x)),
            None => Ok(state),
        }
    }
}
