use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "granite_swa",
    matches: types(&["granite_swa"]),
    config: |raw| config(raw),
    names: |_| NAMES,
    gguf: gguf("granite_swa", from_gguf),
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

/// With experts or without; a base of 0 stands for layers that do not rotate.
fn from_gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let rotated = file.flags("attention.rope_pattern", file.layer_count()?)?;
    let base = file.number("rope.freq_base")?.unwrap_or(10_000.0);
    let bases = rotated.map(|layers| -> Vec<f32> {
        let base = |rotates| if rotates { base } else { 0.0 };
        layers.into_iter().map(base).collect()
    });
    let read = match file.opt_size("expert_count")?.unwrap_or(0) {
        0 => FAMILY.config,
        _ => granitemoe_swa::FAMILY.config,
    };
    let also = [("logit_scale", "logits_scaling")];
    let said = json!({"layer_rope_theta": bases});
    file.like_with(read, &also, said).map(neighbours)
}
