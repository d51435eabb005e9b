use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "got_ocr2",
    matches: types(&["got_ocr2"]),
    config: |raw| {
        let raw = with_marker(raw, 151_859);
        let windows = raw.nested("vision_config")?;
        let windows = match windows.opt_integers("image_size")?.unwrap_or_default()[..] {
            [height, width] if height == width => windows.with(json!({"image_size": height})),
            _ => windows,
        };
        own_config(&raw, OwnConfig::Windowed(windows))
    },
    names: tower_names,
    gguf: None,
};
