use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "axk1",
    matches: types(&["axk1"]),
    config: |raw| {
        let mut config = deepseek_v3::config(raw)?;
        if let Some(experts) = &mut config.experts {
            experts.normalized = true;
        }
        Ok(config)
    },
    names: |_| Names {
        post_mlp_norm: "mlp.post_mlp_layernorm|post_mlp_layernorm",
        ..latent_shared::NAMES
    },
    gguf: None,
};
