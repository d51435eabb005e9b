use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "eurobert",
    matches: types(&["eurobert"]).or_classes(&["EuroBert"]),
    config: |raw| {
        let mut config = bidirectional_llama(raw, "eurobert", 1e-5)?;
        config.heads_on_top.pooling = match raw.opt_string("classifier_pooling")? {
            Some("bos") => SequencePooling::First,
            Some("mean") => SequencePooling::Mean,
            _ => SequencePooling::MeanLogits,
        };
        config.heads_on_top.sequence_activation = Activation::Gelu;
        config.heads_on_top.masked_tied = flag(raw, "tie_word_embeddings", false)?;
        Ok(config)
    },
    names: |_| BIDIRECTIONAL_LLAMA,
    gguf: None,
};
