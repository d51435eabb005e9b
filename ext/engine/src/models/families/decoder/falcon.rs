use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "falcon",
    matches: types(&["falcon", "RefinedWeb", "RefinedWebModel"]),
    config: |raw| {
        refuse(raw, &["alibi"])?;
        let new = flag(raw, "new_decoder_architecture", false)?;
        let parallel = new || flag(raw, "parallel_attn", true)?;
        let two_norms = new && raw.opt_usize("num_ln_in_parallel_attn")? != Some(1);
        let mut config = grouped(decoder(raw, &Usual::LAYER_NORM)?);
        if !new && flag(raw, "multi_query", true)? {
            config.kv_head_count = 1;
        }
        config.residual = Residual::parallel(parallel, two_norms);
        config.tied_head = flag(raw, "tie_word_embeddings", true)?;
        Ok(config)
    },
    names: |_| GPT_NEOX.within("transformer."),
    gguf: gguf_named(
        "falcon",
        |file| {
            let mut config = grouped_gguf(file.decoder(&Usual::LAYER_NORM)?);
            config.residual = Residual::parallel(true, file.first_layer_has("attn_norm_2"));
            Ok(config)
        },
        |_| GGUF_FALCON,
    ),
};
