use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "cwm",
    matches: types(&["cwm"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        let window = raw.opt_usize("sliding_window")?;
        config.windows = windows(raw, config.layer_count, window, |layer| layer % 4 != 0)?;
        Ok(config)
    },
    names: |_| LLAMA,
    gguf: None,
};
