//! What families read alike from the metadata of a GGUF file.
//!
//! llama.cpp's converter names tensors alike for all families, splits or fuses them in few ways,
//! adds Gemma's 1 to the norms, and reorders the rotated rows of some families, which then rotate
//! neighbours.

use std::ops::RangeInclusive;
use std::path::Path;

use super::*;
use crate::models::decoder::config::Experts;
use formats::files::raw_config::HEADS;
use formats::weights::{Metadata, Value};

/// The metadata of one family, and which tensors there are.
pub struct GgufFile<'a> {
    source: &'a dyn WeightSource,
    metadata: &'a Metadata,
    architecture: &'a str,
    /// What the keys of its sizes begin with.
    prefix: &'a str,
}

/// What files of vision towers call themselves, and what their keys begin with.
const TOWERS: (&str, &str) = ("clip", "clip.vision");

/// The converter has put what rotates together side by side.
pub fn neighbours(mut config: DecoderConfig) -> DecoderConfig {
    config.row_order = RowOrder::Neighbours;
    config.relative.interleave();
    config
}

/// The converter has sorted the rows of query, key and value, which adapters have in groups.
pub fn grouped_gguf(mut config: DecoderConfig) -> DecoderConfig {
    config.row_order = RowOrder::Grouped;
    config
}

impl<'a> GgufFile<'a> {
    pub fn new(source: &'a dyn WeightSource) -> Result<Self> {
        let metadata = source.metadata();
        let architecture = metadata.str("general.architecture")?;
        Ok(Self {
            source,
            metadata,
            architecture,
            prefix: if architecture == TOWERS.0 {
                TOWERS.1
            } else {
                architecture
            },
        })
    }

    pub fn path(&self) -> &Path {
        self.metadata.file()
    }

    pub fn architecture(&self) -> &'a str {
        self.architecture
    }

    /// What leads from the tower of this file into a decoder.
    pub fn projector(&self) -> Result<&'a str> {
        if self.architecture != TOWERS.0 {
            return Err(Error::unsupported(
                self.path(),
                format!(
                    "architecture {:?} is not a vision tower: the file of one mostly has mmproj in its name",
                    self.architecture
                ),
            ));
        }
        match self.metadata.opt_str("clip.projector_type")? {
            Some(name) => Ok(name),
            None => self.metadata.str("clip.vision.projector_type"),
        }
    }

    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// The shape of a tensor, outermost extent first.
    pub fn shape(&self, tensor: &str) -> Option<Vec<usize>> {
        self.source.info(tensor).map(|info| info.shape)
    }

    pub fn end_id(&self) -> Result<Option<u32>> {
        self.metadata.opt_u32("tokenizer.ggml.eos_token_id")
    }

    /// How many tokens have an embedding.
    pub fn vocabulary(&self) -> Result<usize> {
        let info = self.source.info("token_embd.weight");
        let rows = info.and_then(|info| info.shape.first().copied());
        rows.ok_or_else(|| self.corrupt("tensor token_embd.weight is missing"))
    }

    pub fn padding_id(&self) -> Result<Option<u32>> {
        self.metadata.opt_u32("tokenizer.ggml.padding_token_id")
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub fn size(&self, name: &str, range: RangeInclusive<usize>) -> Result<usize> {
        match self.opt_size(name)? {
            Some(size) => {
                check_size(name, size, range).map_err(|reason| self.corrupt(reason))?;
                Ok(size)
            }
            None => Err(self.missing(name)),
        }
    }

    pub fn missing(&self, name: &str) -> Error {
        self.corrupt(format!("key {:?} is missing", self.key(name)))
    }

    pub fn opt_size(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.metadata.opt_u32(&self.key(name))?.map(|n| n as usize))
    }

    pub fn number(&self, name: &str) -> Result<Option<f32>> {
        self.metadata.opt_f32(&self.key(name))
    }

    pub fn flag(&self, name: &str, otherwise: bool) -> Result<bool> {
        let given = self.metadata.opt_bool(&self.key(name))?;
        Ok(given.unwrap_or(otherwise))
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.source.has(&format!("{tensor}.weight"))
    }

    pub fn first_layer_has(&self, name: &str) -> bool {
        self.has(&format!("blk.0.{name}"))
    }

    pub fn corrupt(&self, reason: impl std::fmt::Display) -> Error {
        Error::corrupt(self.metadata.file(), reason)
    }

    /// Without the layers that predict further tokens, which stand behind the others.
    pub fn layer_count(&self) -> Result<usize> {
        let count = self.size("block_count", LAYERS)?;
        let further = self.opt_size("nextn_predict_layers")?.unwrap_or(0);
        count
            .checked_sub(further)
            .filter(|&count| count > 0)
            .ok_or_else(|| {
                let key = self.key("nextn_predict_layers");
                self.corrupt(format!("key {key:?} is {further}, of {count} layers"))
            })
    }

    /// BERT's choices, where its relatives differ.
    pub fn encoder(&self, family: &'static str) -> Result<EncoderConfig> {
        let mlp = self.mlp_kind()?;
        Ok(EncoderConfig {
            token_types: self.opt_size("token_type_count")?.unwrap_or(2).max(1),
            mlp: Mlp {
                kind: mlp,
                activation: Activation::Gelu,
            },
            ..self.bare_encoder(family)?
        })
    }

    /// Experts in the place of some layers' MLPs.
    pub fn mlp_experts(&self) -> Result<MlpExperts> {
        let size = |name: &str| -> Result<usize> {
            self.opt_size(name)?
                .ok_or_else(|| self.corrupt(format!("it does not say its {name}")))
        };
        Ok(MlpExperts {
            count: size("expert_count")?,
            used: size("expert_used_count")?,
            every: size("moe_every_n_layers")?.max(1),
        })
    }

    /// Layers of one size, as BERT has them, without what differs between texts and images.
    pub fn bare_encoder(&self, family: &'static str) -> Result<EncoderConfig> {
        let hidden_size = self.size("embedding_length", WIDTH)?;
        let head_count = self.size("attention.head_count", HEADS)?;
        let epsilon = self.number("attention.layer_norm_epsilon")?;
        if hidden_size % head_count != 0 {
            return Err(self.corrupt(format!(
                "the hidden size {hidden_size} can't be divided among {head_count} attention heads"
            )));
        }
        Ok(EncoderConfig {
            family,
            hidden_size,
            head_count,
            head_size: hidden_size / head_count,
            layers: plain_layers(self.layer_count()?),
            attention_scale: None,
            embedding_scale: 1.0,
            embedding_size: hidden_size,
            token_types: 0,
            positions: Positions::Learned,
            relative: Relative::None,
            max_positions: self.opt_size("context_length")?,
            norm: NormConfig::new(NormKind::Layer, epsilon.unwrap_or(1e-12)),
            norm_placement: NormPlacement::Post,
            mlp: Mlp {
                kind: MlpKind::Plain,
                activation: Activation::Gelu,
            },
            qkv: QkvLayout::Stacked,
            heads_on_top: HeadConfigs::default(),
            convolution: None,
            mechanisms: Mechanisms::default(),
        })
    }

    /// Llama's choices, where others differ.
    pub fn decoder(&self, usual: &Usual) -> Result<DecoderConfig> {
        let hidden_size = self.size("embedding_length", WIDTH)?;
        let layer_count = self.layer_count()?;
        let head_count = self.size("attention.head_count", HEADS)?;
        let kv_head_count = self.opt_size("attention.head_count_kv")?;
        let head_size = self.opt_size("attention.key_length")?;
        let head_size = head_size.unwrap_or(hidden_size / head_count);
        let epsilon = match usual.norm {
            NormKind::Rms => self.number("attention.layer_norm_rms_epsilon")?,
            NormKind::Layer => self.number("attention.layer_norm_epsilon")?,
        };
        let sizes = DecoderSizes {
            vocab_size: self.vocabulary()?,
            hidden_size,
            layer_count,
            head_count,
            kv_head_count: kv_head_count.unwrap_or(head_count),
            head_size,
            max_positions: self.size("context_length", POSITIONS)?,
        };
        let mlp = Mlp {
            kind: self.mlp_kind()?,
            activation: usual.activation,
        };
        let rope = self.rope(head_size, 10_000.0)?;
        Ok(DecoderConfig {
            architecture: self.architecture.to_owned(),
            query_key_norm: if self.first_layer_has("attn_q_norm") {
                QueryKeyNorm::PerHead
            } else {
                QueryKeyNorm::None
            },
            bidirectional: !self.flag("attention.causal", true)?,
            tied_head: !self.source.has("output.weight"),
            ..DecoderConfig::plain(sizes, usual.norm(epsilon), mlp, rope)
        })
    }

    /// Families that fuse gate and up store both as `ffn_up`, twice as high as `ffn_down` is wide.
    pub fn mlp_kind(&self) -> Result<MlpKind> {
        let mut layers = 0..self.layer_count()?;
        // Layers that keep a state may have none.
        let has = |layer: &usize, name: &str| self.has(&format!("blk.{layer}.{name}"));
        let first = layers.find(|layer| has(layer, "ffn_up") || has(layer, "ffn_gate_inp"));
        let first = first.unwrap_or(0);
        if has(&first, "channel_mix_key") {
            return Ok(MlpKind::Plain);
        }
        if has(&first, "ffn_gate") || has(&first, "ffn_gate_inp") {
            return Ok(MlpKind::Gated);
        }
        let shape = |name: &str| {
            let info = self.source.info(&format!("blk.{first}.{name}.weight"));
            info.map(|info| info.shape).unwrap_or_default()
        };
        match (shape("ffn_up").as_slice(), shape("ffn_down").as_slice()) {
            ([up, _], [_, down]) if *up == 2 * down => Ok(MlpKind::Gated),
            ([_, _], [_, _]) => Ok(MlpKind::Plain),
            _ => Err(self.corrupt("the tensors of the first layer's MLP are missing")),
        }
    }

    pub fn rope(&self, head_size: usize, theta: f32) -> Result<RopeConfig> {
        let rotary_size = self.opt_size("rope.dimension_count")?.unwrap_or(head_size);
        Ok(RopeConfig {
            theta: self.number("rope.freq_base")?.unwrap_or(theta),
            local_theta: None,
            rotary_size,
            pairing: RopeKind::Half,
            scaling: self.rope_scaling(rotary_size)?,
            layers: Vec::new(),
            by_layer: Vec::new(),
            unscaled_windows: false,
            backwards: false,
            axes: RopeAxes::Line,
        })
    }

    pub fn rope_scaling(&self, rotary_size: usize) -> Result<RopeScaling> {
        if let Some(divisors) = self.divisors("rope_freqs.weight", rotary_size)? {
            return Ok(RopeScaling::Divisors(divisors));
        }
        let context = self.size("context_length", POSITIONS)?;
        let original = self
            .opt_size("rope.scaling.original_context_length")?
            .unwrap_or(context);
        if let (Some(short), Some(long)) = (
            self.divisors("rope_factors_short.weight", rotary_size)?,
            self.divisors("rope_factors_long.weight", rotary_size)?,
        ) {
            return Ok(RopeScaling::LongRope {
                short,
                long,
                original_positions: original,
                attention_factor: self.number("rope.scaling.attn_factor")?.unwrap_or(1.0),
            });
        }
        let factor = self.number("rope.scaling.factor")?.unwrap_or(1.0);
        match self.metadata.opt_str(&self.key("rope.scaling.type"))? {
            None | Some("none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => Ok(RopeScaling::Yarn {
                factor,
                beta_fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original_positions: original,
                attention_factor: (0.1 * factor.max(1.0).ln() + 1.0)
                    * self.number("rope.scaling.yarn_attn_factor")?.unwrap_or(1.0),
                truncate: true,
            }),
            Some(other) => Err(self.unscalable(other)),
        }
    }

    pub fn unscalable(&self, kind: &str) -> Error {
        let key = self.key("rope.scaling.type");
        let reason = format!("key {key:?} is {kind:?}, which is not supported");
        Error::unsupported(self.metadata.file(), reason)
    }

    pub fn divisors(&self, name: &str, rotary_size: usize) -> Result<Option<Vec<f32>>> {
        if !self.source.has(name) {
            return Ok(None);
        }
        let tensor = self.source.tensor(
            name,
            Some(candle_core::DType::F32),
            &candle_core::Device::Cpu,
        )?;
        let divisors: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        if divisors.len() != rotary_size / 2 {
            return Err(self.corrupt(format!(
                "{name} has {} entries instead of {}",
                divisors.len(),
                rotary_size / 2
            )));
        }
        Ok(Some(divisors))
    }

    /// The window of every layer but each `usual`-th, unless the file says which.
    pub fn windows(&self, layer_count: usize, usual: usize) -> Result<Vec<Option<usize>>> {
        // Files say 0 for "no window".
        let window = self.opt_size("attention.sliding_window")?;
        let window = window.filter(|&window| window > 0);
        let key = self.key("attention.sliding_window_pattern");
        if let Some(Value::Array(flags)) = self.metadata.get(&key) {
            check_layers("the pattern of sliding windows", flags.len(), layer_count)
                .map_err(|reason| self.corrupt(reason))?;
            let windowed = |flag| matches!(flag, Value::Bool(true));
            return Ok(flags
                .values()
                .map(|flag| window.filter(|_| windowed(flag)))
                .collect());
        }
        let pattern = self.opt_size("attention.sliding_window_pattern")?;
        let pattern = pattern.unwrap_or(usual).max(1);
        Ok((0..layer_count)
            .map(|layer| window.filter(|_| (layer + 1) % pattern != 0))
            .collect())
    }

    pub fn experts(&self, normalize: bool, shared: bool) -> Result<Option<Experts>> {
        let Some(count) = self.opt_size("expert_count")?.filter(|&count| count > 0) else {
            return Ok(None);
        };
        let used = self.size("expert_used_count", 1..=count)?;
        let layers = 0..self.layer_count()?;
        Ok(Some(Experts {
            layers: layers
                .map(|layer| self.source.has(&format!("blk.{layer}.ffn_gate_inp.weight")))
                .collect(),
            normalize,
            shared: if shared { Shared::Gated } else { Shared::None },
            ..Experts::softmax(count, used, self.layer_count()?)
        }))
    }
}
