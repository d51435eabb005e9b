use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "big_bird",
    matches: types(&["big_bird"]).or_classes(&["BigBird"]),
    config: |raw| {
        let raw = &raw.clone().with_defaults(json!({"hidden_act": "gelu_new"}));
        let mut config = encoder(raw, "big_bird")?;
        if raw.opt_string("attention_type")? != Some("original_full") {
            let size = raw.opt_usize_in("block_size", POSITIONS)?.unwrap_or(64);
            let random = raw
                .opt_usize_in("num_random_blocks", 0..=1024)?
                .unwrap_or(3);
            let from = (5 + 2 * random) * size + 1;
            config.mechanisms.mixer = Mixer::Blocks { size, random, from };
        }
        if flag(raw, "rescale_embeddings", false)? {
            config.embedding_scale = (config.hidden_size as f32).sqrt();
        }
        config.heads_on_top.sequence_activation = config.mlp.activation;
        config.heads_on_top.token_activation = config.mlp.activation;
        Ok(config)
    },
    names: |_| Names {
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        question_dense: "qa_classifier.intermediate.dense",
        question_second: "qa_classifier.output.dense",
        question_norm: "qa_classifier.output.LayerNorm",
        question_output: "qa_classifier.qa_outputs",
        ..BERT
    },
    gguf: None,
};
