use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "laguna",
    matches: types(&["laguna"]),
    config: |raw| {
        refuse(raw, &["moe_apply_router_weight_on_input"])?;
        let raw = &raw.clone().with_defaults(json!({
            "first_k_dense_replace": 1,
            "rope_parameters": {
                "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_theta": 10_000.0},
            },
        }));
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        let window = raw.opt_usize("sliding_window")?;
        config.windows = windows(raw, config.layer_count, window, |_| false)?;
        let heads = raw.opt_integers("num_attention_heads_per_layer")?;
        let heads = heads.unwrap_or_default().into_iter();
        let shape = |heads: i64| LayerShape {
            head_count: usize::try_from(heads).unwrap_or(0),
            ..config.shape(0)
        };
        config.shapes = heads.map(shape).collect();
        rotate_by_type(raw, &mut config)?;
        let per_head = |gating: &serde_json::Value| gating == &json!(true) || gating == "per-head";
        let per_head = raw.get("gating").is_none_or(per_head);
        config.output_gate = OutputGate::Softplus { per_head };
        config.experts = Some(Experts {
            normalize: true,
            scale: number(raw, "moe_routed_scaling_factor")?.unwrap_or(1.0),
            soft_cap: number(raw, "moe_router_logit_softcapping")?.filter(|cap| *cap > 0.0),
            groups: None,
            shared: Shared::Plain,
            ..sigmoid_experts(raw, config.layer_count)?
        });
        Ok(config)
    },
    names: |_| Names {
        output_gate: "self_attn.g_proj",
        router_bias: "mlp.experts.e_score_correction_bias",
        ..LLAMA
    },
    gguf: gguf("laguna", |file| {
        let (layers, heads) = (file.layer_count()?, file.sizes("attention.head_count")?);
        let gates = file.shape("blk.0.attn_gate.weight").unwrap_or_default();
        // Files do not say which layers slide: all but every fourth, from the first on.
        let slides = file.opt_size("attention.sliding_window")?.unwrap_or(0) > 0;
        let kind = |layer| usize::from(slides && layer % 4 != 0);
        let kinds = (0..layers).map(|layer| ["full_attention", "sliding_attention"][kind(layer)]);
        let said = json!({
            "layer_types": kinds.collect::<Vec<_>>(),
            "num_attention_heads_per_layer": (heads.len() == layers).then_some(&heads),
            "gating": gates.first() == heads.first(), "rope_parameters": file.ropes_by_type()?,
        });
        let scale = [("expert_weights_scale", "moe_routed_scaling_factor")];
        file.like_with(FAMILY.config, &scale, said)
    }),
};
