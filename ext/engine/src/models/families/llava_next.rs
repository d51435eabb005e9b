use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "llava_next",
    matches: |raw| is_type(raw, &["llava_next"]),
    config: |raw| {
        let config = llava_sight(raw, |activation| ConnectorConfig::Lines { activation })?;
        match config.whole {
            false => Ok(config),
            true => Err(Error::unsupported(
                raw.file(),
                "vision_feature_select_strategy: full is not supported where images are cut into tiles",
            )),
        }
    },
    names: |config| config.tower.names,
    gguf: None,
};
