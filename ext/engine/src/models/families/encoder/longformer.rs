use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "longformer",
    matches: types(&["longformer"]).or_classes(&["Longformer"]),
    config: |raw| {
        let mut config = after_padding(raw, "longformer")?;
        let windows = raw.opt_integers("attention_window")?.unwrap_or(vec![512]);
        for (number, layer) in config.layers.iter_mut().enumerate() {
            let window = windows.get(number).or(windows.last()).copied();
            let reach = usize::try_from(window.unwrap_or(512)).unwrap_or(512) / 2;
            let (left, right) = (reach, reach);
            layer.attention = AttentionKind::Window { left, right };
        }
        let separator = token(raw, "sep_token_id")?;
        config.mechanisms.sees_all = SeesAll::ByTask { separator };
        Ok(config)
    },
    names: |_| Names {
        global_query: "attention.self.query_global",
        global_key: "attention.self.key_global",
        global_value: "attention.self.value_global",
        ..roberta::NAMES
    },
    gguf: None,
};
