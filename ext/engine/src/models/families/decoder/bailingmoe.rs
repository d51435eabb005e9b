use super::*;

/// Of GGUF files alone: its checkpoints run code of their own.
pub const FAMILY: Family<DecoderConfig> = Family {
    name: "bailingmoe",
    matches: types(&[]),
    config: |raw| decoder(raw, &Usual::LLAMA),
    names: |_| LLAMA,
    gguf: gguf("bailingmoe", |file| {
        let read = |raw: &RawConfig| {
            let config = decoder(raw, &Usual::LLAMA)?;
            let experts = Experts {
                scoring: Scoring::Softmax,
                ..sigmoid_experts(raw, config.layer_count)?
            };
            let experts = Some(experts);
            Ok(DecoderConfig { experts, ..config })
        };
        file.like(read, &[]).map(neighbours)
    }),
};
