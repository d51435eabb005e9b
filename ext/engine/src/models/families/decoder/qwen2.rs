use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "qwen2",
    matches: types(&["qwen2"]),
    config: |raw| windowed(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("qwen2|exaone", |file| file.decoder(&Usual::LLAMA)),
};

/// Qwen windows only the layers from `max_window_layers` on, and only when told to.
pub fn windowed(raw: &RawConfig, usual: &Usual) -> Result<DecoderConfig> {
    let mut config = decoder(raw, usual)?;
    if flag(raw, "use_sliding_window", false)? {
        let window = raw.opt_usize("sliding_window")?;
        let first = raw.opt_usize("max_window_layers")?.unwrap_or(0);
        config.windows = windows(raw, config.layer_count, window, |layer| layer >= first)?;
    }
    Ok(config)
}
