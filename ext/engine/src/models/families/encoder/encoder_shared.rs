//! What encoders read alike from a `config.json`.

use super::*;

/// Positions count from behind the padding token's number.
pub fn after_padding(raw: &RawConfig, family: &'static str) -> Result<EncoderConfig> {
    require_positions(raw, "absolute")?;
    let padding_id = raw.padding_id()?.unwrap_or(1);
    Ok(EncoderConfig {
        positions: Positions::LearnedAfterPadding { padding_id },
        heads_on_top: lm_head(raw)?,
        ..encoder(raw, family)?
    })
}

/// RoBERTa's heads, whose activation is not the layers'.
pub fn lm_head(raw: &RawConfig) -> Result<HeadConfigs> {
    Ok(HeadConfigs {
        masked_untied: !flag(raw, "tie_word_embeddings", true)?,
        ..HeadConfigs::default()
    })
}

/// X-MOD's adapter of the language that the file names.
pub fn adapter(raw: &RawConfig) -> Result<Adapter> {
    let Some(language) = raw.opt_string("default_language")? else {
        let reason =
            "it has no default_language, by which X-MOD chooses the adapters of its layers";
        return Err(Error::unsupported(raw.file(), reason));
    };
    let norm = match (
        flag(raw, "adapter_layer_norm", false)?,
        flag(raw, "adapter_reuse_layer_norm", true)?,
    ) {
        (true, _) => AdapterNorm::Own,
        (false, true) => AdapterNorm::Shared,
        (false, false) => AdapterNorm::None,
    };
    Ok(Adapter {
        language: language.to_owned(),
        norm,
        residual_behind_norm: flag(raw, "ln_before_adapter", true)?,
    })
}

/// MobileBERT's narrow layers.
pub fn narrow(raw: &RawConfig, hidden_size: usize) -> Result<Narrow> {
    let earlier = raw
        .opt_usize_in("num_feedforward_networks", LAYERS)?
        .unwrap_or(4);
    let attention = match (
        flag(raw, "use_bottleneck", true)?,
        flag(raw, "use_bottleneck_attention", false)?,
        flag(raw, "key_query_shared_bottleneck", true)?,
    ) {
        (false, _, _) => NarrowAttention::Whole,
        (true, true, _) => NarrowAttention::Narrow,
        (true, false, true) => NarrowAttention::Shared,
        (true, false, false) => NarrowAttention::Wide,
    };
    let width = opt_width(raw, "intra_bottleneck_size")?.unwrap_or(128);
    Ok(Narrow {
        width: match attention {
            NarrowAttention::Whole => hidden_size,
            _ => width,
        },
        attention,
        earlier_mlps: earlier - 1,
        linear_norms: raw.opt_string("normalization_type")? != Some("layer_norm"),
    })
}

/// NomicBERT's experts, which have no gates.
pub fn experts_of(raw: &RawConfig, config: &EncoderConfig) -> Result<MlpExperts> {
    refuse(
        raw,
        &["expert_choice_router", "moe_normalize_expert_weights"],
    )?;
    let unsupported = |reason| Err(Error::unsupported(raw.file(), reason));
    if raw.opt_usize("num_shared_experts")?.unwrap_or(0) > 0 {
        return unsupported("num_shared_experts beside the routed ones is not supported");
    }
    if config.mlp.kind == MlpKind::Gated {
        return unsupported("experts with a gated activation_function are not supported");
    }
    Ok(MlpExperts {
        count: raw.opt_usize("num_experts")?.unwrap_or(8),
        used: raw.opt_usize("moe_top_k")?.unwrap_or(1),
        every: raw.opt_usize("moe_every_n_layers")?.unwrap_or(1).max(1),
    })
}

/// The layers are cut into equal groups, and those of a group share their weights; each is several in a row (ALBERT).
pub fn share_layers(raw: &RawConfig, config: &mut EncoderConfig) -> Result<()> {
    let groups = raw.opt_usize_in("num_hidden_groups", LAYERS)?.unwrap_or(1);
    let inner = raw.opt_usize_in("inner_group_num", LAYERS)?.unwrap_or(1);
    let count = config.layers.len();
    crate::models::config::check_layer_count(count * inner)
        .map_err(|reason| Error::corrupt(raw.file(), reason))?;
    let each = config
        .layers
        .iter()
        .enumerate()
        .flat_map(|(number, layer)| {
            let first = number * groups / count * inner;
            (first..first + inner).map(move |weights| LayerConfig { weights, ..*layer })
        });
    config.layers = each.collect();
    config.mechanisms.sublayers = Some(inner);
    Ok(())
}
