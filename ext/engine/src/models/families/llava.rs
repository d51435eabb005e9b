use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "llava",
    matches: |raw| is_type(raw, &["llava"]),
    config: |raw| llava_sight(raw, |activation| ConnectorConfig::Mlp { activation }),
    names: |config| config.tower.names,
    gguf: None,
};
