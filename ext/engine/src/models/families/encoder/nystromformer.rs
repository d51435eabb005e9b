use super::*;

pub const FAMILY: Family<EncoderConfig> = Family {
    name: "nystromformer",
    matches: types(&["nystromformer"]).or_classes(&["Nystromformer"]),
    config: |raw| {
        let mut config = encoder(raw, "nystromformer")?;
        let count = raw.opt_usize_in("num_landmarks", POSITIONS)?.unwrap_or(64);
        let length = raw
            .opt_usize_in("segment_means_seq_len", POSITIONS)?
            .unwrap_or(64);
        if count != length {
            if length % count != 0 {
                let reason = format!("{length} tokens can't be divided among {count} landmarks");
                return Err(Error::corrupt(raw.file(), reason));
            }
            config.mechanisms.mixer = Mixer::Landmarks { count };
            config.mechanisms.padded_to = Some(length);
            config.max_positions = Some(length);
        }
        config.positions = Positions::LearnedFrom { first: 2 };
        config.heads_on_top.sequence_activation = config.mlp.activation;
        Ok(config)
    },
    names: |_| Names {
        value_convolution: "attention.self.conv",
        sequence_dense: "classifier.dense",
        sequence_output: "classifier.out_proj",
        ..BERT
    },
    gguf: None,
};
