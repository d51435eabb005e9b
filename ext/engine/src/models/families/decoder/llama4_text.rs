use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "llama4_text",
    matches: types(&["llama4_text", "llama4"]),
    config: |raw| {
        let raw = text_of(raw)?;
        let mut config = decoder(&raw, &Usual::LLAMA)?;
        config.relative.interleave();
        let interval = raw.opt_usize("no_rope_layer_interval")?.unwrap_or(4);
        let given = raw.opt_integers("no_rope_layers")?.unwrap_or_default();
        let given = given.iter().map(|&rotates| rotates != 0).collect();
        config = rotated(config, interval, given);
        let chunk = raw.opt_usize("attention_chunk_size")?;
        let rotating = config.relative.rope().map(|rope| rope.layers.clone());
        let rotating = rotating.unwrap_or_default().into_iter();
        config.windows = rotating.map(|rotates| chunk.filter(|_| rotates)).collect();
        config.chunked = true;
        if flag(&raw, "use_qk_norm", true)? {
            config.query_key_norm = QueryKeyNorm::Plain;
            config.norm_after_rope = true;
        }
        if flag(&raw, "attn_temperature_tuning", true)? {
            let scale = number(&raw, "attn_scale")?.unwrap_or(0.1);
            let period = number(&raw, "floor_scale")?.unwrap_or(8192.0);
            config.temperature = Some(Temperature::steps(scale, 1.0, period).unrotated());
        }
        let step = raw.opt_usize("interleave_moe_layer_step")?.unwrap_or(1);
        let listed = raw.opt_integers("moe_layers")?;
        let raw = raw.with_defaults(json!({"decoder_sparse_step": step}));
        let mut experts = experts(&raw, config.layer_count, false, Shared::Plain)?;
        if let (Some(experts), Some(listed)) = (&mut experts, listed) {
            let layers = 0..config.layer_count as i64;
            experts.layers = layers.map(|layer| listed.contains(&layer)).collect();
        }
        config.experts = experts.map(|experts| Experts {
            scoring: Scoring::SigmoidOfChosen,
            weighs_input: true,
            layout: ExpertLayout::fused(true, false),
            ..experts
        });
        Ok(config)
    },
    names: |_| LLAMA4,
    gguf: gguf("llama4", from_gguf),
};

/// Files do not say how long chunks are, nor that the model of 128 experts normalizes no queries.
fn from_gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let largest = file.opt_size("expert_count")? == Some(128);
    let said = json!({"attention_chunk_size": 8192, "use_qk_norm": !largest});
    let also = [("interleave_moe_layer_step", "interleave_moe_layer_step")];
    file.like_with(FAMILY.config, &also, said)
}
