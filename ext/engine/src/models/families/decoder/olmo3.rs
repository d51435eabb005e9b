use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "olmo3",
    matches: types(&["olmo3"]),
    config,
    names: |_| olmo2::NAMES,
    gguf: None,
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let raw = raw.clone().with_defaults(json!({"rope_theta": 500_000.0}));
    let mut config = olmo2::shape(decoder(&raw, &Usual::LLAMA)?);
    sliding(&raw, &mut config, 4)?;
    let local = local_theta(&raw)?;
    if let Some(rope) = config.relative.rope_mut() {
        rope.local_theta = local;
        rope.unscaled_windows = true;
    }
    Ok(config)
}
