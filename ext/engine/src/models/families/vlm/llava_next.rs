use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "llava_next",
    matches: |raw| is_type(raw, &["llava_next"]),
    config: |raw| llava_sight(raw, |activation| ConnectorConfig::Lines { activation }),
    names: |config| config.tower.names,
    gguf: None,
};
