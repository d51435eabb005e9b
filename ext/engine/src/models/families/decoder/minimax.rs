use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "minimax",
    matches: types(&["minimax"]),
    config: |raw| {
        let raw = &raw.clone().with_defaults(json!({"rope_theta": 1e6}));
        let mut config = decoder(raw, &Usual::LLAMA)?;
        rotate_first(raw, &mut config)?;
        config.windows = vec![raw.opt_usize("sliding_window")?; config.layer_count];
        config.experts = experts(raw, config.layer_count, true, Shared::None)?;
        config.residual = Residual::SequentialFromNorm;
        let factors = |name: &str| -> Result<[f32; 2]> {
            let factor = |end| number(raw, &format!("{name}_{end}_factor"));
            Ok([
                factor("alpha")?.unwrap_or(1.0),
                factor("beta")?.unwrap_or(1.0),
            ])
        };
        config.residual_weights = ResidualWeights::Fixed {
            attention: factors("full_attn")?,
            state: factors("linear_attn")?,
            mlp: factors("mlp")?,
        };
        config.sublayers = sublayers(raw, config.layer_count, |at| at % 2 == 0)?;
        config.state = Some(StateKind::LinearAttention(LinearAttention {
            heads: config.head_count,
            size: config.head_size,
            norm: NormConfig::new(NormKind::Rms, 1e-6),
        }));
        Ok(config)
    },
    names: |_| Names {
        state_qkv: "self_attn.qkv_proj",
        state_gate: "self_attn.output_gate",
        state_norm: "self_attn.norm",
        state_output: "self_attn.out_proj",
        ..mixtral::NAMES
    },
    gguf: gguf_named("minimax-01", state_gguf::minimax, |_| state_gguf::MINIMAX),
};
