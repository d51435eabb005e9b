use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "gemma4",
    matches: types(&["gemma4"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "image_token_id": 258_880, "boi_token_id": 255_999, "eoi_token_id": 258_882,
        }));
        let id = |key: &str| -> Result<Token> {
            Ok(Token::Id(raw.usize_in(key, 0..=u32::MAX as usize)? as u32))
        };
        let tower = raw.nested("vision_config")?;
        Ok(VlmConfig {
            spelling: Spelling::Enclosed {
                start: id("boi_token_id")?,
                end: id("eoi_token_id")?,
            },
            video: video(&raw, 258_884, FrameKind::PatchBlocks)?,
            ..own_config(&raw, OwnConfig::Clipped(tower))?
        })
    },
    names: tower_names,
    gguf: mmproj("gemma4v", gemma4_gguf),
};
