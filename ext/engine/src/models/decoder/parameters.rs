//! From named tensors to layers.

use candle_core::{DType, Device, Tensor};

use super::config::*;
use super::experts::ExpertLayer;
use super::layer::{AttentionLayer, FeedForward, Layer, MlpLayer};
use super::names::Names;
use crate::nn::{Embedding, Linear, Norm, Projection};
use crate::quant::QuantizedTensor;
use crate::weights::WeightSource;
use crate::{Error, Result};

pub struct Parameters<'a> {
    source: &'a dyn WeightSource,
    names: &'a Names,
    prefix: Prefix,
    device: &'a Device,
    dtype: DType,
    /// Whether linear layers hold bytes.
    int8: bool,
}

/// How a checkpoint's names differ from the family's.
enum Prefix {
    AsIs,
    /// Saved without the language-model head: the first component is missing.
    Stripped,
    /// Part of a larger model: something stands in front.
    Added(&'static str),
}

impl<'a> Parameters<'a> {
    pub fn new(
        source: &'a dyn WeightSource,
        names: &'a Names,
        device: &'a Device,
        dtype: DType,
    ) -> Result<Self> {
        let prefixes = [
            Prefix::AsIs,
            Prefix::Stripped,
            Prefix::Added("language_model."),
            Prefix::Added("model.language_model."),
        ];
        let table = format!("{}.weight", names.embedding);
        let prefix = prefixes
            .into_iter()
            .find(|prefix| source.has(&prefix.apply(&table)))
            .unwrap_or(Prefix::AsIs);
        Ok(Self {
            source,
            names,
            prefix,
            device,
            dtype,
            int8: false,
        })
    }

    /// Linear layers then hold bytes, if so wanted.
    pub fn with_int8(self, int8: bool) -> Self {
        Self { int8, ..self }
    }

    pub fn embedding(&self, config: &DecoderConfig) -> Result<Embedding> {
        self.table(self.names.embedding, config)
    }

    /// `[vocabulary, hidden]`
    fn table(&self, name: &str, config: &DecoderConfig) -> Result<Embedding> {
        let name = format!("{name}.weight");
        let shape = [config.vocab_size, config.hidden_size];
        if let Some(blocks) = self.blocks(&name, &shape)? {
            return Ok(Embedding::Blocks(blocks));
        }
        self.shaped(&name, &shape).map(Embedding::Dense)
    }

    pub fn position_embedding(&self) -> Result<Tensor> {
        self.tensor(&format!("{}.weight", self.names.position_embedding))
    }

    pub fn final_norm(&self, config: &DecoderConfig) -> Result<Norm> {
        self.norm(self.names.final_norm, config.norm)
    }

    pub fn head(&self, config: &DecoderConfig, embedding: &Embedding) -> Result<Linear> {
        if self.ties_head(config) {
            return embedding.tied_output();
        }
        self.linear(self.names.head, config.hidden_size, config.vocab_size)
    }

    /// Some rows of the head's matrix, `[rows, hidden]`.
    pub fn head_rows(
        &self,
        config: &DecoderConfig,
        embedding: &Embedding,
        rows: &[u32],
    ) -> Result<Tensor> {
        if self.ties_head(config) {
            return embedding.rows(rows);
        }
        self.table(self.names.head, config)?.rows(rows)
    }

    /// A checkpoint that does not say whether its head is tied shows it by having none.
    fn ties_head(&self, config: &DecoderConfig) -> bool {
        config.tied_head || !self.has(&format!("{}.weight", self.names.head))
    }

    /// The first of these output matrices that the checkpoint holds; they stand beside the model,
    /// not inside it.
    pub fn output(&self, names: &[&str], inputs: usize) -> Result<Option<Linear>> {
        let there = |name: &&&str| self.source.has(&format!("{name}.weight"));
        let Some(name) = names.iter().find(there) else {
            return Ok(None);
        };
        let beside = Self {
            prefix: Prefix::AsIs,
            int8: false,
            ..*self
        };
        let outputs = beside.outputs(name)?;
        beside.linear(name, inputs, outputs).map(Some)
    }

    pub fn layer(&self, index: usize, config: &DecoderConfig) -> Result<Layer> {
        let at = |name: &str| self.names.layer.replace("{}", &index.to_string()) + name;
        let norm = |name: &str| self.norm(&at(name), config.norm).map(Some);
        let before = config.norm_placement != NormPlacement::Post;
        let after = config.norm_placement != NormPlacement::Pre;
        let one_norm = config.residual == Residual::ParallelOneNorm;
        let optional = |wanted: bool, name: &str| if wanted { norm(name) } else { Ok(None) };
        Ok(Layer {
            attention_norm: optional(before, self.names.attention_norm)?,
            post_attention_norm: optional(after, self.names.post_attention_norm)?,
            mlp_norm: optional(before && !one_norm, self.names.mlp_norm)?,
            post_mlp_norm: optional(after, self.names.post_mlp_norm)?,
            attention: self.attention(&at, config)?,
            mlp: self.feed_forward(&at, index, config)?,
        })
    }

    fn attention(
        &self,
        at: &dyn Fn(&str) -> String,
        config: &DecoderConfig,
    ) -> Result<AttentionLayer> {
        let (heads, kv_heads, size) = (config.head_count, config.kv_head_count, config.head_size);
        let (hidden, width, kv_width) = (config.hidden_size, heads * size, kv_heads * size);
        let fused = |linear| Projection::fused(linear, &[width, kv_width, kv_width]);
        let qkv = match config.qkv {
            QkvLayout::Split => Projection::split(vec![
                self.linear(&at(self.names.query), hidden, width)?,
                self.linear(&at(self.names.key), hidden, kv_width)?,
                self.linear(&at(self.names.value), hidden, kv_width)?,
            ])?,
            QkvLayout::Fused => {
                fused(self.linear(&at(self.names.qkv), hidden, width + 2 * kv_width)?)?
            }
            QkvLayout::FusedByHead => {
                let order = ungrouped_rows(heads, kv_heads, size);
                let order = Tensor::from_vec(order, width + 2 * kv_width, self.device)?;
                let (weight, bias) =
                    self.parts(&at(self.names.qkv), [width + 2 * kv_width, hidden])?;
                let bias = bias.map(|bias| bias.index_select(&order, 0)).transpose()?;
                fused(self.assemble(weight.index_select(&order, 0)?, bias)?)?
            }
            QkvLayout::FusedTransposed => {
                fused(self.transposed(&at(self.names.qkv), hidden, width + 2 * kv_width)?)?
            }
        };
        let transposed = config.qkv == QkvLayout::FusedTransposed;
        let output = at(self.names.attention_output);
        let head_norm = |name: &str| match config.query_key_norm {
            QueryKeyNorm::None => Ok(None),
            _ => self.norm(&at(name), config.norm).map(Some),
        };
        Ok(AttentionLayer {
            qkv,
            output: if transposed {
                self.transposed(&output, width, hidden)?
            } else {
                self.linear(&output, width, hidden)?
            },
            query_norm: head_norm(self.names.query_norm)?,
            key_norm: head_norm(self.names.key_norm)?,
        })
    }

    fn feed_forward(
        &self,
        at: &dyn Fn(&str) -> String,
        index: usize,
        config: &DecoderConfig,
    ) -> Result<FeedForward> {
        match &config.experts {
            Some(experts) if experts.layers[index] => {
                self.experts(at, experts, config).map(FeedForward::Experts)
            }
            _ => self.mlp(at, config).map(FeedForward::Mlp),
        }
    }

    fn mlp(&self, at: &dyn Fn(&str) -> String, config: &DecoderConfig) -> Result<MlpLayer> {
        let hidden = config.hidden_size;
        let (gate, up) = (at(self.names.gate), at(self.names.up));
        let input = match config.mlp.kind {
            MlpKind::Gated => {
                let width = self.outputs(&gate)?;
                Projection::split(vec![
                    self.linear(&gate, hidden, width)?,
                    self.linear(&up, hidden, width)?,
                ])?
            }
            MlpKind::GatedFused => {
                let both = at(self.names.gate_up);
                Projection::fused_halves(self.linear(&both, hidden, self.outputs(&both)?)?)?
            }
            MlpKind::Plain => {
                Projection::split(vec![self.linear(&up, hidden, self.outputs(&up)?)?])?
            }
            MlpKind::PlainTransposed => {
                let width = self
                    .shape(&format!("{up}.weight"))?
                    .get(1)
                    .copied()
                    .unwrap_or(0);
                Projection::split(vec![self.transposed(&up, hidden, width)?])?
            }
        };
        let down = at(self.names.down);
        let width = input.widths().first().copied().unwrap_or(0);
        Ok(MlpLayer {
            input,
            output: if config.mlp.kind == MlpKind::PlainTransposed {
                self.transposed(&down, width, hidden)?
            } else {
                self.linear(&down, width, hidden)?
            },
            activation: config.mlp.activation,
        })
    }

    fn experts(
        &self,
        at: &dyn Fn(&str) -> String,
        experts: &Experts,
        config: &DecoderConfig,
    ) -> Result<ExpertLayer> {
        let hidden = config.hidden_size;
        let list = match experts.layout {
            ExpertLayout::Separate => self.separate_experts(at, experts.count, config)?,
            ExpertLayout::Stacked => self.stacked_experts(at, experts.count, config)?,
        };
        let shared = if experts.shared {
            let (gate, up) = (at(self.names.shared_gate), at(self.names.shared_up));
            let mlp = self.gated(&gate, &up, &at(self.names.shared_down), config)?;
            // GGUF stores this one-row matrix as a vector.
            let router = self.tensor(&format!("{}.weight", at(self.names.shared_router)))?;
            Some((mlp, Linear::new(router.reshape((1, hidden))?, None)?))
        } else {
            None
        };
        Ok(ExpertLayer {
            router: self.exact(&at(self.names.router), hidden, experts.count)?,
            experts: list,
            used: experts.used.min(experts.count),
            normalize: experts.normalize,
            shared,
        })
    }

    fn separate_experts(
        &self,
        at: &dyn Fn(&str) -> String,
        count: usize,
        config: &DecoderConfig,
    ) -> Result<Vec<MlpLayer>> {
        (0..count)
            .map(|expert| {
                let name = |template: &str| at(&template.replace("{}", &expert.to_string()));
                self.gated(
                    &name(self.names.expert_gate),
                    &name(self.names.expert_up),
                    &name(self.names.expert_down),
                    config,
                )
            })
            .collect()
    }

    /// GGUF keeps all experts of a part in one tensor `[experts, out, in]`.
    fn stacked_experts(
        &self,
        at: &dyn Fn(&str) -> String,
        count: usize,
        config: &DecoderConfig,
    ) -> Result<Vec<MlpLayer>> {
        let mut gates = self.stack(&at(self.names.expert_gate), count)?.into_iter();
        let mut ups = self.stack(&at(self.names.expert_up), count)?.into_iter();
        let mut downs = self.stack(&at(self.names.expert_down), count)?.into_iter();
        let mut experts = Vec::with_capacity(count);
        while let (Some(gate), Some(up), Some(down)) = (gates.next(), ups.next(), downs.next()) {
            experts.push(MlpLayer {
                input: Projection::split(vec![gate, up])?,
                output: down,
                activation: config.mlp.activation,
            });
        }
        Ok(experts)
    }

    fn stack(&self, name: &str, count: usize) -> Result<Vec<Linear>> {
        let name = format!("{name}.weight");
        let shape = self.shape(&name)?;
        let [experts, outputs, inputs] = shape[..] else {
            return Err(self.misshapen(&name, &shape, &[count]));
        };
        if experts != count {
            return Err(self.misshapen(&name, &shape, &[count, outputs, inputs]));
        }
        if let (false, Some(blocks)) = (self.int8, self.blocks(&name, &shape)?) {
            let parts = blocks.split_first_dimension();
            return parts
                .into_iter()
                .map(|part| Linear::quantized(part, None))
                .collect();
        }
        let stack = self.tensor(&name)?;
        (0..count)
            .map(|expert| self.assemble(stack.get(expert)?, None))
            .collect()
    }

    fn gated(&self, gate: &str, up: &str, down: &str, config: &DecoderConfig) -> Result<MlpLayer> {
        let (hidden, width) = (config.hidden_size, self.outputs(gate)?);
        Ok(MlpLayer {
            input: Projection::split(vec![
                self.linear(gate, hidden, width)?,
                self.linear(up, hidden, width)?,
            ])?,
            output: self.linear(down, width, hidden)?,
            activation: config.mlp.activation,
        })
    }

    fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        if !self.int8 {
            return self.exact(name, inputs, outputs);
        }
        let (weight, bias) = self.parts(name, [outputs, inputs])?;
        Linear::bytes(weight, bias)
    }

    /// A linear layer that is not rounded to bytes.
    fn exact(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let blocks = self.blocks(&format!("{name}.weight"), &[outputs, inputs])?;
        if let Some(blocks) = blocks {
            return Linear::quantized(blocks, self.optional(&format!("{name}.bias"))?);
        }
        let (weight, bias) = self.parts(name, [outputs, inputs])?;
        Linear::new(weight, bias)
    }

    fn assemble(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        match self.int8 {
            true => Linear::bytes(weight, bias),
            false => Linear::new(weight, bias),
        }
    }

    /// A quantized tensor that can stay as it is.
    fn blocks(&self, name: &str, shape: &[usize]) -> Result<Option<QuantizedTensor>> {
        if !Linear::keeps_blocks(self.device, self.dtype) || !self.has(name) {
            return Ok(None);
        }
        match self.source.quantized(&self.prefix.apply(name))? {
            Some(blocks) if blocks.shape != shape => {
                Err(self.misshapen(name, &blocks.shape, shape))
            }
            blocks => Ok(blocks),
        }
    }

    fn shaped(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.tensor(name)?;
        if tensor.dims() != shape {
            return Err(self.misshapen(name, tensor.dims(), shape));
        }
        Ok(tensor)
    }

    /// A linear layer whose weight is stored `[in, out]`.
    fn transposed(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        let (weight, bias) = self.parts(name, [inputs, outputs])?;
        self.assemble(weight.t()?.contiguous()?, bias)
    }

    fn parts(&self, name: &str, shape: [usize; 2]) -> Result<(Tensor, Option<Tensor>)> {
        Ok((
            self.shaped(&format!("{name}.weight"), &shape)?,
            self.optional(&format!("{name}.bias"))?,
        ))
    }

    fn norm(&self, name: &str, config: NormConfig) -> Result<Norm> {
        let weight = self.tensor(&format!("{name}.weight"))?;
        Ok(match config {
            NormConfig::Rms { epsilon, offset } => Norm::rms(weight, offset, epsilon),
            NormConfig::Layer { epsilon } => {
                let bias = self.optional(&format!("{name}.bias"))?;
                Norm::layer(weight, bias, epsilon)
            }
        })
    }

    fn outputs(&self, name: &str) -> Result<usize> {
        Ok(self
            .shape(&format!("{name}.weight"))?
            .first()
            .copied()
            .unwrap_or(0))
    }

    fn has(&self, name: &str) -> bool {
        self.source.has(&self.prefix.apply(name))
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let name = self.prefix.apply(name);
        match self.source.info(&name) {
            Some(info) => Ok(info.shape),
            None => self
                .source
                .tensor(&name, Some(self.dtype), self.device)
                .map(|tensor| tensor.dims().to_vec()),
        }
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        self.source
            .tensor(&self.prefix.apply(name), Some(self.dtype), self.device)
    }

    fn optional(&self, name: &str) -> Result<Option<Tensor>> {
        if !self.has(name) {
            return Ok(None);
        }
        self.tensor(name).map(Some)
    }

    fn misshapen(&self, name: &str, shape: &[usize], expected: &[usize]) -> Error {
        let name = self.prefix.apply(name);
        Error::corrupt(
            &self.source.file(&name),
            format!("tensor {name} has shape {shape:?} where the config asks for {expected:?}"),
        )
    }
}

impl Prefix {
    fn apply(&self, name: &str) -> String {
        match self {
            Self::AsIs => name.to_owned(),
            Self::Stripped => match name.split_once('.') {
                // The head is no part of the inner model and keeps its name.
                Some((_, rest)) if rest.contains('.') => rest.to_owned(),
                _ => name.to_owned(),
            },
            Self::Added(prefix) => format!("{prefix}{name}"),
        }
    }
}

/// The row order that turns per-head groups (queries, key, value) into all queries, keys, values.
pub(super) fn ungrouped_rows(heads: usize, kv_heads: usize, size: usize) -> Vec<u32> {
    let per_group = heads / kv_heads;
    let rows_of = |group: usize, slot: usize| {
        let first = (group * (per_group + 2) + slot) * size;
        first as u32..(first + size) as u32
    };
    let mut rows = Vec::with_capacity((heads + 2 * kv_heads) * size);
    for group in 0..kv_heads {
        for slot in 0..per_group {
            rows.extend(rows_of(group, slot));
        }
    }
    for slot in [per_group, per_group + 1] {
        for group in 0..kv_heads {
            rows.extend(rows_of(group, slot));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_rows_are_sorted_by_part() {
        // Two groups of two queries, a key and a value each, one row per head.
        assert_eq!(ungrouped_rows(4, 2, 1), [0, 1, 4, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn names_follow_the_prefix() {
        let strip = |name| Prefix::Stripped.apply(name);
        assert_eq!(strip("model.layers.0.mlp.weight"), "layers.0.mlp.weight");
        assert_eq!(strip("lm_head.weight"), "lm_head.weight");
        assert_eq!(Prefix::Added("a.").apply("b.weight"), "a.b.weight");
    }
}
