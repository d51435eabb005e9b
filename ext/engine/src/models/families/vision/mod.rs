//! Vision towers.

mod clip_vision;
mod dinov2;
pub mod idefics3_vision;
pub mod qwen2_vl_vision;
pub mod siglip_vision;
mod vit;

use super::*;

pub const FAMILIES: &[Family<VisionConfig>] = &[
    clip_vision::FAMILY,
    siglip_vision::FAMILY,
    vit::FAMILY,
    dinov2::FAMILY,
    idefics3_vision::FAMILY,
    qwen2_vl_vision::FAMILY,
];
