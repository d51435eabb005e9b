use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "bitnet",
    matches: types(&["bitnet"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.sub_norms = true;
        Ok(config)
    },
    names: |_| Names {
        attention_sub_norm: "self_attn.attn_sub_norm",
        mlp_sub_norm: "mlp.ffn_sub_norm",
        ..LLAMA
    },
    gguf: gguf("bitnet", |file| file.like(FAMILY.config, &[])),
};
