use super::*;

/// Mistral 3, and LightOnOCR, whose images have no tokens between their lines.
pub const FAMILY: Family<VlmConfig> = Family {
    name: "mistral3",
    matches: types(&["mistral3", "lighton_ocr"]),
    config: |raw| {
        let ocr = is_type(raw, &["lighton_ocr"]);
        let raw = with_marker(raw, if ocr { 151_655 } else { 10 });
        let raw = raw.with_defaults(json!({"vision_feature_layer": -1}));
        let edge = raw.opt_usize_in("spatial_merge_size", 1..=64)?.unwrap_or(2);
        let text = raw.opt_nested("text_config")?;
        let epsilon = match &text {
            Some(text) => number(text, "rms_norm_eps")?,
            None => None,
        };
        let mut config = in_lines(llava_config(&raw, Layout::Line)?, edge);
        if ocr {
            config.connector.layout = Layout::View;
            config.spelling = Spelling::Marker;
            config.multiple = None;
        }
        config.connector.norm = Some(NormConfig::new(NormKind::Rms, epsilon.unwrap_or(1e-5)));
        config.connector.gather = Gather::Blocks { edge };
        config.connector.merges = true;
        Ok(config)
    },
    names: |config| {
        Names {
        projector_norm: "multi_modal_projector.norm|vision_projection.norm",
        projector_merge: "multi_modal_projector.patch_merger.merging_layer|vision_projection.patch_merger.merging_layer",
        projector_up: "multi_modal_projector.linear_1|vision_projection.linear_1",
        projector_down: "multi_modal_projector.linear_2|vision_projection.linear_2",
        ..tower_names(config)
    }
    },
    gguf: mmproj("pixtral|lightonocr", pixtral_gguf),
};
