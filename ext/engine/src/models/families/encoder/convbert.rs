use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "convbert",
    matches: types(&["convbert"]).or_classes(&["ConvBert"]),
    config: |raw| {
        let mut config = encoder(raw, "convbert")?;
        let ratio = raw.opt_usize_in("head_ratio", HEADS)?.unwrap_or(2);
        config.head_count = (config.head_count / ratio).max(1);
        config.head_size = config.hidden_size / config.head_count / 2;
        let kernel = raw.opt_usize_in("conv_kernel_size", 1..=1023)?.unwrap_or(9);
        config.mechanisms.mixer = Mixer::Convolutions { kernel };
        config.embedding_size = opt_width(raw, "embedding_size")?.unwrap_or(config.hidden_size);
        config.heads_on_top.sequence_activation = config.mlp.activation;
        config.heads_on_top.masked_activation = Activation::Gelu;
        Ok(config)
    },
    names: |_| Names {
        embedding_projection: "embeddings_project",
        key_depthwise: "attention.self.key_conv_attn_layer.depthwise",
        key_pointwise: "attention.self.key_conv_attn_layer.pointwise",
        key_convolution_bias: "attention.self.key_conv_attn_layer.bias",
        kernel_maker: "attention.self.conv_kernel_layer",
        convolved_value: "attention.self.conv_out_layer",
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        masked_dense: "generator_predictions.dense",
        masked_norm: "generator_predictions.LayerNorm",
        masked_output: "generator_lm_head",
        masked_bias: "generator_lm_head.bias",
        ..BERT
    },
    gguf: None,
};
