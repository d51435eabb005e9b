//! Vision-language models.

mod from_gguf;
mod from_json;
mod gemma3;
mod idefics3;
mod llava;
mod llava_next;
mod qwen2_vl;

use super::vision::{idefics3_vision, qwen2_vl_vision, siglip_vision};
use super::*;

use from_gguf::{gemma_gguf, llava_gguf, qwen_gguf, tiled_gguf};
use from_json::{gemma_config, llava_config, vlm_config};

pub const FAMILIES: &[Family<VlmConfig>] = &[
    llava::FAMILY,
    llava_next::FAMILY,
    idefics3::FAMILY,
    qwen2_vl::FAMILY,
    gemma3::FAMILY,
];

/// The names of a checkpoint's vision tower.
fn tower_names(config: Option<&VlmConfig>) -> Names {
    config.map_or(Names::NONE, |config| config.tower.names)
}
