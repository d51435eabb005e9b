//! What vision-language models read alike from the GGUF file of their tower, which llama.cpp's converter writes beside that
//! of the decoder (`mmproj`). It names no tokens, and says little of how images are prepared: the rest is what the
//! processors of the families do.

use serde_json::Value;

use super::*;

/// LLaVA's, whose files end with the layer that is read.
pub fn llava_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let activation = activation(file, Activation::Gelu)?;
    let tower = tower(file, "clip", activation)?;
    let count = tower.config.encoder.layers.len();
    let layers = file.metadata().opt_i64s(&file.key("feature_layer"))?;
    let layers = layers.unwrap_or(vec![count as i64]).into_iter();
    let layers = layers.map(|layer| match usize::try_from(layer) {
        Ok(layer) if layer <= count => Ok(layer),
        _ => Err(file.corrupt(format!(
            "it is read after layer {layer}, and the vision tower has {count}"
        ))),
    });
    let layers: Vec<usize> = layers.collect::<Result<_>>()?;
    let edge = image_edge(file)?;
    let activation = Activation::Gelu;
    let sizes = file
        .metadata()
        .opt_i64s(&file.key("image_grid_pinpoints"))?;
    let lines =
        file.shape("model.image_newline").is_some() || file.shape("v.image_newline").is_some();
    let (connector, images) = match sizes {
        Some(sizes) if lines => (
            ConnectorConfig {
                layout: Layout::Joined,
                ..ConnectorConfig::mlp(activation)
            },
            json!({
                "image_processor_type": "LlavaNextImageProcessor",
                "size": {"shortest_edge": edge},
                "crop_size": {"height": edge, "width": edge},
                "image_grid_pinpoints": sizes.chunks(2).collect::<Vec<_>>(),
            }),
        ),
        _ => (
            ConnectorConfig::mlp(activation),
            json!({
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": edge},
                "crop_size": edge,
            }),
        ),
    };
    Ok(VlmConfig {
        layers,
        ..seen(file, tower, connector, "<image>", images)?
    })
}

/// Idefics 3's and Gemma 3's, whose towers are SigLIP's.
pub fn siglip_gguf(
    file: &GgufFile<'_>,
    connector: ConnectorConfig,
    marker: &'static str,
    images: Value,
) -> Result<VlmConfig> {
    let tower = tower(file, "siglip", Activation::GeluTanh)?;
    seen(file, tower, connector, marker, images)
}

/// The edge of the images that the tower was made for, in pixels.
pub fn image_edge(file: &GgufFile<'_>) -> Result<usize> {
    file.size("image_size", 1..=16_384)
}

/// Qwen3-VL's, whose file numbers projections by the layers that they read.
pub fn qwen3_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let mut config = qwen_gguf(file)?;
    let count = config.tower.config.encoder.layers.len();
    let key = file.key("is_deepstack_layers");
    let marks = file.metadata().opt_bools(&key)?.unwrap_or_default();
    if marks.len() > count {
        let reason = format!("key {key:?} has {} layers of {count}", marks.len());
        return Err(file.corrupt(reason));
    }
    let marked = marks.iter().enumerate().filter(|(_, &marked)| marked);
    config.deep = marked.map(|(layer, _)| layer).collect();
    if !config.deep.is_empty() {
        let behind = config.deep.iter().map(|layer| layer + 1);
        config.layers = [count].into_iter().chain(behind).collect();
    }
    config.connector.deep = config.deep.len();
    config.tower.config.positions = GridPositions::LinearCorners;
    Ok(config)
}

/// Qwen2-VL's, with windows Qwen2.5-VL's, and what Qwen3-VL's has of it.
pub fn qwen_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let windows = file.projector()? == "qwen2.5vl_merger";
    let (least, most, frames) = match file.projector()? {
        "qwen3vl_merger" => (256 * 256, 4096 * 4096, FrameKind::SharedPixels),
        _ => (56 * 56, 28 * 28 * 16_384, FrameKind::Pixels),
    };
    let activation = activation(file, Activation::GeluTanh)?;
    let mut tower = tower(file, "qwen2_vl", activation)?;
    let edge = file.opt_size("spatial_merge_size")?.unwrap_or(2);
    let mut config = in_blocks(tower.config, edge, 10_000.0);
    if windows {
        config.encoder.norm.kind = NormKind::Rms;
        let every = file.opt_size("n_wa_pattern")?.unwrap_or(0);
        let pixels = file.opt_size("window_size")?;
        config = in_windows(config, pixels, |layer| {
            every > 0 && (layer + 1) % every != 0
        });
    }
    let (patch, norm) = (config.patch_size, config.encoder.norm);
    tower.config = config;
    // What stands after the last layer is the connector's.
    tower.names.projector_norm = tower.names.final_norm;
    tower.names.final_norm = "";
    let images = json!({
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "merge_size": edge,
        "min_pixels": file.opt_size("image_min_pixels")?.unwrap_or(least),
        "max_pixels": file.opt_size("image_max_pixels")?.unwrap_or(most),
    });
    let connector = ConnectorConfig::merged(edge, norm);
    let per_second = windows.then_some(2.0);
    Ok(VlmConfig {
        video: Some(VideoConfig {
            place: Token::Name("<|video_pad|>"),
            frames,
            per_second,
        }),
        ..seen(file, tower, connector, "<|image_pad|>", images)?
    })
}

fn seen(
    file: &GgufFile<'_>,
    tower: Blueprint<VisionConfig>,
    connector: ConnectorConfig,
    marker: &'static str,
    images: Value,
) -> Result<VlmConfig> {
    Ok(VlmConfig {
        tower,
        own: None,
        indicators: Vec::new(),
        layers: Vec::new(),
        deep: Vec::new(),
        whole: false,
        connector,
        marker: Token::Name(marker),
        multiple: None,
        spelling: Spelling::Marker,
        video: None,
        images: Some(prepared(file, images)?),
    })
}

/// How images are prepared, with the numbers that the file has for their pixels.
pub fn prepared(file: &GgufFile<'_>, mut images: Value) -> Result<RawConfig> {
    for name in ["image_mean", "image_std"] {
        if let Some(numbers) = file.metadata().opt_f32s(&file.key(name))? {
            images[name] = json!(numbers);
        }
    }
    RawConfig::new(file.path(), images)
}

fn tower(
    file: &GgufFile<'_>,
    family: &'static str,
    activation: Activation,
) -> Result<Blueprint<VisionConfig>> {
    let encoder = pre_norm(file.bare_encoder(family)?);
    let first = |name: &str| file.shape(&format!("v.blk.0.{name}.weight"));
    let gated = first("ffn_gate").is_some();
    // Older files call what leads up down, and the other way around.
    let turned = first("ffn_down").is_some_and(|shape| shape.last() == Some(&encoder.hidden_size));
    let names = if turned {
        Names {
            up: GGUF_VISION.down,
            down: GGUF_VISION.up,
            ..GGUF_VISION
        }
    } else {
        GGUF_VISION
    };
    let config = VisionConfig {
        encoder: EncoderConfig {
            positions: Positions::None,
            mlp: Mlp {
                kind: if gated {
                    MlpKind::Gated
                } else {
                    MlpKind::Plain
                },
                activation,
            },
            ..encoder
        },
        patch_size: file.size("patch_size", 1..=1024)?,
        patch_order: PatchOrder::ByChannel,
        positions: GridPositions::Fixed,
        finders: None,
        blocks: None,
        pooling: VisionPooling::First,
        classifier: ClassifierInput::First,
    };
    Ok(Blueprint {
        config,
        names,
        modules: names,
        padding_id: None,
    })
}

/// Of the tower's layers; `gelu` is what a file means by that name.
fn activation(file: &GgufFile<'_>, gelu: Activation) -> Result<Activation> {
    let flag = |key: &str| -> Result<bool> { Ok(file.metadata().opt_bool(key)?.unwrap_or(false)) };
    Ok(if flag("clip.use_gelu")? {
        gelu
    } else if flag("clip.use_silu")? {
        Activation::Silu
    } else {
        Activation::QuickGelu
    })
}

/// Gemma 3's.
pub fn gemma_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let edge = image_edge(file)?;
    let merged = file.opt_size("projector.scale_factor")?.unwrap_or(4);
    let patch = file.size("patch_size", 1..=1024)?;
    let epsilon = file.number("attention.layer_norm_epsilon")?;
    // The converter has added 1 to its weight.
    let norm = NormConfig::new(NormKind::Rms, epsilon.unwrap_or(1e-6));
    let connector = means(edge / patch / merged.max(1), norm);
    let images = json!({
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": edge, "width": edge},
    });
    Ok(VlmConfig {
        spelling: Spelling::Framed {
            start: Token::Name("<start_of_image>"),
            end: Token::Name("<end_of_image>"),
        },
        ..siglip_gguf(file, connector, "<image_soft_token>", images)?
    })
}

/// Idefics 3's and SmolVLM's, whose images are cut into tiles.
pub fn tiled_gguf(file: &GgufFile<'_>) -> Result<VlmConfig> {
    let merged = file.opt_size("projector.scale_factor")?;
    let connector = ConnectorConfig {
        gather: Gather::Blocks {
            edge: merged.unwrap_or(3),
        },
        ..ConnectorConfig::PLAIN
    };
    let edge = image_edge(file)?;
    let longest = file.opt_size("preproc_image_size")?;
    let images = json!({
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": longest.unwrap_or(4 * edge)},
        "max_image_size": {"longest_edge": edge},
    });
    Ok(VlmConfig {
        spelling: Spelling::Tiles,
        ..siglip_gguf(file, connector, "<image>", images)?
    })
}
