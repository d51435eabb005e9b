use super::*;

const USUAL: Usual = Usual {
    activation: Activation::GeluTanh,
    rotated: 0.5,
    ..Usual::LAYER_NORM
};

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "phi",
    matches: types(&["phi"]),
    config: |raw| {
        refuse(raw, &["qk_layernorm"])?;
        Ok(parallel(decoder(raw, &USUAL)?))
    },
    names: |_| Names {
        final_norm: "final_layernorm",
        attention_output: "self_attn.dense",
        up: "mlp.fc1",
        down: "mlp.fc2",
        ..LLAMA
    },
    gguf: gguf("phi2", |file| Ok(parallel(file.decoder(&USUAL)?))),
};
