use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "codegen",
    matches: types(&["codegen"]),
    config: |raw| {
        let mut config = gptj::config(raw)?;
        config.qkv = QkvLayout::QueryValueKey { blocks: 4 };
        config.row_order = RowOrder::Grouped;
        Ok(config)
    },
    names: |_| Names {
        qkv: "attn.qkv_proj",
        ..gptj::NAMES
    },
    gguf: None,
};
