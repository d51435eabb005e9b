//! What the GGUF file of a tower says, in the words of `config.json`, so that the rules of a family stand once. Files
//! name no tokens, and say little of how images are prepared: a `preprocessor_config.json` beside them counts, if there
//! is one.

use serde_json::Value;

use super::from_gguf::{image_edge, prepared};
use super::*;

/// A family's reading of its `config.json`, and what such a file leaves out.
struct Words {
    config: fn(&RawConfig) -> Result<VlmConfig>,
    whole: Value,
    tower: Value,
    /// What files mean by GELU.
    gelu: &'static str,
    names: Names,
    marker: &'static str,
    images: Value,
}

const GELU: &str = "gelu";
const GELU_TANH: &str = "gelu_pytorch_tanh";

/// The towers of most files, and a connector whose products are numbered from 1.
const FROM_ONE: Names = Names {
    projector_norm: "mm.input_norm",
    projector_merge: "mm.patch_merger",
    projector_up: "mm.1",
    projector_down: "mm.2",
    ..GGUF_VISION
};

fn read(file: &GgufFile<'_>, words: Words) -> Result<VlmConfig> {
    let mut tower = json!({
        "hidden_size": file.size("embedding_length", WIDTH)?,
        "intermediate_size": file.size("feed_forward_length", WIDTH)?,
        "num_hidden_layers": file.size("block_count", LAYERS)?,
        "num_attention_heads": file.size("attention.head_count", HEADS)?,
        "patch_size": file.size("patch_size", 1..=1024)?,
        "image_size": image_edge(file)?,
    });
    let mut say = |values: Value| {
        if let (Some(all), Value::Object(values)) = (tower.as_object_mut(), values) {
            all.extend(values);
        }
    };
    say(words.tower);
    if let Some(epsilon) = file.number("attention.layer_norm_epsilon")? {
        say(json!({"layer_norm_eps": epsilon, "rms_norm_eps": epsilon}));
    }
    let flag = |key: &str| -> Result<bool> { Ok(file.metadata().opt_bool(key)?.unwrap_or(false)) };
    if flag("clip.use_gelu")? {
        say(json!({"hidden_act": words.gelu}));
    } else if flag("clip.use_silu")? {
        say(json!({"hidden_act": "silu"}));
    }
    let whole = RawConfig::new(file.path(), words.whole)?;
    let whole = whole.with(json!({"vision_config": tower, "image_token_id": 0}));
    let mut config = (words.config)(&whole)?;
    config.tower.names = words.names;
    config.tower.modules = words.names;
    config.marker = Token::Name(words.marker);
    config.images = Some(prepared(file, words.images)?);
    Ok(config)
}

/// How many blocks to a side become one row.
fn scale(file: &GgufFile<'_>, key: &str, usual: usize) -> Result<usize> {
    match file.opt_size(key)? {
        Some(_) => file.size(key, 1..=64),
        None => Ok(usual),
    }
}

/// InternVL's. Its largest towers have other norms, which have no biases.
pub fn internvl_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = image_edge(file)?;
    let rms = file.shape("v.blk.0.ln1.bias").is_none();
    let ratio = 1.0 / scale(file, "projector.scale_factor", 2)? as f64;
    read(
        file,
        Words {
            config: internvl::FAMILY.config,
            whole: json!({"model_type": "internvl", "downsample_ratio": ratio}),
            tower: json!({
                "model_type": "internvl_vision", "norm_type": if rms { "rms_norm" } else { "layer_norm" },
            }),
            gelu: GELU,
            names: Names {
                query_norm: "attn_q_norm",
                key_norm: "attn_k_norm",
                attention_scale: "ls1",
                mlp_scale: "ls2",
                projector_norm: "mm.model.mlp.0",
                projector_up: "mm.model.mlp.1",
                projector_down: "mm.model.mlp.3",
                ..GGUF_VISION
            },
            marker: "<IMG_CONTEXT>",
            images: json!({
                "image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": true,
                "size": {"height": edge, "width": edge},
                "min_patches": file.opt_size("preproc_min_tiles")?.unwrap_or(1),
                "max_patches": file.opt_size("preproc_max_tiles")?.unwrap_or(12),
            }),
        },
    )
}

/// Pixtral's, where blocks are merged Mistral 3's, and LightOnOCR's. The converter has put what rotates together side
/// by side.
pub fn pixtral_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let ocr = file.projector()? == "lightonocr";
    let merges = ocr || file.has("mm.patch_merger");
    let edge = scale(file, "spatial_merge_size", 1)?;
    let patch = edge * file.size("patch_size", 1..=1024)?;
    let longest = file.opt_size("preproc_image_size")?;
    let longest = longest.map_or_else(|| image_edge(file), Ok)?;
    let (config, kind): (fn(&RawConfig) -> Result<VlmConfig>, _) = if merges {
        let kind = if ocr { "lighton_ocr" } else { "mistral3" };
        (mistral3::FAMILY.config, kind)
    } else {
        (llava::FAMILY.config, "llava")
    };
    let mut config = read(
        file,
        Words {
            config,
            whole: json!({
                "model_type": kind, "spatial_merge_size": edge, "vision_feature_layer": -1,
                "vision_feature_select_strategy": "full",
            }),
            tower: json!({"model_type": "pixtral"}),
            gelu: GELU,
            names: FROM_ONE,
            marker: if ocr { "<|image_pad|>" } else { "[IMG]" },
            images: json!({
                "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": longest},
                "patch_size": {"height": patch, "width": patch},
            }),
        },
    )?;
    config.tower.config.encoder.relative.interleave();
    Ok(config)
}

/// LFM2-VL's, whose patches the converter has sorted by channels.
pub fn lfm2_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = scale(file, "projector.scale_factor", 2)?;
    let mut config = read(
        file,
        Words {
            config: lfm2_vl::FAMILY.config,
            whole: json!({
                "model_type": "lfm2_vl", "downsample_factor": edge,
                "projector_use_layernorm": file.has("mm.input_norm"),
            }),
            tower: json!({"model_type": "siglip2_vision_model"}),
            gelu: GELU_TANH,
            names: FROM_ONE,
            marker: "<image>",
            images: json!({
                "image_processor_type": "Lfm2VlImageProcessor", "downsample_factor": edge,
                "encoder_patch_size": file.size("patch_size", 1..=1024)?,
                "min_image_tokens": 64, "max_image_tokens": 256,
            }),
        },
    )?;
    config.tower.config.patch_order = PatchOrder::ByChannel;
    Ok(config)
}

/// Janus'.
pub fn janus_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = image_edge(file)?;
    read(
        file,
        Words {
            config: deepseek_vl::FAMILY.config,
            whole: json!({"model_type": "janus"}),
            tower: json!({"model_type": janus_vision::FAMILY.name}),
            gelu: GELU,
            names: Names {
                projector_up: "mm.0",
                projector_down: "mm.1",
                ..GGUF_VISION
            },
            marker: "<image_placeholder>",
            images: json!({
                "image_processor_type": "JanusImageProcessor", "size": {"height": edge, "width": edge},
            }),
        },
    )
}

/// Llama 4's. Newer files call the norm before the MLP by its name in the checkpoint.
pub fn llama4_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = image_edge(file)?;
    let ratio = 1.0 / scale(file, "projector.scale_factor", 2)? as f64;
    read(
        file,
        Words {
            config: llama4::FAMILY.config,
            whole: json!({"model_type": "llama4"}),
            tower: json!({"pixel_shuffle_ratio": ratio}),
            gelu: GELU,
            names: Names {
                mlp_norm: "attn_post_norm|ln2",
                projector_up: "mm.model.mlp.1",
                projector_down: "mm.model.mlp.2",
                projector_output: "mm.model.fc",
                ..GGUF_VISION
            },
            marker: "<|patch|>",
            images: json!({
                "image_processor_type": "Llama4ImageProcessor", "size": {"height": edge, "width": edge},
                "max_patches": 16,
            }),
        },
    )
}

/// GLM-4V's, and GLM-OCR's, whose patches rotate alone.
pub fn glm4v_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let learned = file.has("v.position_embd");
    let edge = scale(file, "spatial_merge_size", 2)?;
    read(
        file,
        Words {
            config: glm4v::FAMILY.config,
            whole: json!({"model_type": if learned { "glm4v" } else { "glm_ocr" }}),
            tower: json!({
                "depth": file.size("block_count", LAYERS)?, "spatial_merge_size": edge,
                "num_heads": file.size("attention.head_count", HEADS)?,
            }),
            gelu: GELU,
            names: Names {
                patch_norm: "v.norm_embd",
                query_norm: "attn_q_norm",
                key_norm: "attn_k_norm",
                projector_norm: "",
                projector_merge: "mm.patch_merger",
                projector_inner: "mm.model.fc",
                projector_inner_norm: "mm.post_norm",
                projector_gate: "mm.gate",
                projector_up: "mm.up",
                projector_down: "mm.down",
                ..GGUF_VISION
            },
            marker: "<|image|>",
            images: json!({
                "image_processor_type": "Glm4vImageProcessor", "merge_size": edge,
                "patch_size": file.size("patch_size", 1..=1024)?,
            }),
        },
    )
}

/// PaddleOCR-VL's.
pub fn paddleocr_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = scale(file, "spatial_merge_size", 2)?;
    let least = file.opt_size("image_min_pixels")?;
    let most = file.opt_size("image_max_pixels")?;
    read(
        file,
        Words {
            config: paddleocr_vl::FAMILY.config,
            whole: json!({"model_type": "paddleocr_vl"}),
            tower: json!({"spatial_merge_size": edge}),
            gelu: GELU_TANH,
            names: FROM_ONE,
            marker: "<|IMAGE_PLACEHOLDER|>",
            images: json!({
                "image_processor_type": "PaddleOCRVLImageProcessor", "merge_size": edge,
                "patch_size": file.size("patch_size", 1..=1024)?,
                "size": {
                    "shortest_edge": least.unwrap_or(28 * 28 * 130), "longest_edge": most.unwrap_or(28 * 28 * 1280),
                },
            }),
        },
    )
}

/// Gemma 4's. Shapes say what no key does of its heads and of the bounds of products.
pub fn gemma4_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let rows = |name: &str| -> Result<usize> {
        let name = format!("v.blk.0.{name}.weight");
        let rows = file
            .shape(&name)
            .and_then(|shape| shape.first().copied())
            .filter(|&rows| rows > 0);
        rows.ok_or_else(|| file.corrupt(format!("tensor {name} is missing or empty")))
    };
    let head = rows("attn_q_norm")?;
    let edge = scale(file, "projector.scale_factor", 3)?;
    let config = read(
        file,
        Words {
            config: gemma4::FAMILY.config,
            whole: json!({"model_type": "gemma4"}),
            tower: json!({
                "head_dim": head, "num_key_value_heads": rows("attn_k")? / head, "pooling_kernel_size": edge,
                "use_clipped_linears": file.shape("v.blk.0.attn_q.input_min").is_some(),
                "standardize": file.shape("v.std_bias").is_some(),
            }),
            gelu: GELU_TANH,
            names: GGUF_VISION,
            marker: "<|image|>",
            images: json!({
                "image_processor_type": "Gemma4ImageProcessor", "pooling_kernel_size": edge,
                "patch_size": file.size("patch_size", 1..=1024)?,
            }),
        },
    )?;
    Ok(VlmConfig {
        spelling: Spelling::Enclosed {
            start: Token::Name("<|image>"),
            end: Token::Name("<image|>"),
        },
        video: Some(VideoConfig {
            place: Token::Name("<|video|>"),
            frames: FrameKind::PatchBlocks,
            per_second: None,
        }),
        ..config
    })
}

/// MiniCPM-V 4.6's, whose windows stand behind the layer that files list like one with windows of its own.
pub fn minicpm_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let mode = match scale(file, "projector.scale_factor", 4)? {
        2 => "4x",
        4 => "16x",
        other => {
            let reason = format!("a projector of {other} patches to a side is not supported");
            return Err(Error::unsupported(file.path(), reason));
        }
    };
    let key = file.key("wa_layer_indexes");
    let behind = file.metadata().opt_i64s(&key)?.unwrap_or_default();
    let config = read(
        file,
        Words {
            config: minicpmv::FAMILY.config,
            whole: json!({
                "model_type": "minicpmv4_6", "downsample_mode": mode,
                "insert_layer_id": behind.first().copied().unwrap_or(6),
            }),
            tower: json!({}),
            gelu: GELU_TANH,
            names: GGUF_VISION,
            marker: "<|image_pad|>",
            images: json!({
                "image_processor_type": "MiniCPMV4_6ImageProcessor", "downsample_mode": mode,
                "scale_resolution": image_edge(file)?, "patch_size": file.size("patch_size", 1..=1024)?,
            }),
        },
    )?;
    Ok(VlmConfig {
        video: Some(VideoConfig {
            place: Token::Name("<|video_pad|>"),
            frames: FrameKind::Slices,
            per_second: None,
        }),
        ..config
    })
}
