use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "nemotron_h",
    matches: types(&["nemotron_h"]),
    config: |raw| {
        let pattern = raw.opt_string("hybrid_override_pattern")?;
        let pattern = pattern.unwrap_or_default();
        let kinds = raw.opt_strings(["layers_block_type", "layer_types"])?;
        let kinds = kinds.unwrap_or_else(|| pattern.chars().map(String::from).collect());
        let raw = &raw.clone().with_defaults(json!({
            "num_hidden_layers": kinds.len(), "layer_norm_epsilon": 1e-5,
            "mamba_hidden_act": "silu",
        }));
        let usual = Usual {
            activation: Activation::ReluSquared,
            mlp: MlpKind::Plain,
            ..Usual::LLAMA
        };
        let mut config = decoder(raw, &usual)?;
        config.relative = Relative::None;
        let is = |names: &'static [&str]| kinds.iter().map(move |kind| names.contains(&&kind[..]));
        let (attends, keeps) = (
            &["full_attention", "attention", "*"],
            &["linear_attention", "mamba", "M"],
        );
        config.sublayers = is(attends)
            .zip(is(keeps))
            .map(|(attention, state)| Sublayers {
                attention,
                state,
                mlp: !attention && !state,
            })
            .collect();
        config.tied_head = false;
        let ssm = mamba_shared::ssm(raw, &config)?;
        let (count, before_gate) = (ssm.groups, false);
        let norm = SsmNorm::Parts { count, before_gate };
        // transformers reads no `time_step_limit` here.
        let least = number(raw, "time_step_min")?.unwrap_or(1e-3);
        let steps = (least, f32::INFINITY);
        config.state = Some(StateKind::Ssm(Ssm { norm, steps, ..ssm }));
        let sparse: Vec<bool> = is(&["moe", "E"]).collect();
        if sparse.contains(&true) {
            config.experts = Some(Experts {
                gated: false,
                latent: raw.opt_usize_in("moe_latent_size", WIDTH)?,
                layers: sparse,
                ..sigmoid_experts(raw, config.layer_count)?
            });
        }
        Ok(config)
    },
    names: |_| mamba_shared::NEMOTRON,
    gguf: gguf_named("nemotron_h|nemotron_h_moe", state_gguf::nemotron, |_| {
        state_gguf::NEMOTRON
    }),
};
