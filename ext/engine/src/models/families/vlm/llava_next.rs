use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "llava_next",
    matches: types(&["llava_next"]),
    config: |raw| llava_sight(raw, |activation| ConnectorConfig::Lines { activation }),
    names: |config| config.tower.names,
    gguf: None,
};
