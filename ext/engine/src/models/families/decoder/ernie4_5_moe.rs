use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "ernie4_5_moe",
    matches: types(&["ernie4_5_moe"]),
    config: |raw| {
        let mut config = ernie4_5::config(raw)?;
        let (count, used) = (raw.usize("moe_num_experts")?, raw.usize("moe_k")?);
        let layers = config.layer_count;
        let interval = raw.opt_usize("moe_layer_interval")?.unwrap_or(1).max(1);
        let first = raw.opt_usize("moe_layer_start_index")?.unwrap_or(0);
        let last = raw.opt_integers("moe_layer_end_index").ok().flatten();
        let last = last.and_then(|list| list.first().copied()).unwrap_or(-1);
        let last = usize::try_from(last).unwrap_or(layers.saturating_sub(1));
        config.experts = Some(Experts {
            normalize: true,
            least_total: number(raw, "moe_norm_min")?.unwrap_or(1e-12),
            biased: true,
            shared: match raw.opt_usize("moe_num_shared_experts")?.unwrap_or(0) {
                0 => Shared::None,
                _ => Shared::Plain,
            },
            layers: (0..layers)
                .map(|layer| (layer + 1) % interval == 0 && (first..=last).contains(&layer))
                .collect(),
            ..Experts::softmax(count, used, layers)
        });
        Ok(config)
    },
    names: |_| Names {
        router_bias: "mlp.moe_statics.e_score_correction_bias",
        ..glm4_moe::NAMES
    },
    gguf: gguf("ernie4_5-moe", |file| {
        let also = [
            ("expert_count", "moe_num_experts"),
            ("expert_used_count", "moe_k"),
        ];
        file.like(FAMILY.config, &also)
    }),
};
