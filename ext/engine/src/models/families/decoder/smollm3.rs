use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "smollm3",
    matches: types(&["smollm3"]),
    config: |raw| {
        let config = qwen2::windowed(raw, &Usual::TIED)?;
        let interval = raw.opt_usize("no_rope_layer_interval")?.unwrap_or(4);
        // The list says 1 where a layer rotates, whatever its name suggests.
        let given = raw.opt_integers("no_rope_layers")?.unwrap_or_default();
        let given = given.iter().map(|&rotates| rotates != 0).collect();
        Ok(rotated(config, interval, given))
    },
    names: |_| LLAMA,
    gguf: gguf("smollm3", |file| {
        let config = neighbours(file.decoder(&Usual::LLAMA)?);
        Ok(rotated(config, 4, Vec::new()))
    }),
};
