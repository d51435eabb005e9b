use super::latent_shared::{interleaved, NAMES};
use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "deepseek_v3",
    matches: types(&["deepseek_v3"]),
    config,
    names: |_| NAMES,
    gguf: gguf("deepseek2", from_gguf),
};

pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = interleaved(raw, &Usual::LLAMA)?;
    config.experts = Some(sigmoid_experts(raw, config.layer_count)?);
    Ok(config)
}

/// Files of the second generation do not say what their router is, and those without experts nothing of them.
fn from_gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    if file.opt_size("expert_count")?.unwrap_or(0) == 0 {
        return file.like(|raw| interleaved(raw, &Usual::LLAMA), &[]);
    }
    let said = json!({"norm_topk_prob": file.flag("expert_weights_norm", false)?});
    let mut config = file.like_with(config, &[], said)?;
    if file.opt_size("expert_gating_func")?.unwrap_or(0) < 2 {
        config.experts = config.experts.map(deepseek_v2::softmax);
    }
    Ok(config)
}
