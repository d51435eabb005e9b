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
        layers: Vec::new(),
        whole: false,
        connector,
        marker: Token::Id(marker as u32),
        spelling: Spelling::Marker,
        images: None,
    })
}

/// LLaVA's towers are read before their last layer, and mostly without the token before the patches.
pub fn llava_config(
    raw: &RawConfig,
    connector: fn(Activation) -> ConnectorConfig,
) -> Result<VlmConfig> {
    let raw = raw
        .clone()
        .with_defaults(json!({"image_token_index": 32000}));
    let activation = raw.opt_string("projector_hidden_act")?.unwrap_or("gelu");
    let connector = connector(config::activation(activation, raw.file())?);
    let config = vlm_config(&raw, &raw.nested("vision_config")?, connector)?;
    let count = config.tower.config.encoder.layers.len();
    Ok(VlmConfig {
        layers: layers_read(&raw, count)?,
        whole: raw.opt_string("vision_feature_select_strategy")? == Some("full"),
        ..config
    })
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
    let connector = ConnectorConfig::Means {
        side: count.unwrap_or(256).isqrt(),
        norm: NormConfig {
            offset: 1.0,
            ..NormConfig::new(NormKind::Rms, norm.epsilon)
        },
    };
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
