use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "xmod",
    matches: types(&["xmod"]).or_classes(&["Xmod"]),
    config: |raw| {
        let mut config = after_padding(raw, "xmod")?;
        if flag(raw, "pre_norm", false)? {
            config = pre_norm(config);
        }
        config.mechanisms.adapter = Some(adapter(raw)?);
        Ok(config)
    },
    names: |_| Names {
        final_norm: "encoder.LayerNorm",
        adapter_norm: "output.adapter_layer_norm",
        adapter_down: "output.adapter_modules.<>.dense1",
        adapter_up: "output.adapter_modules.<>.dense2",
        ..roberta::NAMES
    },
    gguf: None,
};
