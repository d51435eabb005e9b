use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "distilbert",
    matches: types(&["distilbert"]).or_classes(&["DistilBert"]),
    config: |raw| {
        let mut config = encoder(raw, "distilbert")?;
        config.token_types = 0;
        config.heads_on_top.sequence_activation = Activation::Relu;
        Ok(config)
    },
    names: |_| Names {
        layer: "transformer.layer.{}.",
        query: "attention.q_lin",
        key: "attention.k_lin",
        value: "attention.v_lin",
        attention_output: "attention.out_lin",
        attention_norm: "sa_layer_norm",
        up: "ffn.lin1",
        down: "ffn.lin2",
        mlp_norm: "output_layer_norm",
        sequence_dense: "pre_classifier",
        masked_dense: "vocab_transform",
        masked_norm: "vocab_layer_norm",
        masked_output: "vocab_projector",
        masked_bias: "vocab_projector.bias",
        ..BERT
    },
    gguf: None,
};
