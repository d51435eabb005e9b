//! What vision-language models read alike from a `config.json`.

use super::*;
use crate::models::config;

/// A tower that is read after all its layers, and images that a prompt spells by one marker.
pub fn vlm_config(
    raw: &RawConfig,
    tower: &RawConfig,
    connector: ConnectorConfig,
) -> Result<VlmConfig> {
    let marker = raw.usize_in(
        ["image_token_index", "image_token_id"],
        0..=u32::MAX as usize,
    )?;
    Ok(VlmConfig {
        tower: Blueprint::from_config(tower)?,
        own: None,
        indicators: Vec::new(),
        layers: Vec::new(),
        deep: Vec::new(),
        whole: false,
        connector,
        marker: Token::Id(marker as u32),
        multiple: None,
        spelling: Spelling::Marker,
        video: None,
        images: None,
    })
}

/// Videos, by the token that stands for one.
pub fn video(raw: &RawConfig, usual: usize, frames: FrameKind) -> Result<Option<VideoConfig>> {
    let keys = ["video_token_index", "video_token_id"];
    let id = raw.opt_usize_in(keys, 0..=u32::MAX as usize)?;
    Ok(Some(VideoConfig {
        place: Token::Id(id.unwrap_or(usual) as u32),
        frames,
        per_second: None,
    }))
}

/// An image encoder of another shape than a tower and a connector.
pub fn own_config(raw: &RawConfig, own: OwnConfig) -> Result<VlmConfig> {
    // Nothing is loaded of this tower.
    let tower = json!({
        "model_type": idefics3_vision::FAMILY.name, "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 64, "patch_size": 16,
    });
    let tower = RawConfig::new(raw.file(), tower)?;
    Ok(VlmConfig {
        own: Some(own),
        ..vlm_config(raw, &tower, ConnectorConfig::PLAIN)?
    })
}

/// The file with the id of its marker, where it says none.
pub fn with_marker(raw: &RawConfig, id: usize) -> RawConfig {
    match raw.get(["image_token_index", "image_token_id"]) {
        Some(_) => raw.clone(),
        None => raw.clone().with_defaults(json!({"image_token_index": id})),
    }
}

/// LLaVA's towers are read before their last layer, and mostly without the token before the patches.
pub fn llava_config(raw: &RawConfig, layout: Layout) -> Result<VlmConfig> {
    let raw = with_marker(raw, 32000);
    let activation = raw.opt_string("projector_hidden_act")?.unwrap_or("gelu");
    let activation = config::activation(activation, raw.file())?;
    let connector = ConnectorConfig {
        layout,
        ..ConnectorConfig::mlp(activation)
    };
    let config = vlm_config(&raw, &raw.nested("vision_config")?, connector)?;
    let count = config.tower.config.encoder.layers.len();
    Ok(VlmConfig {
        layers: layers_read(&raw, count)?,
        whole: raw.opt_string("vision_feature_select_strategy")? == Some("full"),
        ..config
    })
}

/// A model whose tower is Pixtral's: each line of blocks of an edge stands for a marker.
pub fn in_lines(config: VlmConfig, edge: usize) -> VlmConfig {
    VlmConfig {
        connector: ConnectorConfig {
            layout: Layout::Line,
            ..config.connector
        },
        multiple: Some(config.tower.config.patch_size * edge),
        spelling: Spelling::Pattern(Pattern::PIXTRAL),
        ..config
    }
}

/// Layers are counted from the end, where -1 is the last one without its norm.
fn layers_read(raw: &RawConfig, count: usize) -> Result<Vec<usize>> {
    let asked = raw
        .opt_integers("vision_feature_layer")?
        .unwrap_or(vec![-2]);
    if asked.is_empty() {
        return Err(Error::corrupt(
            raw.file(),
            "\"vision_feature_layer\" is empty",
        ));
    }
    let layer = |asked: i64| {
        let layer = if asked < 0 {
            count as i64 + 1 + asked
        } else {
            asked
        };
        match usize::try_from(layer) {
            Ok(layer) if layer <= count => Ok(layer),
            _ => Err(Error::corrupt(
                raw.file(),
                format!(
                    "\"vision_feature_layer\" is {asked}, and the vision tower has {count} layers"
                ),
            )),
        }
    };
    asked.into_iter().map(layer).collect()
}

/// After how many layers Qwen3-VL's tower is read: all first, then those whose states the decoder adds.
pub fn deep_layers(tower: &RawConfig, count: usize) -> Result<Vec<usize>> {
    let Some(listed) = tower.opt_integers("deepstack_visual_indexes")? else {
        return Ok(Vec::new());
    };
    let mut layers = vec![count];
    for layer in listed {
        let after = usize::try_from(layer)
            .ok()
            .and_then(|layer| layer.checked_add(1));
        let rises =
            |after: &usize| layers.len() == 1 || layers.last().is_some_and(|last| after > last);
        match after.filter(|after| *after <= count && rises(after)) {
            Some(after) => layers.push(after),
            None => {
                return Err(Error::corrupt(
                    tower.file(),
                    format!("\"deepstack_visual_indexes\" has {layer}, and the vision tower has {count} layers"),
                ))
            }
        }
    }
    Ok(if layers.len() == 1 {
        Vec::new()
    } else {
        layers
    })
}

/// The means of blocks, so many blocks to a side, normed, then a product (Gemma 3).
pub fn means(side: usize, norm: NormConfig) -> ConnectorConfig {
    ConnectorConfig {
        gather: Gather::Means { side },
        gathered_norm: Some(norm),
        transposed: true,
        ..ConnectorConfig::PLAIN
    }
}

/// Gemma 3's, whose images stand between two tokens.
pub fn gemma_config(raw: &RawConfig) -> Result<VlmConfig> {
    let raw = raw.clone().with_defaults(json!({
        "image_token_index": 262144, "boi_token_index": 255999, "eoi_token_index": 256000,
    }));
    let tower = raw.nested("vision_config")?;
    let tower = tower.with(json!({"model_type": siglip_vision::FAMILY.name}));
    let norm = Blueprint::<VisionConfig>::from_config(&tower)?
        .config
        .encoder
        .norm;
    let count = raw.opt_usize_in("mm_tokens_per_image", POSITIONS)?;
    let norm = NormConfig {
        offset: 1.0,
        ..NormConfig::new(NormKind::Rms, norm.epsilon)
    };
    let connector = means(count.unwrap_or(256).isqrt(), norm);
    let id = |key: &str| -> Result<Token> {
        Ok(Token::Id(raw.usize_in(key, 0..=u32::MAX as usize)? as u32))
    };
    Ok(VlmConfig {
        spelling: Spelling::Framed {
            start: id("boi_token_index")?,
            end: id("eoi_token_index")?,
        },
        ..vlm_config(&raw, &tower, connector)?
    })
}

/// Idefics 2's queries, whose width is that of the decoder. A file that says another width has left it out, and with it
/// how much is added in norms.
pub fn resampler(raw: &RawConfig, text: &RawConfig) -> Result<ResamplerConfig> {
    let size = |key: &str, usual: usize, most: usize| -> Result<usize> {
        Ok(raw.opt_usize_in(key, 1..=most)?.unwrap_or(usual))
    };
    let activation = raw.opt_string("hidden_act")?.unwrap_or("silu");
    let width = text.opt_usize("hidden_size")?.unwrap_or(4096);
    let epsilon = if raw.opt_usize("hidden_size")?.unwrap_or(4096) == width {
        number(raw, "rms_norm_eps")?
    } else {
        number(text, "rms_norm_eps")?
    };
    let config = ResamplerConfig {
        queries: size("resampler_n_latents", 64, 1 << 16)?,
        layers: size("resampler_depth", 3, 1024)?,
        heads: size("resampler_n_heads", 16, 1 << 12)?,
        kv_heads: size("num_key_value_heads", 4, 1 << 12)?,
        head_size: size("resampler_head_dim", 96, 1 << 12)?,
        activation: config::activation(activation, raw.file())?,
        norm: NormConfig::new(NormKind::Rms, epsilon.unwrap_or(1e-6)),
    };
    if !config.heads.is_multiple_of(config.kv_heads) {
        let reason = format!(
            "{} heads of the resampler do not share {} of keys and values",
            config.heads, config.kv_heads
        );
        return Err(Error::corrupt(raw.file(), reason));
    }
    Ok(config)
}
