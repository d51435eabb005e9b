use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "xlm",
    matches: types(&["xlm", "flaubert"]).or_classes(&["XLMModel", "XLMWith", "Flaubert"]),
    config: |raw| {
        let sizes = raw.usize_in(["emb_dim", "hidden_size"], WIDTH)?;
        let raw = &raw.clone().with_defaults(json!({"hidden_size": sizes}));
        let mut config = encoder(raw, "xlm")?;
        refuse(raw, &["asm"])?;
        config.token_types = 0;
        config.mlp.activation = if flag(raw, "gelu_activation", true)? {
            Activation::Gelu
        } else {
            Activation::Relu
        };
        if flag(raw, "pre_norm", false)? {
            config = pre_norm(config);
        }
        if flag(raw, "causal", false)? {
            for layer in &mut config.layers {
                layer.attention = AttentionKind::Causal;
            }
        }
        config.heads_on_top.pooling = match raw.opt_string("summary_type")? {
            None | Some("first") => SequencePooling::First,
            Some("mean") => SequencePooling::Mean,
            Some(_) => SequencePooling::Last { padding: None },
        };
        if let Some(name) = raw
            .opt_string("summary_activation")?
            .filter(|name| !name.is_empty())
        {
            config.heads_on_top.sequence_last = activation(name, raw.file())?;
        }
        Ok(config)
    },
    names: |_| XLM,
    gguf: None,
};
