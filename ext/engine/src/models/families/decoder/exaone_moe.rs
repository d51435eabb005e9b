use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "exaone_moe",
    matches: types(&["exaone_moe"]),
    config: |raw| {
        let mut config = exaone4::attention(raw)?;
        config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
        Ok(config)
    },
    names: |_| Names {
        router_bias: "mlp.e_score_correction_bias|mlp.gate.e_score_correction_bias",
        ..glm4_moe::NAMES
    },
    gguf: gguf("exaone-moe", |file| file.like(FAMILY.config, &[])),
};
