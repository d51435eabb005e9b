use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "esm",
    matches: types(&["esm"]).or_classes(&["Esm"]),
    config: |raw| {
        let mut config = pre_norm(encoder(raw, "esm")?);
        let padding_id = raw.padding_id()?.unwrap_or(1);
        config.positions = Positions::LearnedAfterPadding { padding_id };
        if raw.opt_string("position_embedding_type")? == Some("rotary") {
            config = rotary(config, |config| rope(raw, config.head_size, 1.0, 10_000.0))?;
        }
        if flag(raw, "token_dropout", false)? {
            config.mechanisms.masked_token = token(raw, "mask_token_id")?;
        }
        config.mlp.activation = Activation::Gelu;
        config.heads_on_top = HeadConfigs::default();
        Ok(config)
    },
    names: |_| Names {
        embedding_norm: "embeddings.layer_norm",
        rope_frequencies: FREQUENCIES,
        attention_norm: "attention.LayerNorm",
        mlp_norm: "LayerNorm",
        final_norm: "encoder.emb_layer_norm_after",
        ..roberta::NAMES
    },
    gguf: None,
};

/// Once, or in every layer; transformers 5 writes an asterisk for its number.
const FREQUENCIES: &str = "rotary_embeddings.inv_freq\
    |encoder.layer.*.attention.self.rotary_embeddings.inv_freq\
    |encoder.layer.0.attention.self.rotary_embeddings.inv_freq";
