use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "wav2vec2-bert",
    matches: types(&["wav2vec2-bert"]).or_classes(&["Wav2Vec2Bert"]),
    config: |raw| {
        let raw = &raw.clone().with_defaults(json!({
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_act": "swish",
            "layer_norm_eps": 1e-5, "vocab_size": 32, "feature_projection_input_dim": 160, "pad_token_id": 0,
            "position_embeddings_type": "relative_key", "left_max_position_embeddings": 64,
            "right_max_position_embeddings": 8, "conv_depthwise_kernel_size": 31,
        }));
        let kernel = raw.usize_in("conv_depthwise_kernel_size", 1..=1 << 12)?;
        let conformer = ConformerConfig {
            kernel,
            before: kernel - 1,
            norm: DepthwiseNorm::Frames,
            positions: wav2vec2_bert_positions(raw)?,
        };
        let inputs = raw.usize_in("feature_projection_input_dim", WIDTH)?;
        let mut config =
            conformer_like(raw, "wav2vec2-bert", StemConfig::Rows { inputs }, conformer)?;
        config.encoder.relative = rotated_states(raw, config.encoder.head_size)?;
        let activation = raw.opt_string("adapter_act")?.unwrap_or("relu");
        let activation = config::activation(activation, raw.file())?;
        config.adapter = state_adapter(raw, AdapterKind::Attention { activation })?;
        Ok(config)
    },
    names: |_| WAV2VEC2_BERT,
    gguf: None,
};
