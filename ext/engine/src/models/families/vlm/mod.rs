//! Vision-language models.

mod aya_vision;
mod cohere2_vision;
pub mod colmodernvbert;
mod deepseek_vl;
mod fast_vlm;
mod from_gguf;
mod from_json;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4v;
mod got_ocr2;
mod idefics2;
mod idefics3;
mod internvl;
mod janus;
mod lfm2_vl;
mod llama4;
mod llava;
mod llava_next;
mod llava_onevision;
mod minicpmv;
mod mistral3;
mod mmproj_words;
mod ovis2;
mod paddleocr_vl;
mod paligemma;
mod qwen2_vl;
mod qwen3_vl;

use super::vision::{
    glm4v_vision, idefics2_vision, idefics3_vision, janus_vision, llama4_vision, ovis2_vision,
    paddleocr_vl_vision, qwen2_vl_vision, qwen3_vl_vision, siglip_vision,
};
use super::*;

use from_gguf::{gemma_gguf, llava_gguf, qwen3_gguf, qwen_gguf, tiled_gguf};
use from_json::{
    deep_layers, gemma_config, in_lines, llava_config, means, own_config, resampler, video,
    vlm_config, with_marker,
};
use mmproj_words::{
    gemma4_gguf, glm4v_gguf, internvl_gguf, janus_gguf, lfm2_gguf, llama4_gguf, minicpm_gguf,
    paddleocr_gguf, pixtral_gguf,
};

pub const FAMILIES: &[Family<VlmConfig>] = &[
    llava::FAMILY,
    llava_next::FAMILY,
    llava_onevision::FAMILY,
    fast_vlm::FAMILY,
    idefics3::FAMILY,
    qwen2_vl::FAMILY,
    qwen3_vl::FAMILY,
    mistral3::FAMILY,
    minicpmv::FAMILY,
    paddleocr_vl::FAMILY,
    internvl::FAMILY,
    aya_vision::FAMILY,
    deepseek_vl::FAMILY,
    janus::FAMILY,
    glm4v::FAMILY,
    lfm2_vl::FAMILY,
    got_ocr2::FAMILY,
    ovis2::FAMILY,
    gemma3::FAMILY,
    gemma3n::FAMILY,
    gemma4::FAMILY,
    paligemma::FAMILY,
    idefics2::FAMILY,
    cohere2_vision::FAMILY,
    llama4::FAMILY,
];

/// A family as `mmproj` files have it, by their projectors.
const fn mmproj(
    projectors: &'static str,
    config: fn(&GgufFile<'_>) -> Result<VlmConfig>,
) -> Option<Gguf<VlmConfig>> {
    gguf_named(projectors, config, |config| config.tower.names)
}

/// The names of a checkpoint's vision tower.
fn tower_names(config: Option<&VlmConfig>) -> Names {
    config.map_or(Names::NONE, |config| config.tower.names)
}
