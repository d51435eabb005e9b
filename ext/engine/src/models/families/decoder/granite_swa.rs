use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granite_swa",
    matches: types(&["granite_swa"]),
    config: |raw| config(raw),
    names: |_| NAMES,
    gguf: None,
};

pub const NAMES: Names = Names {
    sinks: "self_attn.sinks",
    ..LLAMA
};

/// Granite with windows and sinks; a layer whose base is 0 does not rotate.
pub fn config(raw: &RawConfig) -> Result<DecoderConfig> {
    let mut config = decoder(raw, &Usual::TIED)?;
    multiplied(raw, &mut config)?;
    let window = raw.opt_usize("sliding_window")?;
    config.windows = windows(raw, config.layer_count, window, |layer| layer % 4 != 0)?;
    config.sinks = Sinks::All;
    let bases = raw.opt_numbers("layer_rope_theta")?.unwrap_or_default();
    if let Some(rope) = config.relative.rope_mut() {
        let with_base = |base: &f64| RopeConfig {
            theta: *base as f32,
            ..rope.clone()
        };
        let own = bases
            .iter()
            .map(|base| (*base != 0.0).then(|| with_base(base)));
        let own = own.collect();
        rope.by_layer = own;
        rope.layers = bases.iter().map(|base| *base != 0.0).collect();
    }
    Ok(config)
}
