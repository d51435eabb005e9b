use super::latent_shared::{interleaved, NAMES};
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "deepseek_v3",
    matches: types(&["deepseek_v3"]),
    config,
    names: |_| NAMES,
    gguf: None,
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = interleaved(raw, &Usual::LLAMA)?;
    config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
    Ok(config)
}
