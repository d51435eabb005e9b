//! Vision-language models.

mod aya_vision;
pub mod colmodernvbert;
mod deepseek_vl;
mod from_gguf;
mod from_json;
mod gemma3;
mod idefics3;
mod internvl;
mod llava;
mod llava_next;
mod llava_onevision;
mod mistral3;
mod paddleocr_vl;
pub mod paligemma;
mod qwen2_vl;
mod qwen3_vl;

use super::vision::{
    idefics3_vision, janus_vision, paddleocr_vl_vision, qwen2_vl_vision, qwen3_vl_vision,
    siglip_vision,
};
use super::*;

use from_gguf::{gemma_gguf, llava_gguf, qwen_gguf, tiled_gguf};
use from_json::{
    deep_layers, gemma_config, in_lines, llava_config, means, vlm_config, with_marker,
};

pub const FAMILIES: &[Family<VlmConfig>] = &[
    llava::FAMILY,
    llava_next::FAMILY,
    llava_onevision::FAMILY,
    idefics3::FAMILY,
    qwen2_vl::FAMILY,
    qwen3_vl::FAMILY,
    mistral3::FAMILY,
    paddleocr_vl::FAMILY,
    internvl::FAMILY,
    aya_vision::FAMILY,
    deepseek_vl::FAMILY,
    gemma3::FAMILY,
];

/// The names of a checkpoint's vision tower.
fn tower_names(config: Option<&VlmConfig>) -> Names {
    config.map_or(Names::NONE, |config| config.tower.names)
}
