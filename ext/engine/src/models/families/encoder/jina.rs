use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "jina_bert",
    matches: types(&["bert", "jina_bert"])
        .or_classes(&["JinaBert"])
        .only_if(|raw| {
            let positions = raw.opt_string("position_embedding_type");
            matches!(positions, Ok(Some("alibi")))
        }),
    config: |raw| {
        let mut config = alibi(encoder(raw, "jina_bert")?);
        config.mlp = gated(raw, "feed_forward_type", config.mlp)?;
        Ok(config)
    },
    names: |_| Names {
        query_norm: "attention.self.layer_norm_q",
        key_norm: "attention.self.layer_norm_k",
        second_attention_norm: "layer_norm_1",
        gate_up: "mlp.gated_layers",
        up_gate: "mlp.up_gated_layer",
        up: "intermediate.dense|mlp.up_layer",
        down: "mlp.wo|mlp.down_layer|output.dense",
        mlp_norm: "mlp.layernorm|layer_norm_2|output.LayerNorm",
        ..BERT
    },
    gguf: Some(Gguf {
        architecture: "jina-bert-v2",
        config: |file| Ok(alibi(file.encoder("jina_bert")?)),
        names: |_| GGUF_ENCODER,
    }),
};

fn alibi(mut config: EncoderConfig) -> EncoderConfig {
    config.positions = Positions::None;
    config.relative = Relative::Alibi {
        slopes: alibi_slopes(config.head_count),
    };
    config
}
