use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "flint",
    matches: types(&["flint"]),
    config: |raw| {
        let mut config = decoder(raw, &Usual::LLAMA)?;
        config.query_key_norm = QueryKeyNorm::PerHead;
        config.sinks = Sinks::All;
        let (window, last) = (raw.opt_usize("sliding_window")?, config.layer_count - 1);
        config.windows = windows(raw, config.layer_count, window, |layer| {
            layer >= 2 && layer % 4 != 1 && layer != last
        })?;
        rotate_in_windows(&mut config);
        let raw = raw
            .clone()
            .with_defaults(json!({"mlp_only_layers": [0, 1]}));
        let given = experts(&raw, config.layer_count, true, Shared::Plain)?;
        config.experts = given.map(|experts| Experts {
            scoring: Scoring::Sigmoid,
            ..experts
        });
        Ok(config)
    },
    names: |_| Names {
        sinks: "self_attn.softmax_offset",
        ..LLAMA
    },
    gguf: None,
};
