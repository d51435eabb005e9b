use super::*;

/// Lines of tiles, of which there are not more than a number says; several images of a prompt are shown whole.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "llava_onevision",
    matches: types(&["llava_onevision"]),
    config: |raw| {
        let raw = with_marker(raw, 151_646).with_defaults(json!({
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9",
        }));
        let ratio = raw.string("vision_aspect_ratio")?;
        let most = ratio.strip_prefix("anyres_max_");
        let most = most.and_then(|most| most.parse().ok());
        if !most.is_some_and(|most: usize| (1..=1024).contains(&most)) {
            let reason =
                format!("\"vision_aspect_ratio\" is {ratio:?}, not anyres_max_ and a number");
            return Err(Error::unsupported(raw.file(), reason));
        }
        let config = llava_config(&raw, Layout::Joined)?;
        let connector = ConnectorConfig {
            most_tiles: most,
            ..config.connector
        };
        Ok(VlmConfig {
            connector,
            video: video(&raw, 151_647, FrameKind::Exact)?,
            ..config
        })
    },
    names: tower_names,
    gguf: None,
};
