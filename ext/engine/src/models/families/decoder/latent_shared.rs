//! What models with latent attention share.

use super::*;

/// Norms of latents have this epsilon, whatever a file says of others.
const EPSILON: f32 = 1e-6;

/// A decoder with latent attention. `rope_interleave` says which elements rotate together, where a file has it.
pub fn latent(raw: &RawConfig, usual: &Usual, interleaved: bool) -> Result<DecoderConfig> {
    let size = |key: &str| raw.usize_in(key, WIDTH);
    let rotated = size("qk_rope_head_dim")?;
    let given = raw.clone().with(json!({"head_dim": rotated}));
    let mut config = decoder(&given, usual)?;
    let latent = Latent {
        query_rank: raw.opt_usize_in("q_lora_rank", WIDTH)?,
        rank: size("kv_lora_rank")?,
        plain: size("qk_nope_head_dim")?,
        rotated,
        value_size: match raw.opt_usize_in("v_head_dim", WIDTH)? {
            Some(size) => size,
            None => config.hidden_size / config.head_count,
        },
        norm: NormConfig::new(NormKind::Rms, EPSILON),
        scale: 1.0,
        gated: false,
    };
    config.kv_head_count = 1;
    config.head_size = latent.width();
    let width = (latent.plain + latent.rotated) as f32;
    config.attention_scale = score_scale(raw)? / width.sqrt();
    config.latent = Some(latent);
    if let (Some(rope), true) = (config.relative.rope_mut(), interleaved) {
        rope.pairing = RopeKind::Interleaved;
    }
    Ok(config)
}

/// With DeepSeek V3's choices.
pub fn interleaved(raw: &RawConfig, usual: &Usual) -> Result<DecoderConfig> {
    latent(raw, usual, flag(raw, "rope_interleave", true)?)
}

pub const NAMES: Names = Names {
    query_down: "self_attn.q_a_proj",
    query_down_norm: "self_attn.q_a_layernorm",
    query_up: "self_attn.q_b_proj",
    latent_down: "self_attn.kv_a_proj_with_mqa",
    latent_norm: "self_attn.kv_a_layernorm",
    latent_up: "self_attn.kv_b_proj",
    ..glm4_moe::NAMES
};
