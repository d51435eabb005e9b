use super::*;

const USUAL: Usual = Usual {
    rotated: 0.25,
    ..Usual::LAYER_NORM
};

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gpt_neox",
    matches: types(&["gpt_neox"]),
    config: |raw| {
        let mut config = grouped(decoder(raw, &USUAL)?);
        config.residual = Residual::parallel(flag(raw, "use_parallel_residual", true)?, true);
        Ok(config)
    },
    names: |_| GPT_NEOX.within("gpt_neox."),
    gguf: gguf("gptneox", |file| {
        let mut config = grouped_gguf(file.decoder(&USUAL)?);
        config.residual = Residual::parallel(file.flag("use_parallel_residual", true)?, true);
        Ok(config)
    }),
};
