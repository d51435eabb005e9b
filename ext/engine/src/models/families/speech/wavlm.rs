use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "wavlm",
    matches: types(&["wavlm"]).or_classes(&["WavLM"]),
    config: |raw| {
        let mut config = wav2vec2_like(raw, "wavlm")?;
        let size = |key: &str, usual: usize| -> Result<usize> {
            Ok(raw.opt_usize_in(key, POSITIONS)?.unwrap_or(usual))
        };
        config.encoder.relative = Relative::GatedBuckets {
            count: size("num_buckets", 320)?,
            farthest: size("max_bucket_distance", 800)?,
        };
        Ok(config)
    },
    names: |config| Names {
        relative_table: "encoder.layers.0.attention.rel_attn_embed",
        position_gate: "attention.gru_rel_pos_linear",
        position_gate_factor: "attention.gru_rel_pos_const",
        ..wav2vec2_names(config)
    },
    gguf: None,
};
