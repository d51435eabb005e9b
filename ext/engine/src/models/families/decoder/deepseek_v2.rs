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
            normalize: false,
            biased: false,
            ..softmax(Experts { groups, ..experts })
        });
        Ok(config)
    },
    names: |_| NAMES,
    gguf: None,
};

/// The router of the second generation, where the third has sigmoids; groups are as good as their best expert.
pub fn softmax(experts: Experts) -> Experts {
    Experts {
        scoring: Scoring::Softmax,
        groups: experts.groups.map(|groups| Groups {
            best_of: 1,
            left_out: 0.0,
            ..groups
        }),
        ..experts
    }
}
