use super::*;

pub const FAMILY: Family<SightConfig> = Family {
    name: "llava",
    matches: types(&["llava"]),
    config: |raw| llava_sight(raw, |activation| ConnectorConfig::Mlp { activation }),
    names: |config| config.tower.names,
    // LLaVA-NeXT's too.
    gguf: Some(Gguf {
        architecture: "mlp",
        config: llava_gguf,
        names: |config| config.tower.names,
    }),
};
