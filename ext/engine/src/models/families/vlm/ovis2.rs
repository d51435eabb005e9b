use super::*;

/// States of patches choose among the rows of a table, some of which stand for places instead.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "ovis2",
    matches: types(&["ovis2"]),
    config: |raw| {
        let raw = with_marker(raw, 151_665);
        let tower = raw.nested("vision_config")?;
        let tower = tower.with(json!({"model_type": ovis2_vision::FAMILY.name}));
        let inner = match tower.opt_string("tokenize_function")?.unwrap_or("softmax") {
            "softmax" => Inner::Words,
            "st_argmax" => Inner::Word,
            other => {
                let reason = format!("\"tokenize_function\" {other:?} is not supported");
                return Err(Error::unsupported(raw.file(), reason));
            }
        };
        let edge = tower.opt_usize_in("hidden_stride", 1..=64)?.unwrap_or(1);
        let count = tower.opt_usize_in("num_visual_indicator_tokens", 0..=1 << 16)?;
        let connector = ConnectorConfig {
            gather: Gather::Blocks { edge },
            inner: Some((NormConfig::new(NormKind::Layer, 1e-5), inner)),
            transposed: true,
            indicators: count.unwrap_or(5),
            layout: Layout::Indicated,
            ..ConnectorConfig::PLAIN
        };
        let ids = raw.opt_integers("visual_indicator_token_ids")?;
        Ok(VlmConfig {
            indicators: ids.unwrap_or_else(|| (151_666..=151_670).collect()),
            spelling: Spelling::Pattern(Pattern::OVIS),
            ..vlm_config(&raw, &tower, connector)?
        })
    },
    names: tower_names,
    gguf: None,
};
