use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "falcon_h1",
    matches: types(&["falcon_h1"]),
    config: |raw| {
        let raw = &raw.clone().with_defaults(json!({"rms_norm_eps": 1e-5}));
        let mut config = decoder(raw, &Usual::LLAMA)?;
        let factor = |key| number(raw, key).map(|found| found.unwrap_or(1.0));
        let factors = |key| -> Result<Vec<f32>> {
            let found = raw.opt_numbers(key)?.unwrap_or_default();
            Ok(found.into_iter().map(|factor| factor as f32).collect())
        };
        let ssm = mamba_shared::ssm(raw, &config)?;
        let norm = if flag(raw, "mamba_rms_norm", false)? {
            SsmNorm::Parts {
                count: ssm.groups,
                before_gate: flag(raw, "mamba_norm_before_gate", true)?,
            }
        } else {
            SsmNorm::None
        };
        let projected = factors("ssm_multipliers")?.try_into();
        config.state = Some(StateKind::Ssm(Ssm {
            norm,
            factors: SsmFactors {
                input: factor("ssm_in_multiplier")?,
                projected: projected.unwrap_or([1.0; 5]),
                output: factor("ssm_out_multiplier")?,
            },
            ..ssm
        }));
        let both = Sublayers {
            attention: true,
            ..Sublayers::STATE
        };
        config.sublayers = vec![both; config.layer_count];
        let [gate, mlp_output] = factors("mlp_multipliers")?.try_into().unwrap_or([1.0; 2]);
        config.factors = Factors {
            attention_input: factor("attention_in_multiplier")?,
            attention_output: factor("attention_out_multiplier")?,
            gate,
            mlp_output,
        };
        config.attention_scale *= factor("key_multiplier")?;
        config.embedding_scale = factor("embedding_multiplier")?;
        config.logit_scale = factor("lm_head_multiplier")?;
        Ok(config)
    },
    names: |_| mamba_shared::BAMBA,
    gguf: gguf_named("falcon-h1", state_gguf::falcon_h1, |_| state_gguf::NAMES),
};
