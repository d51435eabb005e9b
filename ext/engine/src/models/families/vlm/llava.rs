use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "llava",
    matches: types(&["llava"]),
    config: |raw| llava_config(raw, |activation| ConnectorConfig::Mlp { activation }),
    names: tower_names,
    // LLaVA-NeXT's too.
    gguf: Some(Gguf {
        architecture: "mlp",
        config: llava_gguf,
        names: |config| config.tower.names,
    }),
};
