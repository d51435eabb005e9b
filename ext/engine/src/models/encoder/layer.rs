//! One transformer layer, for every family.

use candle_core::Tensor;

use super::config::{EncoderConfig, LayerConfig};
use super::relative::{BucketRange, DisentangledPositions, RelativePositions, RelativeState};
use super::spans::Spans;
use crate::models::config::{AttentionShape, NormPlacement};
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, MlpParts, Projections};
use crate::nn::{
    elementwise, AttentionBias, AttentionKind, AttentionOptions, Epilogue, HeadMatrices, Inventory,
    Linear, Norm, Projection,
};
use crate::{Error, Result};
use kernels::Activation;

#[derive(Debug)]
pub struct Layer {
    qkv: Projection,
    query_norm: Option<Norm>,
    key_norm: Option<Norm>,
    disentangled: Option<LayerPositions>,
    attention_output: Linear,
    /// `None` where the first layer goes without (ModernBERT).
    attention_norm: Option<Norm>,
    second_attention_norm: Option<Norm>,
    /// Gate and up in gated families, else up alone.
    up: Projection,
    down: Linear,
    mlp_norm: Norm,
    shape: AttentionShape,
    scale: f32,
    placement: NormPlacement,
    activation: Activation,
}

/// DeBERTa's table as the layer's queries and keys see it: [heads, width, 2 · span], scaled.
#[derive(Debug)]
struct LayerPositions {
    keys: Option<HeadMatrices>,
    queries: Option<HeadMatrices>,
}

impl Layer {
    pub fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        let shape = config.attention_shape();
        let scores = match relative {
            RelativePositions::Disentangled(positions) => {
                1 + usize::from(positions.config.from_query)
                    + usize::from(positions.config.from_key)
            }
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
        let hidden = [config.hidden_size];
        let norm = |part: Part, widths: &[usize]| {
            parameters.optional_norm(part.at(number), widths, config.norm)
        };
        let attention_norm = norm(Part::AttentionNorm, &hidden)?;
        let first_goes_without = config.norm_placement == NormPlacement::Pre && number == 0;
        if attention_norm.is_none() && !first_goes_without {
            return Err(parameters.missing(Part::AttentionNorm.at(number)));
        }
        let (hidden_size, kind) = (config.hidden_size, config.mlp.kind);
        let mlp = MlpParts::of(number);
        let (up, down) = parameters.mlp(mlp, hidden_size, kind, Join::Dense)?;
        Ok(Self {
            qkv: parameters.qkv(number, &shape, config.qkv, Join::Dense)?,
            query_norm: norm(Part::QueryNorm, &[shape.width()])?,
            key_norm: norm(Part::KeyNorm, &[shape.key_width()])?,
            disentangled,
            attention_output: parameters.scaled_linear(
                Part::AttentionOutput.at(number),
                Part::AttentionScale.at(number),
                shape.width(),
                config.hidden_size,
            )?,
            attention_norm,
            second_attention_norm: norm(Part::SecondAttentionNorm, &hidden)?,
            up,
            down,
            mlp_norm: parameters.norm(Part::MlpNorm.at(number), &hidden, config.norm)?,
            shape,
            scale,
            placement: config.norm_placement,
            activation: config.mlp.activation,
        })
    }

    #[cfg(test)]
    pub(super) fn linears(&self) -> Vec<&Linear> {
        let inputs = self.qkv.matrices().iter().chain(self.up.matrices());
        inputs.chain([&self.attention_output, &self.down]).collect()
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        inventory.add_projection(&self.qkv)?;
        inventory.add_linear(&self.attention_output)?;
        inventory.add_projection(&self.up)?;
        inventory.add_linear(&self.down)?;
        let norms = [
            &self.query_norm,
            &self.key_norm,
            &self.attention_norm,
            &self.second_attention_norm,
        ];
        for norm in norms.into_iter().flatten().chain([&self.mlp_norm]) {
            inventory.add_norm(norm)?;
        }
        let positions = self.disentangled.iter();
        for table in positions.flat_map(|positions| [&positions.keys, &positions.queries]) {
            table
                .iter()
                .for_each(|table| inventory.add_head_matrices(table));
        }
        Ok(())
    }

    /// `x` is [tokens, hidden].
    pub fn forward(
        &self,
        x: &Tensor,
        spans: &Spans<'_>,
        kind: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        match self.placement {
            // On what a sublayer adds no encoder has a norm.
            NormPlacement::Post | NormPlacement::Output | NormPlacement::Both => {
                let mut attended = self.attend(x, x, spans, kind, relative)?;
                if let Some(norm) = &self.attention_norm {
                    attended = norm.forward(&attended)?;
                }
                if let Some(norm) = &self.second_attention_norm {
                    attended = norm.forward(&elementwise::add(x, &attended)?)?;
                }
                self.mlp_norm.forward(&self.feed(&attended, &attended)?)
            }
            NormPlacement::Pre => {
                let normed = match &self.attention_norm {
                    Some(norm) => norm.forward(x)?,
                    None => x.clone(),
                };
                let x = self.attend(&normed, x, spans, kind, relative)?;
                self.feed(&self.mlp_norm.forward(&x)?, &x)
            }
        }
    }

    fn attend(
        &self,
        x: &Tensor,
        residual: &Tensor,
        spans: &Spans<'_>,
        layer: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let parts = self.qkv.heads(x, self.shape.head_size, &[])?;
        let Ok([q, k, v]) = <[Tensor; 3]>::try_from(parts) else {
            return Err(Error::Internal("attention needs three projections".into()));
        };
        let mut q = normed(&self.query_norm, q)?;
        let mut k = normed(&self.key_norm, k)?;
        if let RelativeState::Rope(rotation) = relative {
            let local = matches!(layer.attention, AttentionKind::Window { .. });
            q = rotation.rotate(&q, local)?;
            k = rotation.rotate(&k, local)?;
        }
        let (k, v) = (spans.attended(k)?, spans.attended(v)?);
        let scores = match (relative, &self.disentangled) {
            (RelativeState::Disentangled(range), Some(positions)) => {
                Some((range, positions.scores(&q, &k, range)?))
            }
            _ => None,
        };
        let bias = match (relative, &scores) {
            (_, Some((range, (from_query, from_key)))) => {
                range.bias(from_query.as_ref(), from_key.as_ref())
            }
            (RelativeState::Alibi(slopes), _) => AttentionBias::Alibi(slopes),
            (RelativeState::Buckets { table, zero }, _) => {
                AttentionBias::Relative { table, zero: *zero }
            }
            _ => AttentionBias::None,
        };
        let options = AttentionOptions {
            bias,
            ..AttentionOptions::new(layer.attention, self.scale)
        };
        let mixed = spans.attend(&q, &k, &v, &options)?;
        let mixed = mixed.reshape((tokens, self.shape.width()))?;
        self.attention_output.forward_with(
            &mixed,
            &Epilogue {
                residual: Some(residual),
                ..Epilogue::default()
            },
        )
    }

    fn feed(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let inner = self.up.activated(x, self.activation, &[])?;
        self.down.forward_with(
            &inner,
            &Epilogue {
                residual: Some(residual),
                ..Epilogue::default()
            },
        )
    }
}

/// Over all heads together (Jina code).
fn normed(norm: &Option<Norm>, x: Tensor) -> Result<Tensor> {
    let Some(norm) = norm else { return Ok(x) };
    let shape = x.dims3()?;
    Ok(norm.forward(&x.flatten_from(1)?)?.reshape(shape)?)
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
