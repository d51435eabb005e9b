use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "nomic_bert",
    matches: types(&["nomic_bert"]).or_classes(&["NomicBert"]),
    config,
    names: |_| NOMIC,
    gguf: Some(Gguf {
        architecture: "nomic-bert",
        config: |file| {
            let mut config = rotary(file.encoder("nomic_bert")?, |config| {
                file.rope(config.head_size, 1000.0)
            })?;
            config.mlp.activation = Activation::Silu;
            Ok(config)
        },
        names: |_| GGUF_ENCODER,
    }),
};

pub fn config(raw: &RawConfig) -> Result<EncoderConfig> {
    refuse(raw, &["prenorm", "use_rms_norm"])?;
    let mut config = rotary(encoder(raw, "nomic_bert")?, |config| {
        rope(raw, config.head_size, 1.0, 10_000.0)
    })?;
    config.mlp.kind = MlpKind::Gated;
    config.mlp = gated(raw, "activation_function", config.mlp)?;
    config.heads_on_top.masked_activation = config.mlp.activation;
    if flag(raw, "rotary_emb_interleaved", false)? {
        config.relative.interleave();
    }
    // Beyond the trained length the frequencies would have to stretch with the text.
    if raw.has("rotary_scaling_factor") {
        let trained = raw.opt_usize_in("max_trained_positions", POSITIONS)?;
        config.max_positions = trained.or(config.max_positions);
    }
    Ok(config)
}
