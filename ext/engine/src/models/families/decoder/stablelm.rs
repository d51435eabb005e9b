use super::*;

const USUAL: Usual = Usual {
    norm: NormKind::Layer,
    rotated: 0.25,
    ..Usual::LLAMA
};

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "stablelm",
    matches: types(&["stablelm", "stablelm_epoch"]),
    config: |raw| {
        refuse(raw, &["qk_layernorm"])?;
        let mut config = decoder(raw, &USUAL)?;
        config.residual = Residual::parallel(flag(raw, "use_parallel_residual", false)?, false);
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("stablelm", |file| {
        let mut config = file.decoder(&USUAL)?;
        config.residual = Residual::parallel(!file.first_layer_has("ffn_norm"), false);
        Ok(config)
    }),
};
