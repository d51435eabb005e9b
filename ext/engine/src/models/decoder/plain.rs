//! What a decoder is where nothing else is said.

use super::config::{
    DecoderConfig, Factors, ImageAttention, OutputGate, QueryKeyNorm, Residual, ResidualWeights,
    RowOrder, Sinks,
};
use crate::models::config::{
    Mlp, NormConfig, NormPlacement, Positions, QkvLayout, Relative, RopeConfig,
};

/// The sizes that every decoder has.
#[derive(Clone, Copy, Debug)]
pub struct DecoderSizes {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layer_count: usize,
    pub head_count: usize,
    pub kv_head_count: usize,
    pub head_size: usize,
    pub max_positions: usize,
}

impl DecoderConfig {
    /// Llama's mechanisms, which files of every format start from.
    pub fn plain(sizes: DecoderSizes, norm: NormConfig, mlp: Mlp, rope: RopeConfig) -> Self {
        let DecoderSizes {
            vocab_size,
            hidden_size,
            layer_count,
            head_count,
            kv_head_count,
            head_size,
            max_positions,
        } = sizes;
        Self {
            architecture: String::new(),
            vocab_size,
            hidden_size,
            layer_count,
            stacks: None,
            head_count,
            kv_head_count,
            head_size,
            shapes: Vec::new(),
            sublayers: Vec::new(),
            state: None,
            state_norm_placement: None,
            shared_blocks: None,
            value_norm: false,
            value_scale: 1.0,
            layer_input_size: None,
            layer_input_padding: 0,
            layer_scale: false,
            lanes: None,
            sparsity: Vec::new(),
            max_positions,
            norm,
            norm_placement: NormPlacement::Pre,
            unnormed_first: false,
            final_norm: true,
            final_epsilon: None,
            residual: Residual::Sequential,
            residual_weights: ResidualWeights::None,
            query_key_norm: QueryKeyNorm::None,
            norm_after_rope: false,
            embedding_norm: None,
            embedding_size: hidden_size,
            head_transform: None,
            query_experts: false,
            differential: false,
            norm_gate: None,
            sub_norms: false,
            qkv: QkvLayout::Stacked,
            latent: None,
            indexer: None,
            qkv_limit: None,
            sinks: Sinks::None,
            temperature: None,
            output_gate: OutputGate::None,
            xielu: false,
            mlp,
            experts: None,
            positions: Positions::None,
            relative: Relative::Rope(rope),
            bidirectional_images: ImageAttention::Causal,
            bidirectional_prompts: false,
            bidirectional: false,
            windows: vec![None; layer_count],
            chunked: false,
            attention_scale: 1.0 / (head_size as f32).sqrt(),
            attention_soft_cap: None,
            logit_soft_cap: None,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            factors: Factors::NONE,
            logit_scale: 1.0,
            tied_head: false,
            row_order: RowOrder::Same,
        }
    }
}
