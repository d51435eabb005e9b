use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "plamo2",
    matches: types(&[]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.norm_placement = NormPlacement::Both;
        config.sublayers = sublayers(raw, config.layer_count, |at| at % 2 == 0)?;
        // Files say that there is no group, of what all heads have in common.
        let raw = raw.clone().with(json!({"mamba_n_groups": 1}));
        let ssm = mamba_shared::ssm(&raw, &config)?;
        config.state = Some(StateKind::SelectedHeads(SelectedHeads {
            rank: (config.hidden_size / 16).max(64),
            norm: config.norm,
            ssm: Ssm {
                norm: SsmNorm::None,
                ..ssm
            },
        }));
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf_named("plamo2", state_gguf::plamo2, |_| state_gguf::NAMES),
};
