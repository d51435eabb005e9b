use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hrm_text",
    matches: types(&["hrm_text"]),
    config: |raw| {
        let stacks = Stacks {
            layers: raw.usize_in(["num_layers_per_stack", "num_hidden_layers"], LAYERS)?,
            low_cycles: raw.usize_in("L_cycles", LAYERS)?,
            high_cycles: raw.usize_in("H_cycles", LAYERS)?,
        };
        let runs = stacks.layers * (stacks.low_cycles + 1) * stacks.high_cycles;
        let given = raw.clone().with(json!({"num_hidden_layers": runs}));
        let mut config = decoder(&given, &Usual::LLAMA)?;
        config.stacks = Some(stacks);
        config.norm = config.norm.plain();
        config.output_gate = OutputGate::Sigmoid;
        config.embedding_scale = match number(raw, "embedding_scale")? {
            Some(scale) => scale,
            None => 1.0 / number(raw, "initializer_range")?.unwrap_or(0.02),
        };
        Ok(config)
    },
    names: |_| Names {
        layer: "L_module.layers.{}.",
        high_layer: "H_module.layers.{}.",
        low_start: "z_L_init",
        gate_qkv: "attn.gqkv_proj",
        attention_output: "attn.o_proj|self_attn.o_proj",
        output_gate: "self_attn.gate_proj",
        ..LLAMA
    },
    gguf: gguf_named(
        "hrm_text",
        |file| {
            let words = [
                ("hrm.layers_per_stack", "num_layers_per_stack"),
                ("hrm.h_cycles", "H_cycles"),
                ("hrm.l_cycles", "L_cycles"),
            ];
            // Files without a factor multiply by none.
            let said = json!({"embedding_scale": 1.0});
            file.like_with(FAMILY.config, &words, said)
        },
        |config| Names {
            high_layer: GGUF.layer,
            first_high_layer: config.stacks.map_or(0, |stacks| stacks.layers),
            low_start: "hrm.z_l_init",
            ..GGUF
        },
    ),
};
