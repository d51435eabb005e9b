use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "internvl",
    matches: types(&["internvl"]),
    config: |raw| {
        let raw = with_marker(raw, 151_667).with_defaults(json!({"vision_feature_layer": -1}));
        let ratio = raw.opt_f64("downsample_ratio")?.unwrap_or(0.5);
        let edge = (1.0 / ratio) as usize;
        if !(1..=64).contains(&edge) {
            let reason = format!("\"downsample_ratio\" is {ratio}");
            return Err(Error::corrupt(raw.file(), reason));
        }
        let read = raw.opt_integers("vision_feature_layer")?;
        let last = read.is_some_and(|layers| layers == [-1]);
        let config = llava_config(&raw, Layout::All)?;
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            gathered_norm: Some(NormConfig::new(NormKind::Layer, 1e-5)),
            ..config.connector
        };
        Ok(VlmConfig {
            connector,
            layers: if last { Vec::new() } else { config.layers },
            spelling: Spelling::Pattern(Pattern {
                start: "<img>",
                end: "</img>",
                ..Pattern::MARKERS
            }),
            ..config
        })
    },
    names: |config| Names {
        projector_norm: "multi_modal_projector.layer_norm",
        projector_up: "multi_modal_projector.linear_1",
        projector_down: "multi_modal_projector.linear_2",
        ..tower_names(config)
    },
    gguf: mmproj("internvl", internvl_gguf),
};
