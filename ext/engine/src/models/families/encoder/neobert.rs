use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "neobert",
    matches: types(&["neobert"]).or_classes(&["NeoBERT"]),
    config: |raw| {
        refuse(raw, &["ngpt"])?;
        let mut config = pre_norm(rotary(encoder(raw, "neobert")?, |config| {
            rope(raw, config.head_size, 1.0, 10_000.0)
        })?);
        config.relative.interleave();
        config.qkv = QkvLayout::ByHead;
        config.norm.kind = NormKind::Rms;
        config.norm.epsilon = number(raw, "norm_eps")?.unwrap_or(1e-6);
        config.mlp.kind = MlpKind::Gated;
        config.mlp.activation = Activation::Silu;
        config.max_positions = Some(raw.opt_usize_in("max_length", POSITIONS)?.unwrap_or(1024));
        config.heads_on_top = HeadConfigs {
            token_activation: Activation::Tanh,
            ..HeadConfigs::default()
        };
        Ok(config)
    },
    names: |_| NEOBERT,
    gguf: None,
};
