use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "ultrabert",
    matches: types(&["ultrabert"]).or_classes(&["Ultrabert"]),
    config: |raw| {
        let mut config = bidirectional_llama(raw, "ultrabert", 1e-6)?;
        let reach = raw.opt_usize("sliding_window")?.unwrap_or(128);
        let layers = config.layers.len();
        let windows = windows(raw, layers, Some(reach), |layer| (layer + 1) % 3 != 0)?;
        in_windows_of(&mut config, &windows);
        let theta = rope(raw, config.head_size, 1.0, 2_560_000.0)?;
        config.relative = Relative::Rope(RopeConfig {
            local_theta: Some(local_theta(raw)?.unwrap_or(10_000.0)),
            ..theta
        });
        config.heads_on_top = HeadConfigs {
            masked_activation: Activation::GeluTanh,
            ..classifier_heads(raw)?
        };
        Ok(config)
    },
    names: |_| Names {
        sequence_dense: "",
        ..BIDIRECTIONAL_LLAMA
    },
    gguf: None,
};
