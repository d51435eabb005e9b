use super::latent_shared::{latent, NAMES};
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "deepseek_v2",
    matches: types(&["deepseek_v2"]),
    config: |raw| {
        let mut config = latent(raw, &Usual::LLAMA, true)?;
        let experts = sigmoid_experts(raw, config.layer_count)?;
        let grouped = raw.opt_string("topk_method")? == Some("group_limited_greedy");
        let groups = experts.groups.filter(|_| grouped);
        config.experts = Some(Experts {
            scoring: Scoring::Softmax,
            normalize: false,
            biased: false,
            groups: groups.map(|groups| Groups {
                best_of: 1,
                left_out: 0.0,
                ..groups
            }),
            ..experts
        });
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};
