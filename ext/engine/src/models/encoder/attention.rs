//! The attention of a layer: projections, positions, and what mixes the tokens.

use candle_core::{DType, Tensor};

use super::config::{EncoderConfig, LayerConfig, Mixer};
use super::kernel_convolutions::KernelConvolutions;
use super::mixing::{replace_rows_that_see_all, Heads};
use super::relative::{BucketRange, DisentangledPositions, RelativePositions, RelativeState};
use super::spans::Spans;
use crate::models::config::AttentionShape;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, Projections};
use crate::nn::{
    elementwise, AttentionBias, AttentionKind, AttentionOptions, HeadMatrices, Inventory, Linear,
    Norm, Projection,
};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct Attention {
    qkv: Projection,
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    disentangled: Option<LayerPositions>,
    gate: Option<PositionGate>,
    /// What makes queries, keys and values of tokens that see all others.
    sees_all: Option<Projection>,
    convolutions: Option<KernelConvolutions>,
    /// Factors of the values around a token, one row for each distance: [kernel, heads].
    value_convolution: Option<Tensor>,
    shape: AttentionShape,
    scale: f32,
    soft_cap: Option<f32>,
    rotates_values: bool,
    mixer: Mixer,
    number: usize,
}

/// DeBERTa's table as the layer's queries and keys see it: [heads, width, 2 · span], scaled.
#[derive(Debug)]
struct LayerPositions {
    keys: Option<HeadMatrices>,
    queries: Option<HeadMatrices>,
}

impl Attention {
    pub fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        let shape = config.attention_shape();
        let scores = match relative {
            RelativePositions::Disentangled(positions) => positions.config.scores(),
            _ => 1,
        };
        let usual = 1.0 / ((config.head_size * scores) as f32).sqrt();
        let scale = config.attention_scale.unwrap_or(usual);
        let disentangled = match relative {
            RelativePositions::Disentangled(positions) => Some(LayerPositions::load(
                positions, parameters, number, config, scale,
            )?),
            _ => None,
        };
        let norm = |part: Part, widths: &[usize]| {
            parameters.optional_norm(part.at(number), widths, config.layer_norm())
        };
        let global = [Part::GlobalQuery, Part::GlobalKey, Part::GlobalValue];
        let sees_all = if parameters.has(Part::GlobalQuery.at(number)) {
            let parts = global.map(|part| (part.at(number), shape.width()));
            Some(parameters.split(&parts, shape.hidden_size)?)
        } else {
            None
        };
        Ok(Self {
            qkv: parameters.qkv(number, &shape, config.qkv, Join::Dense)?,
            query_norm: norm(Part::QueryNorm, &[shape.width(), shape.head_size])?,
            key_norm: norm(Part::KeyNorm, &[shape.key_width(), shape.head_size])?,
            disentangled,
            gate: PositionGate::load(&shape, parameters, number)?,
            sees_all,
            convolutions: match config.mechanisms.mixer {
                Mixer::Convolutions { kernel } => Some(KernelConvolutions::load(
                    &shape, kernel, parameters, number,
                )?),
                _ => None,
            },
            value_convolution: value_convolution(&shape, parameters, number)?,
            shape,
            scale,
            soft_cap: config.mechanisms.soft_cap,
            rotates_values: config.mechanisms.rotates_values,
            mixer: config.mechanisms.mixer,
            number,
        })
    }

    /// The width of what it gives for a token.
    pub fn width(&self) -> usize {
        let convolved = self.convolutions.as_ref().map_or(0, |_| self.shape.width());
        self.shape.width() + convolved
    }

    #[cfg(test)]
    pub fn linears(&self) -> &[Linear] {
        self.qkv.matrices()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.qkv)?;
        for norm in [&self.query_norm, &self.key_norm].into_iter().flatten() {
            inventory.add_norm(norm)?;
        }
        let positions = self.disentangled.iter();
        for table in positions.flat_map(|positions| [&positions.keys, &positions.queries]) {
            table
                .iter()
                .for_each(|table| inventory.add_head_matrices(table));
        }
        if let Some(gate) = &self.gate {
            inventory.add_linear(&gate.linear)?;
            inventory.add_tensor(&gate.factors);
        }
        if let Some(sees_all) = &self.sees_all {
            inventory.add_projection(sees_all)?;
        }
        if let Some(convolutions) = &self.convolutions {
            convolutions.list(inventory)?;
        }
        if let Some(factors) = &self.value_convolution {
            inventory.add_tensor(factors);
        }
        Ok(())
    }

    /// [tokens, width] of [tokens, hidden].
    pub fn forward(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        layer: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        let parts = self.qkv.heads(x, self.shape.head_size, &[])?;
        let Ok([q, k, v]) = <[Tensor; 3]>::try_from(parts) else {
            return Err(Error::Internal("attention needs three projections".into()));
        };
        let mut q = normed(&self.query_norm, q)?;
        let mut k = normed(&self.key_norm, k)?;
        let mut v = v;
        if let RelativeState::Rope(rotation) = relative {
            let local = matches!(layer.attention, AttentionKind::Window { .. });
            q = rotation.rotate(&q, local)?;
            k = rotation.rotate(&k, local)?;
            if self.rotates_values {
                v = rotation.rotate(&v, local)?;
            }
        }
        let gated = match (relative, &self.gate) {
            (RelativeState::Gated(buckets), Some(gate)) => {
                let weights = gate.forward(x, &self.shape)?;
                Some(elementwise::multiply(&weights, &buckets.table)?)
            }
            _ => None,
        };
        let mut mixed = self.mix(&q, &k, &v, spans, layer, (relative, gated.as_ref()))?;
        if let Some(factors) = &self.value_convolution {
            mixed = elementwise::add(&mixed, &convolved(&v, factors, spans)?)?;
        }
        if let Some(sees_all) = self
            .sees_all
            .as_ref()
            .filter(|_| spans.has_rows_that_see_all())
        {
            let parts = sees_all.heads(x, self.shape.head_size, &[])?;
            if let [q, k, v] = &parts[..] {
                mixed = replace_rows_that_see_all(&mixed, (q, k, v), self.scale, spans)?;
            }
        }
        let mixed = mixed.reshape((x.dim(0)?, self.shape.attended_width()))?;
        match &self.convolutions {
            Some(convolutions) => {
                let beside = convolutions
                    .forward(x, &q, spans)?
                    .to_dtype(mixed.dtype())?;
                Ok(Tensor::cat(&[&mixed, &beside], 1)?)
            }
            None => Ok(mixed),
        }
    }

    /// [tokens, heads, width] of the same.
    fn mix(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        spans: &Spans<'_>,
        layer: &LayerConfig,
        relative: (&RelativeState<'_>, Option<&Tensor>),
    ) -> Result<Tensor> {
        let (attended_k, attended_v) = (spans.attended(k.clone())?, spans.attended(v.clone())?);
        let heads = Heads {
            q,
            k,
            attended_k: &attended_k,
            attended_v: &attended_v,
            scale: self.scale,
        };
        let mixed = match (self.mixer, layer.attention) {
            (Mixer::Landmarks { count }, _) => heads.through_landmarks(spans, count)?,
            (Mixer::Blocks { size, random, from }, _) if spans.longest() >= from => {
                heads.in_blocks(spans, size, random, from)?
            }
            (_, AttentionKind::Window { left, .. }) if spans.has_rows_that_see_all() => {
                heads.in_windows_and_to_some(spans, left)?
            }
            _ => return self.attend(&heads, spans, layer, relative),
        };
        Ok(mixed.to_dtype(q.dtype())?)
    }

    fn attend(
        &self,
        heads: &Heads<'_>,
        spans: &Spans<'_>,
        layer: &LayerConfig,
        (relative, gated): (&RelativeState<'_>, Option<&Tensor>),
    ) -> Result<Tensor> {
        let (q, k) = (heads.q, heads.attended_k);
        let scores = match (relative, &self.disentangled) {
            (RelativeState::Disentangled(range), Some(positions)) => {
                Some((range, positions.scores(q, k, range)?))
            }
            _ => None,
        };
        let bias = match (relative, &scores) {
            (_, Some((range, (from_query, from_key)))) => {
                range.bias(from_query.as_ref(), from_key.as_ref())
            }
            (RelativeState::Gated(buckets), _) => match gated {
                Some(scores) => buckets.bias(scores),
                None => AttentionBias::None,
            },
            (RelativeState::Alibi(slopes), _) => AttentionBias::Alibi(slopes),
            (RelativeState::Buckets { tables, zero }, _) => {
                match tables.get(self.number).or(tables.first()) {
                    Some(table) => AttentionBias::Relative { table, zero: *zero },
                    None => AttentionBias::None,
                }
            }
            _ => AttentionBias::None,
        };
        let options = AttentionOptions {
            bias,
            soft_cap: self.soft_cap,
            ..AttentionOptions::new(layer.attention, self.scale)
        };
        spans.attend(q, k, heads.attended_v, &options)
    }
}

/// Nyströmformer's `[heads, 1, kernel, 1]`, as one row of factors for each distance.
fn value_convolution(
    shape: &AttentionShape,
    parameters: &Parameters<'_>,
    number: usize,
) -> Result<Option<Tensor>> {
    let place = Part::ValueConvolution.at(number);
    if !parameters.has(place) {
        return Ok(None);
    }
    let kernel = parameters.shape(place)?.get(2).copied().unwrap_or(0);
    let factors = parameters.shaped(place, &[shape.head_count, 1, kernel, 1])?;
    let factors = factors.reshape((shape.head_count, kernel))?.t()?;
    Ok(Some(factors.contiguous()?))
}

/// Sums of the values around each token, [tokens, heads, width].
fn convolved(v: &Tensor, factors: &Tensor, spans: &Spans<'_>) -> Result<Tensor> {
    let (kernel, heads) = factors.dims2()?;
    let reach = spans.longest() as isize;
    let v = v.to_dtype(DType::F32)?;
    let factors = factors.to_dtype(DType::F32)?;
    let mut sum = Tensor::zeros(v.shape(), DType::F32, v.device())?;
    for at in 0..kernel {
        let distance = at as isize - (kernel / 2) as isize;
        if distance.abs() < reach {
            let factor = factors.get(at)?.reshape((1, heads, 1))?;
            let part = elementwise::multiply(&spans.neighbours(&v, distance)?, &factor)?;
            sum = elementwise::add(&sum, &part)?;
        }
    }
    Ok(sum)
}

/// Over all heads together (Jina code).
fn normed(norm: &Option<Norm>, x: Tensor) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let (tokens, heads, size) = x.dims3()?;
    // Of all heads at once, or of each.
    let width = norm.width();
    let rows = x.reshape((tokens * heads * size / width, width))?;
    Ok(norm.forward(&rows)?.reshape((tokens, heads, size))?)
}

/// What weighs the bias of distances for each token and head (WavLM).
#[derive(Debug)]
struct PositionGate {
    /// Two numbers of a head's part of a token.
    linear: Linear,
    /// [1, heads]
    factors: Tensor,
}

impl PositionGate {
    fn load(
        shape: &AttentionShape,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Option<Self>> {
        let place = Part::PositionGate.at(number);
        if !parameters.has(place) {
            return Ok(None);
        }
        let (heads, width) = (shape.head_count, shape.head_size);
        // Only sums of four outputs are used.
        let weight = parameters
            .shaped(place, &[8, width])?
            .to_dtype(DType::F32)?;
        let weight = weight.reshape((2, 4, width))?.sum(1)?;
        let bias = match parameters.bias(place)? {
            Some(bias) => {
                let bias = bias.to_dtype(DType::F32)?.reshape((2, 4))?.sum(1)?;
                Some(bias.to_dtype(parameters.dtype())?)
            }
            None => None,
        };
        let place = Part::PositionGateFactor.at(number);
        let factors = parameters.shaped(place, &[1, heads, 1, 1])?;
        Ok(Some(Self {
            linear: Linear::new(weight.to_dtype(parameters.dtype())?, bias)?,
            factors: factors.reshape((1, heads))?,
        }))
    }

    /// [tokens, heads, 1] of [tokens, hidden].
    fn forward(&self, x: &Tensor, shape: &AttentionShape) -> Result<Tensor> {
        let (tokens, heads) = (x.dim(0)?, shape.head_count);
        let parts = x.reshape((tokens * heads, shape.head_size))?;
        let both = kernels::activate(&self.linear.forward(&parts)?, Activation::Sigmoid)?;
        let column = |number: usize| -> Result<Tensor> {
            let column = both.narrow(1, number, 1)?.contiguous()?;
            Ok(column.reshape((tokens, heads))?)
        };
        let (first, second) = (column(0)?, column(1)?);
        let number = |number: f32| Tensor::new(number, x.device())?.to_dtype(x.dtype());
        let weighed = elementwise::multiply(&second, &self.factors)?;
        let weights = elementwise::multiply(&first, &elementwise::add(&weighed, &number(-1.0)?)?)?;
        Ok(elementwise::add(&weights, &number(2.0)?)?.unsqueeze(2)?)
    }
}

impl LayerPositions {
    fn load(
        positions: &DisentangledPositions,
        parameters: &Parameters<'_>,
        number: usize,
        config: &EncoderConfig,
        scale: f32,
    ) -> Result<Self> {
        let shape = config.attention_shape();
        let projections = Projections::load(parameters, number, &shape, config.qkv)?;
        let project = |wanted: bool,
                       part: Part,
                       own: (&Tensor, Option<&Tensor>)|
         -> Result<Option<HeadMatrices>> {
            if !wanted {
                return Ok(None);
            }
            let linear = if positions.config.shared {
                Linear::new(own.0.clone(), own.1.cloned())?
            } else {
                parameters.linear(part.at(number), shape.hidden_size, shape.width())?
            };
            let projected = linear.forward(&positions.table)?;
            let rows = projected.dim(0)?;
            let by_head = projected.reshape((rows, shape.head_count, shape.head_size))?;
            let scaled = elementwise::scale(&by_head.permute((1, 2, 0))?.contiguous()?, scale)?;
            Ok(Some(HeadMatrices::new(&scaled)?))
        };
        let (query, key) = (&projections.weights[0], &projections.weights[1]);
        let bias = |at: usize| projections.biases[at].as_ref();
        Ok(Self {
            keys: project(
                positions.config.from_query,
                Part::PositionKey,
                (key, bias(1)),
            )?,
            queries: project(
                positions.config.from_key,
                Part::PositionQuery,
                (query, bias(0)),
            )?,
        })
    }

    /// What queries and keys make of the positions in reach: [tokens, heads, buckets] each.
    #[allow(clippy::type_complexity)]
    fn scores(
        &self,
        q: &Tensor,
        k: &Tensor,
        range: &BucketRange,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let columns = range.first..range.first + range.count;
        let score = |content: &Tensor, table: &Option<HeadMatrices>| -> Result<Option<Tensor>> {
            let product = |table: &HeadMatrices| table.forward(content, columns.clone());
            table.as_ref().map(product).transpose()
        };
        Ok((score(q, &self.keys)?, score(k, &self.queries)?))
    }
}
