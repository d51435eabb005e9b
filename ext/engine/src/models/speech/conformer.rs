//! Layers of attention and a convolution between two halves of an MLP (Conformer).

use candle_core::{DType, Device, Tensor};

use super::config::{ConformerConfig, ConformerPositions, DepthwiseNorm};
use crate::models::config::AttentionShape;
use crate::models::encoder::relative::RelativeState;
use crate::models::encoder::spans::Spans;
use crate::models::encoder::EncoderConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::{Part, Place};
use crate::models::projections::Join;
use crate::nn::{
    elementwise, AttentionBias, AttentionKind, AttentionOptions, Disentangled, Epilogue,
    HeadMatrices, Inventory, Linear, Norm, Projection,
};
use crate::{Error, Result};
use kernels::Activation;

/// Of PyTorch's batch norms.
const EPSILON: f64 = 1e-5;
/// What the frequencies of positions fall towards.
const BASE: f32 = 10_000.0;

#[derive(Debug)]
pub struct ConformerLayer {
    first: Half,
    attention_norm: Norm,
    qkv: Projection,
    output: Linear,
    positions: LayerPositions,
    convolution: Convolution,
    second: Half,
    final_norm: Norm,
    shape: AttentionShape,
    scale: f32,
}

/// An MLP whose result counts half.
#[derive(Debug)]
struct Half {
    norm: Norm,
    up: Linear,
    down: Linear,
    activation: Activation,
}

#[derive(Debug)]
enum LayerPositions {
    None,
    /// What a query makes of each distance, up to `back` behind it: [heads, width, distances], scaled.
    Table {
        table: HeadMatrices,
        count: usize,
        back: usize,
    },
    /// What makes keys of sines of distances, and what queries of content and of positions gain:
    /// [1, heads, width].
    Sines {
        keys: Linear,
        content: Tensor,
        position: Tensor,
    },
}

#[derive(Debug)]
struct Convolution {
    norm: Norm,
    /// Values and gates.
    into: Linear,
    /// For each place of the kernel a factor per channel.
    taps: Vec<Tensor>,
    bias: Option<Tensor>,
    depthwise_norm: Option<Norm>,
    out: Linear,
    /// Frames before the one that the kernel stands for.
    before: usize,
    activation: Activation,
}

/// Sines of the distances that a batch reaches.
pub struct Distances {
    /// [2 · longest - 1, hidden]
    sines: Tensor,
    longest: usize,
    places: Vec<u32>,
}

impl Distances {
    pub fn new(longest: usize, hidden: usize, dtype: DType, device: &Device) -> Result<Self> {
        let count = 2 * longest.max(1) - 1;
        let mut values = Vec::with_capacity(count * hidden);
        for row in 0..count {
            let position = (longest.max(1) - 1) as f32 - row as f32;
            for pair in 0..hidden.div_ceil(2) {
                let frequency = 1.0 / BASE.powf(2.0 * pair as f32 / hidden as f32);
                let (sine, cosine) = (position * frequency).sin_cos();
                values.push(sine);
                if 2 * pair + 1 < hidden {
                    values.push(cosine);
                }
            }
        }
        Ok(Self {
            sines: Tensor::from_vec(values, (count, hidden), device)?.to_dtype(dtype)?,
            longest: longest.max(1),
            places: (0..count as u32).collect(),
        })
    }
}

impl ConformerLayer {
    pub fn load(
        config: &EncoderConfig,
        conformer: &ConformerConfig,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let shape = config.attention_shape();
        let norm = |part: Part| {
            parameters.norm(part.at(number), &[config.hidden_size], config.layer_norm())
        };
        let half = |norm: Norm, up: Part, down: Part| -> Result<Half> {
            let width = parameters.outputs(up.at(number))?;
            Ok(Half {
                norm,
                up: parameters.linear(up.at(number), config.hidden_size, width)?,
                down: parameters.linear(down.at(number), width, config.hidden_size)?,
                activation: config.mlp.activation,
            })
        };
        let scale = 1.0 / (config.head_size as f32).sqrt();
        Ok(Self {
            first: half(norm(Part::FirstMlpNorm)?, Part::FirstUp, Part::FirstDown)?,
            attention_norm: norm(Part::AttentionNorm)?,
            qkv: parameters.qkv(number, &shape, config.qkv, Join::Dense)?,
            output: parameters.linear(
                Part::AttentionOutput.at(number),
                shape.width(),
                config.hidden_size,
            )?,
            positions: LayerPositions::load(conformer, &shape, parameters, (number, scale))?,
            convolution: Convolution::load(config, conformer, parameters, number)?,
            second: half(norm(Part::MlpNorm)?, Part::Up, Part::Down)?,
            final_norm: norm(Part::PostMlpNorm)?,
            shape,
            scale,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for half in [&self.first, &self.second] {
            inventory.add_norm(&half.norm)?;
            inventory.add_linear(&half.up)?;
            inventory.add_linear(&half.down)?;
        }
        inventory.add_projection(&self.qkv)?;
        inventory.add_linear(&self.output)?;
        match &self.positions {
            LayerPositions::None => {}
            LayerPositions::Table { table, .. } => inventory.add_head_matrices(table),
            LayerPositions::Sines {
                keys,
                content,
                position,
            } => {
                inventory.add_linear(keys)?;
                inventory.add_tensor(content);
                inventory.add_tensor(position);
            }
        }
        self.convolution.list(inventory)?;
        inventory.add_norm(&self.attention_norm)?;
        inventory.add_norm(&self.final_norm)
    }

    /// `x` is [states, hidden].
    pub fn forward(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        positions: (&Distances, &RelativeState<'_>),
    ) -> Result<Tensor> {
        let x = self.first.forward(x)?;
        let attended = self.attend(&self.attention_norm.forward(&x)?, spans, positions)?;
        let residual = Epilogue {
            residual: Some(&x),
            ..Epilogue::default()
        };
        let x = self.output.forward_with(&attended, &residual)?;
        let x = elementwise::add(&x, &self.convolution.forward(&x, spans)?)?;
        self.final_norm.forward(&self.second.forward(&x)?)
    }

    /// Queries, keys and values; those of rotary positions are made of states that are rotated themselves.
    fn projected(&self, x: &Tensor, relative: &RelativeState<'_>) -> Result<[Tensor; 3]> {
        let project = |x: &Tensor| -> Result<[Tensor; 3]> {
            let parts = self.qkv.heads(x, self.shape.head_size, &[])?;
            parts
                .try_into()
                .map_err(|_| Error::Internal("attention needs three projections".into()))
        };
        let [q, k, v] = project(x)?;
        let RelativeState::Rope(rotation) = relative else {
            return Ok([q, k, v]);
        };
        let (rows, width) = x.dims2()?;
        let heads = x.reshape((rows, self.shape.head_count, self.shape.head_size))?;
        let rotated = rotation.rotate(&heads, false)?.reshape((rows, width))?;
        let [q, k, _] = project(&rotated)?;
        Ok([q, k, v])
    }

    fn attend(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        (distances, relative): (&Distances, &RelativeState<'_>),
    ) -> Result<Tensor> {
        let [q, k, v] = self.projected(x, relative)?;
        let (q, scores, zero) = match &self.positions {
            LayerPositions::None => (q, None, 0),
            LayerPositions::Table { table, count, back } => {
                let scores = table.forward(&q, 0..*count)?;
                (q, Some((scores, *count)), *back)
            }
            LayerPositions::Sines {
                keys,
                content,
                position,
            } => {
                let count = distances.places.len();
                let keys = keys.forward(&distances.sines)?;
                let keys = keys.reshape((count, self.shape.head_count, self.shape.head_size))?;
                let keys = elementwise::scale(&keys.permute((1, 2, 0))?.contiguous()?, self.scale)?;
                let scores = HeadMatrices::new(&keys)?
                    .forward(&elementwise::add(&q, position)?, 0..count)?;
                let q = elementwise::add(&q, content)?;
                (q, Some((scores, count)), distances.longest - 1)
            }
        };
        let places: Vec<u32>;
        let bias = match &scores {
            Some((scores, count)) => {
                places = (0..*count as u32).collect();
                AttentionBias::Disentangled(Disentangled {
                    from_query: Some((scores, &places)),
                    from_key: None,
                    zero,
                })
            }
            None => AttentionBias::None,
        };
        let options = AttentionOptions {
            bias,
            ..AttentionOptions::new(AttentionKind::Bidirectional, self.scale)
        };
        let mixed = spans.attend(&q, &k, &v, &options)?;
        Ok(mixed.reshape((x.dim(0)?, self.shape.attended_width()))?)
    }
}

impl Half {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = Epilogue {
            activation: Some(self.activation),
            ..Epilogue::default()
        };
        let inner = self.up.forward_with(&self.norm.forward(x)?, &inner)?;
        let fed = elementwise::scale(&self.down.forward(&inner)?, 0.5)?;
        elementwise::add(x, &fed)
    }
}

impl LayerPositions {
    fn load(
        conformer: &ConformerConfig,
        shape: &AttentionShape,
        parameters: &Parameters<'_>,
        (number, scale): (usize, f32),
    ) -> Result<Self> {
        let (heads, width) = (shape.head_count, shape.head_size);
        Ok(match conformer.positions {
            ConformerPositions::None => Self::None,
            ConformerPositions::Table { back, ahead } => {
                let count = back + ahead + 1;
                let place = Part::PositionTable.at(number);
                let table = parameters.shaped(place, &[count, width])?;
                let table = elementwise::scale(&table.t()?.contiguous()?, scale)?;
                let table = table.unsqueeze(0)?.repeat((heads, 1, 1))?;
                Self::Table {
                    table: HeadMatrices::new(&table.contiguous()?)?,
                    count,
                    back,
                }
            }
            ConformerPositions::Sines => {
                let bias = |part: Part| -> Result<Tensor> {
                    let bias = parameters.shaped(part.at(number), &[heads, width])?;
                    Ok(bias.unsqueeze(0)?)
                };
                let place = Part::PositionKey.at(number);
                Self::Sines {
                    keys: parameters.linear(place, shape.hidden_size, shape.width())?,
                    content: bias(Part::ContentBias)?,
                    position: bias(Part::PositionBias)?,
                }
            }
        })
    }
}

impl Convolution {
    fn load(
        config: &EncoderConfig,
        conformer: &ConformerConfig,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let (hidden, kernel) = (config.hidden_size, conformer.kernel);
        let at = |part: Part| -> Place { part.at(number) };
        let weight = parameters.shaped(at(Part::Depthwise), &[hidden, 1, kernel])?;
        let weight = weight.reshape((hidden, kernel))?.t()?.contiguous()?;
        let bias = parameters.bias(at(Part::Depthwise))?;
        let norm = |part: Part| parameters.norm(at(part), &[hidden], config.layer_norm());
        let (weight, bias, depthwise_norm) = match conformer.norm {
            DepthwiseNorm::Frames => (weight, bias, Some(norm(Part::DepthwiseNorm)?)),
            DepthwiseNorm::Batch => {
                let (weight, bias) = with_batch_norm(parameters, number, hidden, (weight, bias))?;
                (weight, Some(bias), None)
            }
        };
        let taps = (0..kernel).map(|tap| Ok(weight.get(tap)?.contiguous()?));
        Ok(Self {
            norm: norm(Part::ConvolutionInputNorm)?,
            into: parameters.linear(at(Part::PointwiseIn), hidden, 2 * hidden)?,
            taps: taps.collect::<Result<_>>()?,
            bias,
            depthwise_norm,
            out: parameters.linear(at(Part::PointwiseOut), hidden, hidden)?,
            before: conformer.before,
            activation: config.mlp.activation,
        })
    }

    fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_linear(&self.into)?;
        inventory.add_linear(&self.out)?;
        for tensor in self.taps.iter().chain(&self.bias) {
            inventory.add_tensor(tensor);
        }
        if let Some(norm) = &self.depthwise_norm {
            inventory.add_norm(norm)?;
        }
        inventory.add_norm(&self.norm)
    }

    fn forward(&self, x: &Tensor, spans: &Spans<'_>) -> Result<Tensor> {
        let gated = gated(&self.into.forward(&self.norm.forward(x)?)?)?;
        let mut rows = Vec::new();
        for range in spans.ranges() {
            rows.push(self.depthwise(&gated.narrow(0, range.start, range.len())?)?);
        }
        let mut x = Tensor::cat(&rows, 0)?;
        if let Some(norm) = &self.depthwise_norm {
            x = norm.forward(&x)?;
        }
        self.out.forward(&kernels::activate(&x, self.activation)?)
    }

    /// Of one sequence, [frames, channels].
    fn depthwise(&self, x: &Tensor) -> Result<Tensor> {
        let frames = x.dim(0)?;
        let after = self.taps.len() - 1 - self.before;
        let padded = x.pad_with_zeros(0, self.before, after)?.contiguous()?;
        let mut sum: Option<Tensor> = None;
        for (place, tap) in self.taps.iter().enumerate() {
            let part = elementwise::multiply(&padded.narrow(0, place, frames)?, tap)?;
            sum = Some(match sum {
                Some(sum) => elementwise::add(&sum, &part)?,
                None => part,
            });
        }
        let sum = sum.ok_or_else(|| Error::Internal("a convolution without a kernel".into()))?;
        match &self.bias {
            Some(bias) => elementwise::add(&sum, bias),
            None => Ok(sum),
        }
    }
}

/// The first half of each row times the sigmoid of the second.
pub fn gated(both: &Tensor) -> Result<Tensor> {
    let width = both.dim(1)? / 2;
    let half = |number: usize| Ok::<_, Error>(both.narrow(1, number * width, width)?);
    let gates = kernels::activate(&half(1)?.contiguous()?, Activation::Sigmoid)?;
    elementwise::multiply(&half(0)?.contiguous()?, &gates)
}

/// Weight [kernel, channels] and bias of a convolution and the batch norm behind it.
fn with_batch_norm(
    parameters: &Parameters<'_>,
    number: usize,
    hidden: usize,
    (weight, bias): (Tensor, Option<Tensor>),
) -> Result<(Tensor, Tensor)> {
    let exact = |part: Part| -> Result<Tensor> {
        let found = parameters.optional_exact(part.at(number))?;
        let found = found.ok_or_else(|| parameters.missing(part.at(number)))?;
        match found.dims() {
            [width] if *width == hidden => Ok(found),
            _ => Err(parameters.misfit(part.at(number), &[hidden])),
        }
    };
    let (mean, variance) = (exact(Part::DepthwiseMean)?, exact(Part::DepthwiseVariance)?);
    let factors = (exact(Part::DepthwiseNorm)? / (variance + EPSILON)?.sqrt()?)?;
    let shift = match parameters.bias(Part::DepthwiseNorm.at(number))? {
        Some(shift) => shift.to_dtype(DType::F32)?,
        None => mean.zeros_like()?,
    };
    let bias = match bias {
        Some(bias) => (bias.to_dtype(DType::F32)? - mean)?,
        None => mean.neg()?,
    };
    let weight = weight.to_dtype(DType::F32)?.broadcast_mul(&factors)?;
    let bias = ((bias * factors)? + shift)?;
    let dtype = parameters.dtype();
    Ok((weight.to_dtype(dtype)?, bias.to_dtype(dtype)?))
}
