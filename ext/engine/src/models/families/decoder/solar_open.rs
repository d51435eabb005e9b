use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "solar_open",
    matches: types(&["solar_open"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| glm4_moe::NAMES,
    gguf: None,
};
