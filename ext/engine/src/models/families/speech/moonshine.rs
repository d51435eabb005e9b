use super::*;

pub const FAMILY: Family<SpeechConfig> = Family {
    name: "moonshine",
    matches: types(&["moonshine"]).or_classes(&["MoonshineFor"]),
    config: |raw| {
        let (encoder, decoder) = (
            moonshine_stack(raw, "encoder")?,
            moonshine_stack(raw, "decoder")?,
        );
        Ok(SpeechConfig {
            family: "moonshine",
            stem: StemConfig::Waves,
            encoder,
            conformer: None,
            adapter: None,
            output: SpeechOutput::Text {
                decoder: Box::new(DecoderShape {
                    stack: decoder,
                    vocab_size: raw
                        .opt_usize_in("vocab_size", VOCABULARY)?
                        .unwrap_or(32_768),
                    output_scale: 1.0,
                    few_rows: true,
                }),
                names: Box::new(MOONSHINE_DECODER),
            },
        })
    },
    names: |_| MOONSHINE_ENCODER,
    gguf: None,
};
