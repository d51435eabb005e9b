use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "cohere",
    matches: types(&["cohere"]),
    config: |raw| {
        let mut config = config(raw)?;
        if flag(raw, "use_qk_norm", false)? {
            config.query_key_norm = QueryKeyNorm::EachHead;
        }
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf("command-r", |file| {
        file.like(FAMILY.config, &[("logit_scale", "logit_scale")])
    }),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let usual = Usual {
        norm: NormKind::Layer,
        tied: true,
        ..Usual::LLAMA
    };
    let mut config = parallel(decoder(raw, &usual)?);
    config.relative.interleave();
    config.logit_scale = number(raw, "logit_scale")?.unwrap_or(0.0625);
    Ok(config)
}
