//! GGUF files: from metadata to a [`DecoderConfig`].
//!
//! llama.cpp's converter names tensors alike for all families, splits or fuses them in few ways,
//! adds Gemma's 1 to the norms, and reorders the rotated rows of some families, which then rotate
//! neighbours.

use super::config::*;
use super::names::{self, Names};
use crate::kernels::{Activation, RopeKind};
use crate::weights::{Metadata, Value, WeightSource};
use crate::{Error, Result};

struct Family {
    architecture: &'static str,
    pairing: RopeKind,
    norm: NormFormula,
    mlp: Activation,
    row_order: RowOrder,
    /// What transformers calls its modules.
    modules: Names,
    adjust: fn(&mut DecoderConfig, &File<'_>) -> Result<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NormFormula {
    Rms,
    Layer,
}

const fn rms(architecture: &'static str, pairing: RopeKind) -> Family {
    Family {
        architecture,
        pairing,
        norm: NormFormula::Rms,
        mlp: Activation::Silu,
        row_order: RowOrder::Same,
        modules: names::LLAMA,
        adjust: |_, _| Ok(()),
    }
}

const fn layer(architecture: &'static str, mlp: Activation) -> Family {
    Family {
        architecture,
        pairing: RopeKind::Half,
        norm: NormFormula::Layer,
        mlp,
        row_order: RowOrder::Same,
        modules: names::LLAMA,
        adjust: |_, _| Ok(()),
    }
}

static FAMILIES: &[Family] = &[
    Family {
        adjust: mixtral,
        row_order: RowOrder::Neighbours,
        ..rms("llama", RopeKind::Interleaved)
    },
    rms("qwen2", RopeKind::Half),
    Family {
        adjust: qwen_moe,
        ..rms("qwen2moe", RopeKind::Half)
    },
    rms("qwen3", RopeKind::Half),
    Family {
        adjust: qwen_moe,
        ..rms("qwen3moe", RopeKind::Half)
    },
    Family {
        mlp: Activation::GeluTanh,
        adjust: gemma,
        ..rms("gemma", RopeKind::Half)
    },
    Family {
        mlp: Activation::GeluTanh,
        adjust: gemma2,
        ..rms("gemma2", RopeKind::Half)
    },
    Family {
        mlp: Activation::GeluTanh,
        adjust: gemma3,
        ..rms("gemma3", RopeKind::Half)
    },
    Family {
        adjust: parallel,
        modules: names::PHI,
        ..layer("phi2", Activation::GeluTanh)
    },
    Family {
        adjust: windowed,
        ..rms("phi3", RopeKind::Half)
    },
    Family {
        adjust: stablelm,
        ..layer("stablelm", Activation::Silu)
    },
    Family {
        adjust: falcon,
        row_order: RowOrder::Grouped,
        modules: names::FALCON,
        ..layer("falcon", Activation::Gelu)
    },
    Family {
        adjust: granite,
        row_order: RowOrder::Neighbours,
        ..rms("granite", RopeKind::Interleaved)
    },
    Family {
        adjust: |config, _| {
            config.norm_placement = NormPlacement::Post;
            config.query_key_norm = QueryKeyNorm::Whole;
            Ok(())
        },
        ..rms("olmo2", RopeKind::Half)
    },
    Family {
        adjust: smollm3,
        row_order: RowOrder::Neighbours,
        ..rms("smollm3", RopeKind::Interleaved)
    },
    Family {
        adjust: |config, _| {
            config.norm_placement = NormPlacement::Both;
            Ok(())
        },
        ..rms("glm4", RopeKind::Interleaved)
    },
    Family {
        modules: names::STARCODER2,
        ..layer("starcoder2", Activation::GeluTanh)
    },
    Family {
        adjust: |config, _| {
            config.positions = Positions::Learned;
            Ok(())
        },
        modules: names::GPT2,
        ..layer("gpt2", Activation::GeluTanh)
    },
    Family {
        adjust: gpt_neox,
        row_order: RowOrder::Grouped,
        modules: names::GPT_NEOX,
        ..layer("gptneox", Activation::Gelu)
    },
];

/// The metadata of one family, and which tensors there are.
struct File<'a> {
    source: &'a dyn WeightSource,
    metadata: &'a Metadata,
    architecture: &'a str,
}

/// The architectures that are known.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

/// The config and tensor names of a GGUF language model.
pub fn read(source: &dyn WeightSource) -> Result<(DecoderConfig, Names)> {
    let metadata = source.metadata();
    let architecture = metadata.str("general.architecture")?;
    let family = FAMILIES
        .iter()
        .find(|family| family.architecture == architecture)
        .ok_or_else(|| {
            Error::unsupported(
                metadata.file(),
                format!(
                    "architecture {architecture:?} is not a language model that red-candle runs. It runs {}",
                    self::names().join(", ")
                ),
            )
        })?;
    let file = File {
        source,
        metadata,
        architecture,
    };
    let mut config = file.base(family)?;
    (family.adjust)(&mut config, &file)?;
    let names = match config.residual {
        Residual::ParallelTwoNorms if architecture == "falcon" => names::GGUF_FALCON_TWO_NORMS,
        _ => names::GGUF,
    };
    Ok((config, names))
}

/// What transformers calls the modules of a GGUF file's family, and so what adapters call them.
pub fn module_names(architecture: &str) -> Names {
    FAMILIES
        .iter()
        .find(|family| family.architecture == architecture)
        .map_or(names::LLAMA, |family| family.modules)
}

impl File<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn size(&self, name: &str) -> Result<usize> {
        Ok(self.metadata.u32(&self.key(name))? as usize)
    }

    fn opt_size(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.metadata.opt_u32(&self.key(name))?.map(|n| n as usize))
    }

    fn number(&self, name: &str) -> Result<Option<f32>> {
        self.metadata.opt_f32(&self.key(name))
    }

    fn first_layer_has(&self, name: &str) -> bool {
        self.source.has(&format!("blk.0.{name}"))
    }

    fn corrupt(&self, reason: impl std::fmt::Display) -> Error {
        Error::corrupt(self.metadata.file(), reason)
    }

    fn base(&self, family: &Family) -> Result<DecoderConfig> {
        let (hidden_size, layer_count) =
            (self.size("embedding_length")?, self.size("block_count")?);
        let head_count = self.size("attention.head_count")?;
        let kv_head_count = self
            .opt_size("attention.head_count_kv")?
            .unwrap_or(head_count);
        if head_count == 0 || kv_head_count == 0 || head_count % kv_head_count != 0 {
            return Err(self.corrupt(format!(
                "{head_count} heads cannot share {kv_head_count} key-value heads"
            )));
        }
        if layer_count > 10_000 {
            return Err(self.corrupt(format!("{layer_count} layers are absurd")));
        }
        let head_size = match self.opt_size("attention.key_length")? {
            Some(size) => size,
            None => hidden_size / head_count,
        };
        let epsilon = match family.norm {
            NormFormula::Rms => self.number("attention.layer_norm_rms_epsilon")?,
            NormFormula::Layer => self.number("attention.layer_norm_epsilon")?,
        };
        let vocab_size = self
            .source
            .info("token_embd.weight")
            .and_then(|info| info.shape.first().copied())
            .ok_or_else(|| self.corrupt("tensor token_embd.weight is missing"))?;
        Ok(DecoderConfig {
            architecture: self.architecture.to_owned(),
            vocab_size,
            hidden_size,
            layer_count,
            head_count,
            kv_head_count,
            head_size,
            max_positions: self.size("context_length")?,
            norm: match family.norm {
                NormFormula::Rms => NormConfig::Rms {
                    epsilon: epsilon.unwrap_or(1e-6),
                    offset: 0.0,
                },
                NormFormula::Layer => NormConfig::Layer {
                    epsilon: epsilon.unwrap_or(1e-5),
                },
            },
            norm_placement: NormPlacement::Pre,
            residual: Residual::Sequential,
            query_key_norm: if self.first_layer_has("attn_q_norm.weight") {
                QueryKeyNorm::PerHead
            } else {
                QueryKeyNorm::None
            },
            qkv: if self.first_layer_has("attn_qkv.weight") {
                QkvLayout::Fused
            } else {
                QkvLayout::Split
            },
            mlp: Mlp {
                kind: self.mlp_kind()?,
                activation: family.mlp,
            },
            experts: None,
            positions: Positions::Rope(self.rope(family.pairing, head_size, layer_count)?),
            bidirectional: !self
                .metadata
                .opt_bool(&self.key("attention.causal"))?
                .unwrap_or(true),
            windows: vec![None; layer_count],
            attention_scale: 1.0 / (head_size as f32).sqrt(),
            attention_soft_cap: None,
            logit_soft_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            tied_head: !self.source.has("output.weight"),
            row_order: family.row_order,
        })
    }

    /// Families that fuse gate and up store both as `ffn_up`, twice as high as `ffn_down` is wide.
    fn mlp_kind(&self) -> Result<MlpKind> {
        if self.first_layer_has("ffn_gate.weight") || self.first_layer_has("ffn_gate_inp.weight") {
            return Ok(MlpKind::Gated);
        }
        let shape = |name: &str| {
            let info = self.source.info(&format!("blk.0.{name}.weight"));
            info.map(|info| info.shape).unwrap_or_default()
        };
        match (shape("ffn_up").as_slice(), shape("ffn_down").as_slice()) {
            ([up, _], [_, down]) if *up == 2 * down => Ok(MlpKind::GatedFused),
            ([_, _], [_, _]) => Ok(MlpKind::Plain),
            _ => Err(self.corrupt("the tensors of the first layer's MLP are missing")),
        }
    }

    fn rope(&self, pairing: RopeKind, head_size: usize, layer_count: usize) -> Result<RopeConfig> {
        let rotary_size = self.opt_size("rope.dimension_count")?.unwrap_or(head_size);
        if rotary_size > head_size || rotary_size % 2 != 0 {
            return Err(self.corrupt(format!(
                "{rotary_size} rotated dimensions do not fit heads of {head_size}"
            )));
        }
        Ok(RopeConfig {
            theta: self.number("rope.freq_base")?.unwrap_or(10_000.0),
            local_theta: None,
            rotary_size,
            pairing,
            scaling: self.rope_scaling(rotary_size)?,
            layers: vec![true; layer_count],
        })
    }

    fn rope_scaling(&self, rotary_size: usize) -> Result<RopeScaling> {
        if let Some(divisors) = self.divisors("rope_freqs.weight", rotary_size)? {
            return Ok(RopeScaling::Divisors(divisors));
        }
        let context = self.size("context_length")?;
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
            Some(other) => Err(Error::unsupported(
                self.metadata.file(),
                format!("rope scaling {other:?} is not supported"),
            )),
        }
    }

    fn divisors(&self, name: &str, rotary_size: usize) -> Result<Option<Vec<f32>>> {
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

    /// Windows all layers but each `usual`-th, unless the file says which.
    fn alternating_windows(&self, layer_count: usize, usual: usize) -> Result<Vec<Option<usize>>> {
        let window = self.opt_size("attention.sliding_window")?;
        let key = self.key("attention.sliding_window_pattern");
        if let Some(Value::Array(flags)) = self.metadata.get(&key) {
            let flags: Vec<Value> = flags.values().collect();
            let windowed = |layer: usize| matches!(flags.get(layer), Some(Value::Bool(true)));
            return Ok((0..layer_count)
                .map(|layer| window.filter(|_| windowed(layer)))
                .collect());
        }
        let pattern = self.opt_size("attention.sliding_window_pattern")?;
        let pattern = pattern.unwrap_or(usual).max(1);
        Ok((0..layer_count)
            .map(|layer| window.filter(|_| (layer + 1) % pattern != 0))
            .collect())
    }

    fn experts(&self, layer_count: usize, normalize: bool, shared: bool) -> Result<Experts> {
        Ok(Experts {
            count: self.size("expert_count")?,
            used: self.size("expert_used_count")?,
            normalize,
            shared,
            layers: (0..layer_count)
                .map(|layer| self.source.has(&format!("blk.{layer}.ffn_gate_inp.weight")))
                .collect(),
            layout: ExpertLayout::Stacked,
        })
    }
}

fn mixtral(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    if file.opt_size("expert_count")?.unwrap_or(0) > 0 {
        config.experts = Some(file.experts(config.layer_count, true, false)?);
    }
    Ok(())
}

fn qwen_moe(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    let shared = config.query_key_norm == QueryKeyNorm::None;
    config.experts = Some(file.experts(config.layer_count, !shared, shared)?);
    Ok(())
}

fn gemma(config: &mut DecoderConfig, _file: &File<'_>) -> Result<()> {
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    Ok(())
}

/// The 27-billion models of both generations scale attention by the width per head, which the file
/// does not say; they are told by their number of layers.
fn gemma2(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    gemma(config, file)?;
    config.norm_placement = NormPlacement::Both;
    config.attention_soft_cap = file.number("attn_logit_softcapping")?;
    config.logit_soft_cap = file.number("final_logit_softcapping")?;
    config.windows = file.alternating_windows(config.layer_count, 2)?;
    let largest = if config.architecture == "gemma2" {
        46
    } else {
        62
    };
    if config.layer_count == largest {
        config.attention_scale = 1.0 / ((config.hidden_size / config.head_count) as f32).sqrt();
    }
    Ok(())
}

fn gemma3(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    gemma2(config, file)?;
    config.windows = file.alternating_windows(config.layer_count, 6)?;
    if let Positions::Rope(rope) = &mut config.positions {
        let given = file.number("rope.freq_base_swa")?;
        rope.local_theta = Some(given.unwrap_or(10_000.0));
    }
    Ok(())
}

fn parallel(config: &mut DecoderConfig, _file: &File<'_>) -> Result<()> {
    config.residual = Residual::ParallelOneNorm;
    Ok(())
}

fn windowed(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    // Files say 0 for "no window".
    if let Some(window) = file
        .opt_size("attention.sliding_window")?
        .filter(|&n| n > 0)
    {
        config.windows = vec![Some(window); config.layer_count];
    }
    Ok(())
}

fn stablelm(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    if !file.first_layer_has("ffn_norm.weight") {
        config.residual = Residual::ParallelOneNorm;
    }
    Ok(())
}

fn falcon(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    config.residual = if file.first_layer_has("attn_norm_2.weight") {
        Residual::ParallelTwoNorms
    } else {
        Residual::ParallelOneNorm
    };
    Ok(())
}

fn granite(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    config.embedding_scale = file.number("embedding_scale")?.unwrap_or(1.0);
    config.residual_scale = file.number("residual_scale")?.unwrap_or(1.0);
    config.attention_scale = file
        .number("attention.scale")?
        .unwrap_or(config.attention_scale);
    config.logit_scale = 1.0 / file.number("logit_scale")?.unwrap_or(1.0);
    Ok(())
}

/// Every fourth layer does not rotate, which the file does not say.
fn smollm3(config: &mut DecoderConfig, _file: &File<'_>) -> Result<()> {
    if let Positions::Rope(rope) = &mut config.positions {
        rope.layers = (0..config.layer_count)
            .map(|layer| (layer + 1) % 4 != 0)
            .collect();
    }
    Ok(())
}

fn gpt_neox(config: &mut DecoderConfig, file: &File<'_>) -> Result<()> {
    let key = file.key("use_parallel_residual");
    if file.metadata.opt_bool(&key)?.unwrap_or(true) {
        config.residual = Residual::ParallelTwoNorms;
    }
    Ok(())
}
