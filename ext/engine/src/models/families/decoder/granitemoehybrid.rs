use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granitemoehybrid",
    matches: types(&["granitemoehybrid"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.attention_scale = 1.0;
        if raw.opt_string("position_embedding_type")? != Some("rope") {
            config.relative = Relative::None;
        }
        config.state = Some(StateKind::Ssm(mamba_shared::ssm(raw, &config)?));
        config.sublayers = sublayers(raw, config.layer_count, |_| false)?;
        match raw.opt_usize("num_local_experts")?.unwrap_or(0) {
            0 => multiplied(raw, &mut config).map(|()| config),
            _ => granitemoe::with_experts(raw, config),
        }
    },
    names: |_| mamba_shared::GRANITE,
    gguf: gguf_named("granitehybrid", state_gguf::granite, |_| state_gguf::NAMES),
};
