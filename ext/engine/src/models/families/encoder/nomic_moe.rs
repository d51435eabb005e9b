use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "nomic_bert_moe",
    matches: types(&["nomic_bert"])
        .or_classes(&["NomicBert"])
        .only_if(|raw| matches!(raw.opt_usize("moe_every_n_layers"), Ok(Some(1..)))),
    config: |raw| {
        let mut config = nomic::config(raw)?;
        config.mechanisms.experts = Some(experts_of(raw, &config)?);
        Ok(config)
    },
    names: |_| Names {
        router: "mlp.router.layer",
        expert_up: "mlp.experts.mlp.w1",
        expert_down: "mlp.experts.mlp.w2",
        expert_total_bias: "mlp.experts.bias",
        ..NOMIC
    },
    gguf: Some(Gguf {
        architecture: "nomic-bert-moe",
        config: |file| {
            let mut config = rotary(file.encoder("nomic_bert_moe")?, |config| {
                file.rope(config.head_size, 10_000.0)
            })?;
            config.mlp.kind = MlpKind::Plain;
            config.mechanisms.experts = Some(file.mlp_experts()?);
            Ok(config)
        },
        names: |_| GGUF_ENCODER,
    }),
};
