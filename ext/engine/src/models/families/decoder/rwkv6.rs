use super::*;

/// RWKV 6 and 7, of GGUF files alone: their checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "rwkv6",
    matches: types(&[]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LAYER_NORM)?;
        config.relative = Relative::None;
        config.embedding_norm = Some(config.norm);
        config.sublayers = vec![Sublayers::STATE; config.layer_count];
        let every = raw.opt_usize("rescale_every")?.unwrap_or(0);
        if every > 0 {
            let stored = true;
            config.residual_weights = ResidualWeights::Halved { every, stored };
        }
        config.state = Some(StateKind::RwkvHeads(RwkvHeads {
            hidden: config.hidden_size,
            head_size: raw.usize_in("head_size", WIDTH)?,
            inner: raw.usize_in("intermediate_size", WIDTH)?,
            generation: if raw.string("model_type")? == "rwkv7" {
                Generation::Seven
            } else {
                Generation::Six
            },
        }));
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: gguf_named("rwkv6|rwkv7", state_gguf::rwkv, |_| state_gguf::RWKV),
};
