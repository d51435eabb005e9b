use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "megatron-bert",
    matches: types(&["megatron-bert"]).or_classes(&["MegatronBert"]),
    config: |raw| {
        require_positions(raw, "absolute")?;
        Ok(pre_norm(encoder(raw, "megatron-bert")?))
    },
    names: |_| PRE_NORM_BERT,
    gguf: None,
};
