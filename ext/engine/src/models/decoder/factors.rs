//! Factors of sublayers.

/// Factors on what goes into sublayers and on what comes out of them (Falcon H1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    pub attention_input: f32,
    pub attention_output: f32,
    /// On what an MLP's gate gives, before its activation.
    pub gate: f32,
    pub mlp_output: f32,
}

impl Factors {
    pub const NONE: Self = Self {
        attention_input: 1.0,
        attention_output: 1.0,
        gate: 1.0,
        mlp_output: 1.0,
    };
}
