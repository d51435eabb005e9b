use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "whisper",
    matches: types(&["whisper"]).or_classes(&["Whisper"]),
    config: |raw| {
        let whisper = BartLike {
            family: "whisper",
            positions: Positions::Learned,
            norm_placement: NormPlacement::Pre,
            activation: "gelu",
        };
        let (encoder, mut decoder) = bart_stacks(raw, &whisper)?;
        // As transformers, which takes no notice of scale_embedding here.
        decoder.embedding_scale = 1.0;
        Ok(SpeechConfig {
            family: "whisper",
            stem: StemConfig::Bands {
                bins: raw.usize_in("num_mel_bins", WIDTH)?,
                states: raw.usize_in("max_source_positions", POSITIONS)?,
            },
            encoder,
            conformer: None,
            adapter: None,
            output: SpeechOutput::Text {
                decoder: Box::new(DecoderShape {
                    stack: decoder,
                    vocab_size: raw.usize_in("vocab_size", VOCABULARY)?,
                    output_scale: 1.0,
                    few_rows: true,
                }),
                names: Box::new(WHISPER_DECODER),
            },
        })
    },
    names: |_| WHISPER_ENCODER,
    gguf: None,
};
