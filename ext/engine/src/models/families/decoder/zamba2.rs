use super::*;

/// The layers with a block, where a file does not say.
const USUAL: [usize; 9] = [6, 12, 18, 24, 30, 36, 42, 47, 51];

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "zamba2",
    matches: types(&["zamba2"]),
    config: |raw| {
        let (hidden, heads) = (raw.usize_in("hidden_size", WIDTH)?, "num_attention_heads");
        let head_size = 2 * hidden / raw.usize_in(heads, HEADS)?;
        let raw = &raw.clone().with_defaults(json!({
            "rms_norm_eps": 1e-5, "intermediate_size": 4 * hidden, "head_dim": head_size,
            "mamba_ngroups": 1, "mamba_d_state": 64, "mamba_hidden_act": "silu",
        }));
        let usual = Usual {
            activation: Activation::Gelu,
            ..Usual::TIED
        };
        let mut config = decoder(raw, &usual)?;
        config.attention_scale = (head_size as f32 / 2.0).sqrt().recip();
        if !flag(raw, "use_mem_rope", false)? {
            config.relative = Relative::None;
        }
        if flag(raw, "use_long_context", false)? {
            config.max_positions = 16384;
        }
        let hybrid: Vec<bool> = match raw.opt_strings(["layers_block_type", "layer_types"])? {
            Some(kinds) => kinds.iter().map(|kind| kind == "hybrid").collect(),
            None => {
                let layers = 0..config.layer_count;
                layers.map(|at| USUAL.contains(&at)).collect()
            }
        };
        let layer = |attention| Sublayers {
            attention,
            ..mamba_shared::MIXER
        };
        config.sublayers = hybrid.into_iter().map(layer).collect();
        let ssm = mamba_shared::ssm(raw, &config)?;
        config.state = Some(StateKind::Ssm(Ssm {
            head_size: mamba_shared::expanded(raw, &config)? / ssm.heads,
            norm: SsmNorm::Parts {
                count: ssm.groups,
                before_gate: false,
            },
            epsilon: 1e-5,
            steps: (number(raw, "time_step_min")?.unwrap_or(1e-3), f32::INFINITY),
            ..ssm
        }));
        config.shared_blocks = Some(SharedBlocks {
            count: raw.opt_usize_in("num_mem_blocks", LAYERS)?.unwrap_or(1),
            adapts_attention: flag(raw, "use_shared_attention_adapter", false)?,
        });
        Ok(config)
    },
    names: |_| mamba_shared::ZAMBA,
    gguf: None,
};
