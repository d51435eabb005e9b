use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "parakeet",
    matches: types(&["parakeet_ctc"]).or_classes(&["ParakeetForCTC"]),
    config: |raw| {
        let raw = &parakeet_settings(raw)?;
        let kernel = raw.usize_in("conv_kernel_size", 1..=1 << 12)?;
        let stem = GridStem {
            bins: raw.usize_in("num_mel_bins", WIDTH)?,
            channels: raw.usize_in("subsampling_conv_channels", WIDTH)?,
            kernel: raw.usize_in("subsampling_conv_kernel_size", 1..=64)?,
            stride: raw.usize_in("subsampling_conv_stride", 2..=16)?,
            layers: raw.usize_in("subsampling_factor", 2..=64)?.ilog2() as usize,
            scale: if flag(raw, "scale_input", true)? {
                (raw.usize_in("hidden_size", WIDTH)? as f32).sqrt()
            } else {
                1.0
            },
        };
        let conformer = ConformerConfig {
            kernel,
            before: (kernel - 1) / 2,
            norm: DepthwiseNorm::Batch,
            positions: ConformerPositions::Sines,
        };
        conformer_like(raw, "parakeet", StemConfig::Grid(stem), conformer)
    },
    names: |_| PARAKEET,
    gguf: None,
};
