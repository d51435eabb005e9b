//! Hugging Face families: from `config.json` to a [`DecoderConfig`] and tensor names.

use super::config::*;
use super::names::{self, Names};
use crate::files::raw_config::RawConfig;
use crate::kernels::{Activation, RopeKind};
use crate::{Error, Result};

pub struct Family {
    pub name: &'static str,
    pub matches: fn(&RawConfig) -> bool,
    pub config: fn(&RawConfig) -> Result<DecoderConfig>,
    pub names: fn(&RawConfig) -> Names,
}

macro_rules! family {
    ($name:literal, [$($model_type:literal),+], $config:expr, $names:expr) => {
        Family {
            name: $name,
            matches: |raw| matches!(raw.model_type(), Ok(Some($($model_type)|+))),
            config: $config,
            names: |_| $names,
        }
    };
}

/// The first match wins.
pub static FAMILIES: &[Family] = &[
    family!("llama", ["llama", "smollm"], llama, names::LLAMA),
    family!("mistral", ["mistral", "ministral"], mistral, names::LLAMA),
    family!("mixtral", ["mixtral"], mixtral, names::MIXTRAL),
    family!("qwen2", ["qwen2"], qwen2, names::LLAMA),
    family!("qwen3", ["qwen3"], qwen3, names::LLAMA),
    family!("qwen2_moe", ["qwen2_moe"], qwen2_moe, names::LLAMA),
    family!("qwen3_moe", ["qwen3_moe"], qwen3_moe, names::LLAMA),
    family!("gemma", ["gemma"], gemma, names::LLAMA),
    family!("gemma2", ["gemma2"], gemma2, names::GEMMA2),
    family!("gemma3", ["gemma3_text", "gemma3"], gemma3, names::GEMMA2),
    family!("phi", ["phi"], phi, names::PHI),
    family!("phi3", ["phi3"], phi3, names::LLAMA),
    family!(
        "stablelm",
        ["stablelm", "stablelm_epoch"],
        stablelm,
        names::LLAMA
    ),
    Family {
        name: "falcon",
        matches: |raw| {
            matches!(
                raw.model_type(),
                Ok(Some("falcon" | "RefinedWeb" | "RefinedWebModel"))
            )
        },
        config: falcon,
        names: |raw| {
            if falcon_has_two_norms(raw) {
                names::FALCON_TWO_NORMS
            } else {
                names::FALCON
            }
        },
    },
    family!("granite", ["granite"], granite, names::LLAMA),
    family!("olmo2", ["olmo2"], olmo2, names::OLMO2),
    family!("smollm3", ["smollm3"], smollm3, names::LLAMA),
    family!("glm4", ["glm4"], glm4, names::GLM4),
    family!("starcoder2", ["starcoder2"], starcoder2, names::STARCODER2),
    family!("gpt2", ["gpt2"], gpt2, names::GPT2),
    family!("gpt_neox", ["gpt_neox"], gpt_neox, names::GPT_NEOX),
];

pub fn matches(raw: &RawConfig) -> bool {
    FAMILIES.iter().any(|family| (family.matches)(raw))
}

pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.name).collect()
}

/// The family of a checkpoint, by its config alone.
pub fn find(raw: &RawConfig) -> Result<&'static Family> {
    FAMILIES
        .iter()
        .find(|family| (family.matches)(raw))
        .ok_or_else(|| {
            Error::unsupported(
                raw.file(),
                format!(
                    "model_type {:?} is not a language model that red-candle runs. It runs {}",
                    raw.model_type().ok().flatten().unwrap_or("(none)"),
                    names().join(", ")
                ),
            )
        })
}

fn llama(raw: &RawConfig) -> Result<DecoderConfig> {
    base(raw)
}

fn mistral(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    if let Some(window) = raw.opt_usize("sliding_window")? {
        config.windows = vec![Some(window); config.layer_count];
    }
    Ok(config)
}

fn mixtral(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = mistral(raw)?;
    config.experts = Some(Experts {
        count: raw.usize(["num_local_experts", "num_experts"])?,
        used: raw.usize("num_experts_per_tok")?,
        normalize: true,
        shared: false,
        layers: vec![true; config.layer_count],
        layout: ExpertLayout::Separate,
    });
    Ok(config)
}

/// Qwen windows only the layers from `max_window_layers` on, and only when told to.
fn qwen2(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    if raw.opt_bool("use_sliding_window")?.unwrap_or(false) {
        let window = raw.opt_usize("sliding_window")?;
        let first = raw.opt_usize("max_window_layers")?.unwrap_or(0);
        config.windows = match layer_types(raw)? {
            Some(types) => windows_by_type(&types, window),
            None => (0..config.layer_count)
                .map(|layer| window.filter(|_| layer >= first))
                .collect(),
        };
    }
    Ok(config)
}

fn qwen3(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = qwen2(raw)?;
    config.query_key_norm = QueryKeyNorm::PerHead;
    Ok(config)
}

fn qwen2_moe(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = qwen2(raw)?;
    config.experts = Some(qwen_experts(raw, config.layer_count, true)?);
    Ok(config)
}

fn qwen3_moe(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = qwen3(raw)?;
    config.experts = Some(qwen_experts(raw, config.layer_count, false)?);
    Ok(config)
}

fn qwen_experts(raw: &RawConfig, layer_count: usize, shared: bool) -> Result<Experts> {
    let step = raw.opt_usize("decoder_sparse_step")?.unwrap_or(1).max(1);
    let plain = raw.opt_integers("mlp_only_layers")?.unwrap_or_default();
    Ok(Experts {
        count: raw.usize(["num_experts", "num_local_experts"])?,
        used: raw.usize("num_experts_per_tok")?,
        normalize: raw.opt_bool("norm_topk_prob")?.unwrap_or(false),
        shared,
        layers: (0..layer_count)
            .map(|layer| !plain.contains(&(layer as i64)) && (layer + 1) % step == 0)
            .collect(),
        layout: ExpertLayout::Separate,
    })
}

fn gemma(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    config.norm = NormConfig::Rms {
        epsilon: rms_epsilon(raw)?,
        offset: 1.0,
    };
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    config.tied_head = raw.opt_bool("tie_word_embeddings")?.unwrap_or(true);
    // Early configs say `gelu` where the model was trained with the tanh form.
    config.mlp.activation = Activation::GeluTanh;
    Ok(config)
}

fn gemma2(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = gemma(raw)?;
    config.norm_placement = NormPlacement::Both;
    let scalar = raw.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0);
    config.attention_scale = (1.0 / scalar.sqrt()) as f32;
    config.attention_soft_cap = number(raw, "attn_logit_softcapping")?;
    config.logit_soft_cap = number(raw, "final_logit_softcapping")?;
    let window = raw.opt_usize("sliding_window")?;
    config.windows = match layer_types(raw)? {
        Some(types) => windows_by_type(&types, window),
        None => (0..config.layer_count)
            .map(|layer| window.filter(|_| layer % 2 == 0))
            .collect(),
    };
    Ok(config)
}

fn gemma3(raw: &RawConfig) -> Result<DecoderConfig> {
    let text = raw.opt_nested("text_config")?;
    let raw = text.as_ref().unwrap_or(raw);
    let mut config = gemma2(raw)?;
    config.query_key_norm = QueryKeyNorm::PerHead;
    if layer_types(raw)?.is_none() {
        let window = raw.opt_usize("sliding_window")?;
        let pattern = raw.opt_usize("sliding_window_pattern")?.unwrap_or(6).max(1);
        config.windows = (0..config.layer_count)
            .map(|layer| window.filter(|_| (layer + 1) % pattern != 0))
            .collect();
    }
    if raw
        .opt_bool("use_bidirectional_attention")?
        .unwrap_or(false)
    {
        config.bidirectional = true;
        // What the file calls the window then is the whole of it, both sides together.
        let halved = |window: Option<usize>| window.map(|window| window / 2 + 1);
        config.windows = config.windows.into_iter().map(halved).collect();
    }
    if let Positions::Rope(rope) = &mut config.positions {
        let local = match raw.opt_nested("rope_parameters")? {
            Some(parameters) => match parameters.opt_nested("sliding_attention")? {
                Some(local) => number(&local, "rope_theta")?,
                None => None,
            },
            None => number(raw, "rope_local_base_freq")?,
        };
        rope.local_theta = Some(local.unwrap_or(10_000.0));
    }
    Ok(config)
}

fn phi(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = partly_rotated(raw, 0.5)?;
    if raw.opt_bool("qk_layernorm")?.unwrap_or(false) {
        return Err(Error::unsupported(
            raw.file(),
            "qk_layernorm is not supported",
        ));
    }
    config.norm = layer_norm(raw, "layer_norm_eps")?;
    config.residual = Residual::ParallelOneNorm;
    config.mlp.kind = MlpKind::Plain;
    Ok(config)
}

fn phi3(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = mistral(raw)?;
    config.qkv = QkvLayout::Fused;
    config.mlp.kind = MlpKind::GatedFused;
    Ok(config)
}

fn stablelm(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = partly_rotated(raw, 0.25)?;
    if raw.opt_bool("qk_layernorm")?.unwrap_or(false) {
        return Err(Error::unsupported(
            raw.file(),
            "qk_layernorm is not supported",
        ));
    }
    config.norm = layer_norm(raw, "layer_norm_eps")?;
    if raw.opt_bool("use_parallel_residual")?.unwrap_or(false) {
        config.residual = Residual::ParallelOneNorm;
    }
    Ok(config)
}

fn falcon_has_two_norms(raw: &RawConfig) -> bool {
    let flag = |key| raw.opt_bool(key).ok().flatten().unwrap_or(false);
    let norms = raw.opt_usize("num_ln_in_parallel_attn").ok().flatten();
    flag("new_decoder_architecture") && norms.unwrap_or(2) == 2
}

fn falcon(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    let new = raw.opt_bool("new_decoder_architecture")?.unwrap_or(false);
    let multi_query = raw.opt_bool("multi_query")?.unwrap_or(true);
    let parallel = new || raw.opt_bool("parallel_attn")?.unwrap_or(true);
    if raw.opt_bool("alibi")?.unwrap_or(false) {
        return Err(Error::unsupported(
            raw.file(),
            "Falcon checkpoints with ALiBi positions are not supported",
        ));
    }
    config.norm = layer_norm(raw, "layer_norm_epsilon")?;
    config.kv_head_count = match (new, multi_query) {
        (true, _) => raw
            .opt_usize(["num_kv_heads", "n_head_kv"])?
            .unwrap_or(config.head_count),
        (false, true) => 1,
        (false, false) => config.head_count,
    };
    config.qkv = if new || !multi_query {
        QkvLayout::FusedByHead
    } else {
        QkvLayout::Fused
    };
    config.row_order = match config.qkv {
        QkvLayout::FusedByHead => RowOrder::Grouped,
        _ => RowOrder::Same,
    };
    config.residual = match (parallel, falcon_has_two_norms(raw)) {
        (false, _) => Residual::Sequential,
        (true, true) => Residual::ParallelTwoNorms,
        (true, false) => Residual::ParallelOneNorm,
    };
    config.mlp = Mlp {
        kind: MlpKind::Plain,
        activation: activation(raw, &["activation", "hidden_act"], "gelu")?,
    };
    config.tied_head = raw.opt_bool("tie_word_embeddings")?.unwrap_or(true);
    Ok(config)
}

fn granite(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    let factor = |key| number(raw, key).map(|value| value.unwrap_or(1.0));
    config.embedding_scale = factor("embedding_multiplier")?;
    config.residual_scale = factor("residual_multiplier")?;
    config.attention_scale = factor("attention_multiplier")?;
    config.logit_scale = 1.0 / factor("logits_scaling")?;
    Ok(config)
}

fn olmo2(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    config.norm_placement = NormPlacement::Post;
    config.query_key_norm = QueryKeyNorm::Whole;
    Ok(config)
}

fn smollm3(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = qwen2(raw)?;
    let interval = raw.opt_usize("no_rope_layer_interval")?.unwrap_or(4).max(1);
    let given = raw
        .opt_integers("no_rope_layers")?
        .filter(|list| !list.is_empty());
    let rotated = match given {
        // The list says 1 where a layer rotates, whatever its name suggests.
        Some(flags) if flags.len() == config.layer_count => flags.iter().map(|&f| f != 0).collect(),
        Some(flags) => {
            return Err(Error::corrupt(
                raw.file(),
                format!(
                    "no_rope_layers has {} entries for {} layers",
                    flags.len(),
                    config.layer_count
                ),
            ))
        }
        None => (0..config.layer_count)
            .map(|layer| (layer + 1) % interval != 0)
            .collect(),
    };
    if let Positions::Rope(rope) = &mut config.positions {
        rope.layers = rotated;
    }
    config.tied_head = raw.opt_bool("tie_word_embeddings")?.unwrap_or(true);
    Ok(config)
}

fn glm4(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = partly_rotated(raw, 0.5)?;
    config.norm_placement = NormPlacement::Both;
    config.mlp.kind = MlpKind::GatedFused;
    if let Positions::Rope(rope) = &mut config.positions {
        rope.pairing = RopeKind::Interleaved;
    }
    Ok(config)
}

fn starcoder2(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = mistral(raw)?;
    config.norm = layer_norm(raw, "norm_epsilon")?;
    config.mlp.kind = MlpKind::Plain;
    config.tied_head = raw.opt_bool("tie_word_embeddings")?.unwrap_or(true);
    Ok(config)
}

fn gpt2(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = base(raw)?;
    config.norm = layer_norm(raw, "layer_norm_epsilon")?;
    config.qkv = QkvLayout::FusedTransposed;
    config.mlp = Mlp {
        kind: MlpKind::PlainTransposed,
        activation: activation(raw, &["activation_function"], "gelu_new")?,
    };
    config.positions = Positions::Learned;
    config.tied_head = raw.opt_bool("tie_word_embeddings")?.unwrap_or(true);
    if !raw.opt_bool("scale_attn_weights")?.unwrap_or(true) {
        config.attention_scale = 1.0;
    }
    Ok(config)
}

fn gpt_neox(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = partly_rotated(raw, 0.25)?;
    config.norm = layer_norm(raw, "layer_norm_eps")?;
    config.qkv = QkvLayout::FusedByHead;
    config.row_order = RowOrder::Grouped;
    config.mlp.kind = MlpKind::Plain;
    if raw.opt_bool("use_parallel_residual")?.unwrap_or(true) {
        config.residual = Residual::ParallelTwoNorms;
    }
    Ok(config)
}

/// What all families share, with Llama's choices where they differ.
fn base(raw: &RawConfig) -> Result<DecoderConfig> {
    partly_rotated(raw, 1.0)
}

/// The same for families that rotate only a share of each head unless the config says otherwise.
fn partly_rotated(raw: &RawConfig, rotated_share: f64) -> Result<DecoderConfig> {
    let hidden_size = raw.usize(["hidden_size", "n_embd", "d_model"])?;
    let head_count = raw.usize(["num_attention_heads", "n_head"])?;
    let layer_count = raw.usize(["num_hidden_layers", "n_layer"])?;
    let head_size = match raw.opt_usize("head_dim")? {
        Some(size) => size,
        None if hidden_size % head_count == 0 => hidden_size / head_count,
        None => {
            return Err(Error::corrupt(
                raw.file(),
                format!("hidden_size {hidden_size} is not a multiple of {head_count} heads"),
            ))
        }
    };
    let kv_head_count = raw.opt_usize("num_key_value_heads")?.unwrap_or(head_count);
    if kv_head_count == 0 || head_count % kv_head_count != 0 {
        return Err(Error::corrupt(
            raw.file(),
            format!("{head_count} heads cannot share {kv_head_count} key-value heads"),
        ));
    }
    Ok(DecoderConfig {
        architecture: raw.model_type()?.unwrap_or_default().to_owned(),
        vocab_size: raw.usize(["vocab_size"])?,
        hidden_size,
        layer_count,
        head_count,
        kv_head_count,
        head_size,
        max_positions: raw
            .opt_usize(["max_position_embeddings", "n_positions", "n_ctx"])?
            .unwrap_or(2048),
        norm: NormConfig::Rms {
            epsilon: rms_epsilon(raw)?,
            offset: 0.0,
        },
        norm_placement: NormPlacement::Pre,
        residual: Residual::Sequential,
        query_key_norm: QueryKeyNorm::None,
        qkv: QkvLayout::Split,
        mlp: Mlp {
            kind: MlpKind::Gated,
            activation: activation(raw, &["hidden_activation", "hidden_act"], "silu")?,
        },
        experts: None,
        positions: Positions::Rope(super::rope::from_config(
            raw,
            head_size,
            layer_count,
            rotated_share,
        )?),
        bidirectional: false,
        windows: vec![None; layer_count],
        attention_scale: 1.0 / (head_size as f32).sqrt(),
        attention_soft_cap: None,
        logit_soft_cap: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        tied_head: raw.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        row_order: RowOrder::Same,
    })
}

fn number(raw: &RawConfig, key: &str) -> Result<Option<f32>> {
    Ok(raw.opt_f64(key)?.map(|value| value as f32))
}

fn rms_epsilon(raw: &RawConfig) -> Result<f32> {
    Ok(number(raw, "rms_norm_eps")?.unwrap_or(1e-6))
}

fn layer_norm(raw: &RawConfig, key: &str) -> Result<NormConfig> {
    Ok(NormConfig::Layer {
        epsilon: number(raw, key)?.unwrap_or(1e-5),
    })
}

fn activation(raw: &RawConfig, keys: &[&str], default: &str) -> Result<Activation> {
    let name = raw.opt_string(keys)?.unwrap_or(default);
    Activation::from_name(name).ok_or_else(|| {
        Error::unsupported(raw.file(), format!("activation {name:?} is not supported"))
    })
}

/// `layer_types` of newer configs: for each layer `full_attention` or `sliding_attention`.
fn layer_types(raw: &RawConfig) -> Result<Option<Vec<String>>> {
    raw.opt_strings("layer_types")
}

fn windows_by_type(types: &[String], window: Option<usize>) -> Vec<Option<usize>> {
    types
        .iter()
        .map(|kind| window.filter(|_| kind == "sliding_attention"))
        .collect()
}
