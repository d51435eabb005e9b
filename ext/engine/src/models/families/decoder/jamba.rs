use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "jamba",
    matches: types(&["jamba"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.relative = Relative::None;
        let every = |period: &str, offset: &str, usual: (usize, usize)| -> Result<Vec<bool>> {
            let period = raw.opt_usize(period)?.unwrap_or(usual.0).max(1);
            let offset = raw.opt_usize(offset)?.unwrap_or(usual.1);
            let layers = 0..config.layer_count;
            Ok(layers.map(|layer| layer % period == offset).collect())
        };
        let attends = every("attn_layer_period", "attn_layer_offset", (8, 4))?;
        let sparse = every("expert_layer_period", "expert_layer_offset", (2, 1))?;
        config.sublayers = sublayers(raw, config.layer_count, |layer| attends[layer])?;
        config.state = Some(StateKind::Selective(Selective {
            norm: Some(config.norm),
            ..mamba_shared::selective(raw, &config)?
        }));
        if raw.opt_usize("num_experts")?.unwrap_or(16) > 1 {
            let given = experts(raw, config.layer_count, false, Shared::None)?;
            config.experts = given.map(|given| Experts {
                layers: sparse,
                ..given
            });
        }
        Ok(config)
    },
    names: |_| Names {
        router: "feed_forward.router",
        expert_gate: "feed_forward.experts.{}.gate_proj",
        expert_up: "feed_forward.experts.{}.up_proj",
        expert_down: "feed_forward.experts.{}.down_proj",
        ..mamba_shared::BAMBA
    },
    gguf: gguf_named("jamba", state_gguf::jamba, |_| state_gguf::NAMES),
};
