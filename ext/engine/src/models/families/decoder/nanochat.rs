use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "nanochat",
    matches: types(&["nanochat"]),
    config: |raw| {
        let usual = Usual {
            mlp: MlpKind::Plain,
            activation: Activation::ReluSquared,
            ..Usual::LLAMA
        };
        let mut config = decoder(raw, &usual)?;
        config.norm = config.norm.plain();
        config.embedding_norm = Some(config.norm);
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.norm_after_rope = true;
        config.logit_soft_cap = number(raw, "final_logit_softcapping")?;
        if let Some(rope) = config.relative.rope_mut() {
            rope.backwards = true;
        }
        Ok(config)
    },
    names: |_| Names {
        up: "mlp.fc1",
        down: "mlp.fc2",
        ..LLAMA
    },
    gguf: None,
};
