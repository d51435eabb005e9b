//! Vision towers.

mod clip_vision;
mod dinov2;
pub mod glm4v_vision;
pub mod idefics2_vision;
pub mod idefics3_vision;
mod internvl_vision;
pub mod janus_vision;
pub mod llama4_vision;
pub mod ovis2_vision;
pub mod paddleocr_vl_vision;
mod pixtral;
pub mod qwen2_vl_vision;
pub mod qwen3_vl_vision;
pub mod siglip_vision;
mod vit;
mod yolos;

use super::*;

pub const FAMILIES: &[Family<VisionConfig>] = &[
    clip_vision::FAMILY,
    siglip_vision::FAMILY,
    vit::FAMILY,
    yolos::FAMILY,
    dinov2::FAMILY,
    idefics2_vision::FAMILY,
    llama4_vision::FAMILY,
    idefics3_vision::FAMILY,
    qwen2_vl_vision::FAMILY,
    qwen3_vl_vision::FAMILY,
    pixtral::FAMILY,
    glm4v_vision::FAMILY,
    ovis2_vision::FAMILY,
    paddleocr_vl_vision::FAMILY,
    internvl_vision::FAMILY,
    janus_vision::FAMILY,
];
