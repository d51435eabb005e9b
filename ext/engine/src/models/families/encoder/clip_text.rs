use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "clip_text_model",
    matches: types(&[
        "clip_text_model",
        "metaclip_2_text_model",
        "owlvit_text_model",
        "owlv2_text_model",
    ]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        }));
        let mut config = pre_norm(encoder(&raw, "clip")?);
        for layer in &mut config.layers {
            layer.attention = AttentionKind::Causal;
        }
        Ok(config)
    },
    names: |_| CLIP_TEXT,
    gguf: None,
};
