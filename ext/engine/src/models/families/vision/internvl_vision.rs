use super::*;

pub const FAMILY: Family<VisionConfig> = Family {
    name: "internvl_vision",
    matches: types(&["internvl_vision"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
        }));
        let patch = square_edge(&raw, "patch_size")?.unwrap_or(14);
        let mut config = vision(&raw.clone().with(json!({"patch_size": patch})), "internvl")?;
        config.positions = GridPositions::Bicubic;
        let rms = raw.opt_string("norm_type")? == Some("rms_norm");
        if flag(&raw, "use_qk_norm", false)? && !rms
            || rms && !flag(&raw, "use_mean_pooling", true)?
        {
            let reason = "norms of two kinds in one vision tower are not supported";
            return Err(Error::unsupported(raw.file(), reason));
        }
        if rms {
            config.encoder.norm.kind = NormKind::Rms;
        }
        Ok(config)
    },
    names: |_| INTERNVL_VISION,
    gguf: None,
};
