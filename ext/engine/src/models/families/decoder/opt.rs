use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "opt",
    matches: types(&["opt"]),
    config: |raw| {
        let usual = Usual {
            tied: true,
            activation: Activation::Relu,
            ..Usual::LAYER_NORM
        };
        let given = raw.clone().with(json!({"layer_norm_eps": 1e-5}));
        let mut config = learned_from(decoder(&given, &usual)?, 2);
        config.norm.weighted = flag(raw, "layer_norm_elementwise_affine", true)?;
        config.final_norm = !flag(raw, "_remove_final_layer_norm", false)?;
        if !flag(raw, "do_layer_norm_before", true)? {
            config.norm_placement = NormPlacement::Post;
            config.final_norm = false;
        }
        let width = raw.opt_usize_in("word_embed_proj_dim", WIDTH)?;
        if let Some(width) = width.filter(|&width| width != config.hidden_size) {
            config.embedding_size = width;
            config.head_transform = Some(HeadTransform {
                width,
                activation: None,
                norm: false,
            });
        }
        Ok(config)
    },
    names: |_| Names {
        body: "model.decoder.",
        embedding_projection: "project_in",
        position_embedding: "embed_positions",
        head_dense: "project_out",
        final_norm: "final_layer_norm",
        ..NAMES
    },
    gguf: None,
};

/// Of what fairseq's decoders call alike.
pub const NAMES: Names = Names {
    final_norm: "layer_norm",
    attention_norm: "self_attn_layer_norm",
    mlp_norm: "final_layer_norm",
    attention_output: "self_attn.out_proj",
    up: "fc1",
    down: "fc2",
    ..LLAMA
};
