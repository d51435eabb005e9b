use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "cohere2",
    matches: types(&["cohere2"]),
    config,
    names: |_| LLAMA,
    gguf: gguf("cohere2", |file| {
        file.like(config, &[("logit_scale", "logit_scale")])
    }),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = cohere::config(raw)?;
    let pattern = raw.opt_usize("sliding_window_pattern")?.unwrap_or(4);
    sliding(raw, &mut config, pattern)?;
    rotate_in_windows(&mut config);
    Ok(config)
}
