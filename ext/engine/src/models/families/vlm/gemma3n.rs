use super::*;

pub const FAMILY: Family<VlmConfig> = Family {
    name: "gemma3n",
    matches: types(&["gemma3n"]),
    config: |raw| {
        let raw = raw.clone().with_defaults(json!({
            "image_token_id": 262_145, "boi_token_id": 255_999,
        }));
        let start = raw.usize_in("boi_token_id", 0..=u32::MAX as usize)?;
        Ok(VlmConfig {
            spelling: Spelling::Open {
                start: Token::Id(start as u32),
            },
            ..own_config(&raw, OwnConfig::Fused(raw.clone()))?
        })
    },
    names: tower_names,
    gguf: None,
};
