use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "cohere2_moe",
    matches: types(&["cohere2_moe"]),
    config: |raw| {
        let mut config = cohere2::config(raw)?;
        if raw.opt_f64("rms_norm_eps")?.is_some() {
            config.norm.kind = NormKind::Rms;
        }
        let scoring = match raw.opt_string("expert_selection_fn")? {
            Some("sigmoid") => Scoring::Sigmoid,
            _ => Scoring::Softmax,
        };
        let mixing = raw.opt_string("shared_expert_combination_strategy")?;
        let given = sigmoid_experts(raw, config.layer_count)?;
        let dense_rotate = raw.opt_usize("prefix_dense_sliding_window_pattern")?;
        if let (Some(rope), 1) = (config.relative.rope_mut(), dense_rotate.unwrap_or(1)) {
            let layers = rope.layers.iter_mut().zip(&given.layers);
            layers.for_each(|(rotates, sparse)| *rotates |= !sparse);
        }
        config.experts = Some(Experts {
            scoring,
            // A softmax of the chosen alone sums to 1.
            normalize: given.normalize || scoring == Scoring::Softmax,
            biased: false,
            total_scale: match (given.shared, mixing.unwrap_or("average")) {
                (Shared::Plain, "average") => 0.5,
                _ => 1.0,
            },
            ..given
        });
        Ok(config)
    },
    names: |_| glm4_moe::NAMES,
    gguf: gguf("cohere2moe", |file| {
        file.like(FAMILY.config, &[("logit_scale", "logit_scale")])
    }),
};
