use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "llava",
    matches: types(&["llava"]),
    config: |raw| {
        let config = llava_config(raw, Layout::View)?;
        let tower = raw.nested("vision_config")?;
        Ok(match tower.model_type()? {
            Some("pixtral") => in_lines(config, 1),
            _ => config,
        })
    },
    names: tower_names,
    // LLaVA-NeXT's too.
    gguf: mmproj("mlp", llava_gguf),
};
