//! One transformer layer, for every family.

use candle_core::Tensor;

use crate::kernels;
use crate::nn::{
    attention, elementwise, AttentionBias, AttentionKind, AttentionOptions, Epilogue, Inventory,
    Linear, Norm, Projection,
};
use crate::{Error, Result};

use super::config::{EncoderConfig, FusedQkv, LayerConfig, Mlp, NormPlacement};
use super::parts::{Part, Parts};
use super::relative::{BucketRange, DisentangledPositions, RelativePositions, RelativeState};

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
    heads: usize,
    width: usize,
    scale: f32,
    placement: NormPlacement,
    activation: kernels::Activation,
}

/// DeBERTa's table as the layer's queries and keys see it: [heads, width, 2 · span], scaled.
#[derive(Debug)]
struct LayerPositions {
    keys: Option<Tensor>,
    queries: Option<Tensor>,
}

impl Layer {
    pub fn load(
        config: &EncoderConfig,
        parts: &Parts<'_>,
        number: usize,
        relative: &RelativePositions,
    ) -> Result<Self> {
        let projections = Projections::load(config, parts, number)?;
        let scores = match relative {
            RelativePositions::Disentangled(positions) => {
                1 + usize::from(positions.config.from_query)
                    + usize::from(positions.config.from_key)
            }
            _ => 1,
        };
        let scale = 1.0 / ((config.head_width * scores) as f32).sqrt();
        let disentangled = match relative {
            RelativePositions::Disentangled(positions) => Some(LayerPositions::load(
                positions,
                &projections,
                parts,
                number,
                config,
                scale,
            )?),
            _ => None,
        };
        let norm = |part| parts.optional_norm(part, number, config.norm, config.epsilon);
        let attention_norm = norm(Part::AttentionNorm)?;
        let first_goes_without = config.placement == NormPlacement::Pre && number == 0;
        if attention_norm.is_none() && !first_goes_without {
            return Err(parts.missing(Part::AttentionNorm, number));
        }
        let layer = Self {
            qkv: projections.fuse(config, parts)?,
            query_norm: norm(Part::QueryNorm)?,
            key_norm: norm(Part::KeyNorm)?,
            disentangled,
            attention_output: parts.linear(Part::AttentionOutput, number)?,
            attention_norm,
            second_attention_norm: norm(Part::SecondAttentionNorm)?,
            up: load_up(config, parts, number)?,
            down: parts.linear(Part::Down, number)?,
            mlp_norm: norm(Part::MlpNorm)?.ok_or_else(|| parts.missing(Part::MlpNorm, number))?,
            heads: config.heads,
            width: config.head_width,
            scale,
            placement: config.placement,
            activation: config.activation,
        };
        layer.check(config, number)?;
        Ok(layer)
    }

    /// The matrices chain: a wrong one is the file's fault, and is said before anything is computed.
    fn check(&self, config: &EncoderConfig, number: usize) -> Result<()> {
        let attended = config.heads * config.head_width;
        let inner = self.up.widths().first().copied().unwrap_or(0);
        let fits = self.qkv.inputs() == config.hidden
            && (
                self.attention_output.inputs(),
                self.attention_output.outputs(),
            ) == (attended, config.hidden)
            && self.up.inputs() == config.hidden
            && (self.down.inputs(), self.down.outputs()) == (inner, config.hidden)
            && self.mlp_norm.width() == config.hidden;
        if fits {
            return Ok(());
        }
        Err(Error::CorruptModel(format!(
            "the matrices of layer {number} do not fit the sizes in the config (hidden size {}, {} heads of {}, \
             intermediate size {})",
            config.hidden, config.heads, config.head_width, config.intermediate
        )))
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
            table.iter().for_each(|table| inventory.add_tensor(table));
        }
        Ok(())
    }

    /// `x` is [tokens, hidden].
    pub fn forward(
        &self,
        x: &Tensor,
        boundaries: &[u32],
        kind: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        match self.placement {
            NormPlacement::Post => {
                let mut attended = self.attend(x, x, boundaries, kind, relative)?;
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
                let x = self.attend(&normed, x, boundaries, kind, relative)?;
                self.feed(&self.mlp_norm.forward(&x)?, &x)
            }
        }
    }

    fn attend(
        &self,
        x: &Tensor,
        residual: &Tensor,
        boundaries: &[u32],
        layer: &LayerConfig,
        relative: &RelativeState<'_>,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let parts = self.qkv.heads(x, self.width, &[])?;
        let Ok([q, k, v]) = <[Tensor; 3]>::try_from(parts) else {
            return Err(Error::Internal("attention needs three projections".into()));
        };
        let mut q = normed(&self.query_norm, q)?;
        let mut k = normed(&self.key_norm, k)?;
        if let RelativeState::Rope {
            ropes,
            tables,
            positions,
        } = relative
        {
            q = ropes[layer.rope].rotate(&q, &tables[layer.rope], positions)?;
            k = ropes[layer.rope].rotate(&k, &tables[layer.rope], positions)?;
        }
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
        let mixed = attention(&q, &k, &v, boundaries, boundaries, &options)?;
        let mixed = mixed.reshape((tokens, self.heads * self.width))?;
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
        projections: &Projections,
        parts: &Parts<'_>,
        number: usize,
        config: &EncoderConfig,
        scale: f32,
    ) -> Result<Self> {
        let project =
            |wanted: bool, part: Part, own: (&Tensor, Option<&Tensor>)| -> Result<Option<Tensor>> {
                if !wanted {
                    return Ok(None);
                }
                let linear = match positions.config.shared {
                    true => Linear::new(own.0.clone(), own.1.cloned())?,
                    false => parts.linear(part, number)?,
                };
                let projected = linear.forward(&positions.table)?;
                let rows = projected.dim(0)?;
                let by_head = projected.reshape((rows, config.heads, config.head_width))?;
                Ok(Some(elementwise::scale(
                    &by_head.permute((1, 2, 0))?.contiguous()?,
                    scale,
                )?))
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
        let score = |content: &Tensor, table: &Option<Tensor>| -> Result<Option<Tensor>> {
            let Some(table) = table else { return Ok(None) };
            let table = table.narrow(2, range.first, range.count)?.contiguous()?;
            let by_head = content.transpose(0, 1)?.contiguous()?;
            Ok(Some(by_head.matmul(&table)?.transpose(0, 1)?.contiguous()?))
        };
        Ok((score(q, &self.keys)?, score(k, &self.queries)?))
    }
}

/// The weights of query, key and value, however the checkpoint stores them.
struct Projections {
    weights: [Tensor; 3],
    biases: [Option<Tensor>; 3],
}

impl Projections {
    fn load(config: &EncoderConfig, parts: &Parts<'_>, number: usize) -> Result<Self> {
        if !parts.has(Part::FusedQkv, number) {
            let each = [Part::Query, Part::Key, Part::Value];
            let [q, k, v] = each.map(|part| parts.weight(part, number));
            let [qb, kb, vb] = each.map(|part| parts.bias(part, number));
            return Ok(Self {
                weights: [q?, k?, v?],
                biases: [qb?, kb?, vb?],
            });
        }
        let weights = split(&parts.weight(Part::FusedQkv, number)?, config)?;
        let biases = match parts.bias(Part::FusedQkv, number)? {
            Some(bias) => split(&bias, config)?.map(Some),
            None => [
                parts.optional_weight(Part::QueryBias, number)?,
                None,
                parts.optional_weight(Part::ValueBias, number)?,
            ],
        };
        Ok(Self { weights, biases })
    }

    fn fuse(self, config: &EncoderConfig, parts: &Parts<'_>) -> Result<Projection> {
        let bias = match self.biases.iter().any(Option::is_some) {
            false => None,
            true => {
                let fill = |(weight, bias): (&Tensor, Option<Tensor>)| -> Result<Tensor> {
                    match bias {
                        Some(bias) => Ok(bias),
                        None => Ok(Tensor::zeros(
                            weight.dim(0)?,
                            weight.dtype(),
                            weight.device(),
                        )?),
                    }
                };
                let all: Result<Vec<_>> = self.weights.iter().zip(self.biases).map(fill).collect();
                Some(Tensor::cat(&all?, 0)?)
            }
        };
        let fused = parts.assemble(Tensor::cat(&self.weights, 0)?, bias)?;
        Projection::fused(fused, &[config.heads * config.head_width; 3])
    }
}

/// Cuts a fused weight or bias into query, key and value.
fn split(fused: &Tensor, config: &EncoderConfig) -> Result<[Tensor; 3]> {
    let (heads, width) = (config.heads, config.head_width);
    let rows = 3 * heads * width;
    if fused.dim(0)? != rows {
        return Err(Error::CorruptModel(format!(
            "a fused query, key and value of shape {:?} does not hold {rows} rows",
            fused.dims()
        )));
    }
    match config.fused_qkv {
        FusedQkv::Stacked => {
            let part = |number: usize| fused.narrow(0, number * heads * width, heads * width);
            Ok([part(0)?, part(1)?, part(2)?])
        }
        FusedQkv::PerHead => {
            let by_head = fused.reshape((heads, 3, width, fused.elem_count() / rows))?;
            let part = |at: usize| -> Result<Tensor> {
                let part = by_head.narrow(1, at, 1)?.contiguous()?;
                let mut shape = fused.dims().to_vec();
                shape[0] = heads * width;
                Ok(part.reshape(shape)?)
            };
            Ok([part(0)?, part(1)?, part(2)?])
        }
    }
}

/// What the feed-forward begins with; gate and up are laid together, gate first.
fn load_up(config: &EncoderConfig, parts: &Parts<'_>, number: usize) -> Result<Projection> {
    if config.mlp == Mlp::Plain {
        return Projection::split(vec![parts.linear(Part::Up, number)?]);
    }
    if parts.has(Part::GateUp, number) {
        return Projection::fused_halves(parts.linear(Part::GateUp, number)?);
    }
    let (gate, up) = match parts.has(Part::UpGate, number) {
        true => (half(parts, number, 1)?, half(parts, number, 0)?),
        false => {
            let each = |part| -> Result<_> {
                Ok((parts.weight(part, number)?, parts.bias(part, number)?))
            };
            (each(Part::Gate)?, each(Part::Up)?)
        }
    };
    let bias = match (gate.1, up.1) {
        (Some(gate), Some(up)) => Some(Tensor::cat(&[gate, up], 0)?),
        _ => None,
    };
    Projection::fused_halves(parts.assemble(Tensor::cat(&[gate.0, up.0], 0)?, bias)?)
}

/// Half number `at` of the rows of a fused matrix, up first.
fn half(parts: &Parts<'_>, number: usize, at: usize) -> Result<(Tensor, Option<Tensor>)> {
    let cut = |fused: Tensor| -> Result<Tensor> {
        let rows = fused.dim(0)? / 2;
        Ok(fused.narrow(0, at * rows, rows)?)
    };
    let bias = parts.bias(Part::UpGate, number)?.map(cut).transpose()?;
    Ok((cut(parts.weight(Part::UpGate, number)?)?, bias))
}

/// A layer's attention is bidirectional unless its config says otherwise.
pub fn plain_layers(count: usize) -> Vec<LayerConfig> {
    (0..count)
        .map(|number| LayerConfig {
            attention: AttentionKind::Bidirectional,
            rope: 0,
            weights: number,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_their_own_weights_unless_told() {
        let layers = plain_layers(3);
        assert_eq!(
            layers.iter().map(|layer| layer.weights).collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }
}
