use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "phimoe",
    matches: types(&["phimoe"]),
    config: |raw| {
        let usual = Usual {
            norm: NormKind::Layer,
            ..Usual::LLAMA
        };
        let mut config = mistral::windowed(raw, &usual)?;
        let given = experts(raw, config.layer_count, false, Shared::None)?;
        let jitter = number(raw, "router_jitter_noise")?.unwrap_or(0.01);
        config.experts = given.map(|experts| Experts {
            used: 2,
            scoring: Scoring::SparseMixer { jitter },
            ..experts
        });
        Ok(config)
    },
    names: |_| mixtral::NAMES,
    gguf: gguf("phimoe", |file| file.like(FAMILY.config, &[])),
};
