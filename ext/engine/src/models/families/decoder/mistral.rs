use super::*;

/// GGUF files call it llama.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "mistral",
    matches: types(&["mistral", "ministral"]),
    config: |raw| windowed(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: None,
};

/// With a window in every layer, where the file gives one.
pub fn windowed(raw: &RawConfig, usual: &Usual) -> Result<DecoderConfig> {
    let mut config = decoder(raw, usual)?;
    let window = raw.opt_usize("sliding_window")?;
    config.windows = windows(raw, config.layer_count, window, |_| true)?;
    Ok(config)
}
