use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "audio-spectrogram-transformer",
    matches: types(&["audio-spectrogram-transformer"]).or_classes(&["ASTModel", "ASTFor"]),
    config: |raw| {
        let raw = &raw.clone().with_defaults(json!({
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": "gelu",
            "layer_norm_eps": 1e-12, "patch_size": 16, "frequency_stride": 10, "time_stride": 10,
            "max_length": 1024, "num_mel_bins": 128,
        }));
        let stem = PatchStem {
            bins: raw.usize_in("num_mel_bins", WIDTH)?,
            frames: raw.usize_in("max_length", POSITIONS)?,
            size: raw.usize_in("patch_size", WIDTH)?,
            band_stride: raw.usize_in("frequency_stride", WIDTH)?,
            frame_stride: raw.usize_in("time_stride", WIDTH)?,
        };
        Ok(SpeechConfig {
            output: SpeechOutput::States,
            encoder: spectrogram_stack(raw)?,
            family: "audio-spectrogram-transformer",
            stem: StemConfig::Patches(stem),
            conformer: None,
            adapter: None,
        })
    },
    names: |_| SPECTROGRAM_TRANSFORMER,
    gguf: None,
};
