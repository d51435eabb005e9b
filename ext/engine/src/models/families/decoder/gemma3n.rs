use super::*;
use crate::models::decoder::sparsity::portion;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "gemma3n",
    matches: types(&["gemma3n", "gemma3n_text"]),
    config: |raw| {
        let raw = &text_of(raw)?.with_defaults(json!({
            "rope_theta": 1_000_000.0, "final_logit_softcapping": 30.0,
        }));
        let mut config = gemma_shared::with_layer_inputs(raw, 256)?;
        sliding(raw, &mut config, 5)?;
        config.share_last(raw.opt_usize("num_kv_shared_layers")?.unwrap_or(15));
        config.lanes = Some(LaneConfig {
            count: raw.opt_usize("altup_num_inputs")?.unwrap_or(4),
            active: raw.opt_usize("altup_active_idx")?.unwrap_or(0),
            scaled: flag(raw, "altup_correct_scale", true)?,
        });
        let closed = raw.opt_numbers("activation_sparsity_pattern")?;
        let closed = closed.unwrap_or_default().into_iter();
        config.sparsity = closed.map(|portion| portion as f32).collect();
        Ok(gemma_shared::with_local_theta(config, local_theta(raw)?))
    },
    names: |_| Names {
        lane_into: "altup_projections.{}",
        lane_out: "altup_unembed_projections.{}",
        lane_router: "altup.modality_router",
        lane_router_norm: "altup.router_norm",
        lane_prediction: "altup.prediction_coefs",
        lane_correction: "altup.correction_coefs",
        lane_scale: "altup.correct_output_scale",
        narrow_down: "laurel.linear_left",
        narrow_up: "laurel.linear_right",
        narrow_norm: "laurel.post_laurel_norm",
        ..gemma_shared::LAYER_INPUTS
    },
    gguf: gguf_named(
        "gemma3n",
        |file| {
            let also = [
                ("altup.num_inputs", "altup_num_inputs"),
                ("altup.active_idx", "altup_active_idx"),
            ];
            let scales = file
                .metadata()
                .opt_f32s(&file.key("activation_sparsity_scale"))?;
            let scales = scales.unwrap_or_default().into_iter();
            let mut config = file.like(FAMILY.config, &also)?;
            config.sparsity = scales.map(portion).collect();
            Ok(config)
        },
        |_| GGUF_LAYER_INPUTS,
    ),
};
