//! The parts of an encoder, and finding them under a checkpoint's own names.

use candle_core::{DType, Device, Tensor};

use crate::weights::WeightSource;
use crate::{Error, Result};

use super::config::NormKind;
use crate::nn::{Linear, Norm};

/// A module of an encoder that holds tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Words,
    Positions,
    TokenTypes,
    EmbeddingNorm,
    EmbeddingProjection,
    FinalNorm,
    RelativeTable,
    RelativeNorm,
    Convolution,
    ConvolutionNorm,
    FusedQkv,
    Query,
    Key,
    Value,
    /// Biases that stand beside a fused matrix which has none.
    QueryBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    PositionKey,
    PositionQuery,
    AttentionOutput,
    AttentionNorm,
    /// Of the layer's input and the normed attention once more (Jina code).
    SecondAttentionNorm,
    /// Gate and up in one matrix, gate first.
    GateUp,
    /// The same, up first.
    UpGate,
    Gate,
    Up,
    Down,
    MlpNorm,
    SequenceDense,
    SequenceNorm,
    SequenceOutput,
    TokenDense,
    TokenNorm,
    TokenOutput,
    MaskedDense,
    MaskedNorm,
    MaskedOutput,
    MaskedBias,
}

/// Module names by part; `{}` stands for the number of the layer. A part may be named several times,
/// for checkpoints that differ: the first that exists counts.
pub type Names = &'static [(Part, &'static str)];

/// Reads the parts of one checkpoint.
pub struct Parts<'a> {
    source: &'a dyn WeightSource,
    names: Names,
    /// What the checkpoint puts before the names of the bare model, such as `bert.`.
    prefix: String,
    device: &'a Device,
    dtype: DType,
    /// Whether linear layers hold bytes.
    int8: bool,
}

impl<'a> Parts<'a> {
    pub fn new(
        source: &'a dyn WeightSource,
        names: Names,
        device: &'a Device,
        dtype: DType,
    ) -> Result<Self> {
        let prefix = find_prefix(source, names)?;
        Ok(Self {
            source,
            names,
            prefix,
            device,
            dtype,
            int8: false,
        })
    }

    /// The same parts, with linear layers that hold bytes if so wanted.
    pub fn with_int8(self, int8: bool) -> Self {
        Self { int8, ..self }
    }

    pub fn device(&self) -> &Device {
        self.device
    }

    /// The full module name of a part, when the checkpoint holds it.
    pub fn find(&self, part: Part, layer: usize) -> Option<String> {
        let layer = layer.to_string();
        self.names
            .iter()
            .filter(|(candidate, _)| *candidate == part)
            .map(|(_, name)| name.replace("{}", &layer))
            .flat_map(|name| [format!("{}{name}", self.prefix), name])
            .find(|name| {
                WEIGHT_ENDINGS
                    .iter()
                    .any(|ending| self.source.has(&format!("{name}{ending}")))
            })
    }

    pub fn has(&self, part: Part, layer: usize) -> bool {
        self.find(part, layer).is_some()
    }

    /// The weight of a part that the model cannot do without.
    pub fn weight(&self, part: Part, layer: usize) -> Result<Tensor> {
        match self.optional_weight(part, layer)? {
            Some(weight) => Ok(weight),
            None => Err(self.missing(part, layer)),
        }
    }

    pub fn optional_weight(&self, part: Part, layer: usize) -> Result<Option<Tensor>> {
        let Some(name) = self.find(part, layer) else {
            return Ok(None);
        };
        self.first_of(&name, WEIGHT_ENDINGS)
    }

    pub fn bias(&self, part: Part, layer: usize) -> Result<Option<Tensor>> {
        let Some(name) = self.find(part, layer) else {
            return Ok(None);
        };
        self.first_of(&name, BIAS_ENDINGS)
    }

    /// One linear layer, of a part that must exist.
    pub fn linear(&self, part: Part, layer: usize) -> Result<Linear> {
        self.assemble(self.weight(part, layer)?, self.bias(part, layer)?)
    }

    /// A linear layer of tensors that were read from the parts.
    pub fn assemble(&self, weight: Tensor, bias: Option<Tensor>) -> Result<Linear> {
        match self.int8 {
            true => Linear::bytes(weight, bias),
            false => Linear::new(weight, bias),
        }
    }

    pub fn optional_linear(&self, part: Part, layer: usize) -> Result<Option<Linear>> {
        self.has(part, layer)
            .then(|| self.linear(part, layer))
            .transpose()
    }

    pub fn norm(&self, part: Part, layer: usize, kind: NormKind, epsilon: f32) -> Result<Norm> {
        let weight = self.weight(part, layer)?;
        Ok(match kind {
            NormKind::Layer => Norm::layer(weight, self.bias(part, layer)?, epsilon),
            NormKind::Rms => Norm::rms(weight, 0.0, epsilon),
        })
    }

    pub fn optional_norm(
        &self,
        part: Part,
        layer: usize,
        kind: NormKind,
        epsilon: f32,
    ) -> Result<Option<Norm>> {
        self.has(part, layer)
            .then(|| self.norm(part, layer, kind, epsilon))
            .transpose()
    }

    pub fn missing(&self, part: Part, layer: usize) -> Error {
        let names: Vec<_> = self
            .names
            .iter()
            .filter(|(candidate, _)| *candidate == part)
            .map(|(_, name)| format!("{}{}", self.prefix, name.replace("{}", &layer.to_string())))
            .collect();
        Error::corrupt(
            &self.source.file(""),
            format!("it holds no {} (looked for {part:?})", names.join(" or ")),
        )
    }

    fn first_of(&self, name: &str, endings: &[&str]) -> Result<Option<Tensor>> {
        endings
            .iter()
            .map(|ending| format!("{name}{ending}"))
            .find(|name| self.source.has(name))
            .map(|name| self.source.tensor(&name, Some(self.dtype), self.device))
            .transpose()
    }
}

/// Old checkpoints call the weight of a norm gamma; a lone parameter has the module's name.
const WEIGHT_ENDINGS: &[&str] = &[".weight", ".gamma", ""];
const BIAS_ENDINGS: &[&str] = &[".bias", ".beta"];

/// Everything before the name of the token table: the checkpoint of a model with a head names its
/// body, and wrappers add names of their own.
fn find_prefix(source: &dyn WeightSource, names: Names) -> Result<String> {
    let tables: Vec<String> = names
        .iter()
        .filter(|(part, _)| *part == Part::Words)
        .map(|(_, name)| format!("{name}.weight"))
        .collect();
    source
        .names()
        .iter()
        .flat_map(|name| {
            tables
                .iter()
                .filter_map(|table| name.strip_suffix(table.as_str()))
        })
        .filter(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        .min_by_key(|prefix| prefix.len())
        .map(str::to_owned)
        .ok_or_else(|| {
            Error::corrupt(
                &source.file(""),
                format!("it holds no token embeddings ({})", tables.join(" or ")),
            )
        })
}
