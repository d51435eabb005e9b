use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "llama4",
    matches: types(&["llama4"]),
    config: |raw| {
        let raw = with_marker(raw, 200_092);
        let tower = raw.nested("vision_config")?;
        let ratio = tower.opt_f64("pixel_shuffle_ratio")?.unwrap_or(0.5);
        let edge = (1.0 / ratio) as usize;
        if !(1..=64).contains(&edge) {
            let reason = format!("\"pixel_shuffle_ratio\" is {ratio}");
            return Err(Error::corrupt(raw.file(), reason));
        }
        let tower = tower.with(json!({"model_type": llama4_vision::FAMILY.name}));
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            third: Some(Activation::Gelu),
            ..ConnectorConfig::mlp(Activation::Gelu)
        };
        Ok(VlmConfig {
            spelling: Spelling::Separated,
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: tower_names,
    gguf: mmproj("llama4", llama4_gguf),
};
