use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma4",
    matches: types(&[
        "gemma4",
        "gemma4_text",
        "gemma4_unified",
        "gemma4_unified_text",
    ]),
    config: |raw| {
        let raw = text_of(raw)?;
        let unified = is_type(&raw, &["gemma4_unified_text"]);
        let (window, width) = if unified { (1024, 0) } else { (512, 256) };
        let raw = &raw.with_defaults(json!({
            "head_dim": 256, "sliding_window": window,
            "rope_parameters": {
                "sliding_attention": {"rope_theta": 10_000.0},
                "full_attention": {
                    "rope_type": "proportional", "rope_theta": 1_000_000.0,
                    "partial_rotary_factor": 0.25,
                },
            },
        }));
        let mut config = gemma_shared::with_layer_inputs(raw, width)?;
        config.bidirectional_images = gemma_shared::image_attention(raw)?;
        config.layer_input_padding = raw.padding_id()?.unwrap_or(0);
        config.layer_scale = true;
        sliding(raw, &mut config, 6)?;
        if let Some(last) = config.windows.last_mut() {
            *last = None;
        }
        gemma_shared::heads_by_layer(raw, &mut config)?;
        config.share_last(raw.opt_usize("num_kv_shared_layers")?.unwrap_or(0));
        rotate_by_type(raw, &mut config)?;
        if flag(raw, "enable_moe_block", false)? {
            let (count, used) = (raw.usize("num_experts")?, raw.usize("top_k_experts")?);
            config.experts = Some(Experts {
                normalize: true,
                beside_mlp: true,
                layout: ExpertLayout::fused(false, false),
                ..Experts::softmax(count, used, config.layer_count)
            });
        }
        Ok(config)
    },
    names: |_| gemma_shared::LAYER_INPUTS,
    gguf: gguf_named(
        "gemma4",
        |file| file.like_with(FAMILY.config, &[], gemma_shared::heads_gguf(file)?),
        |_| GGUF_LAYER_INPUTS,
    ),
};
