//! What the vision towers of Qwen2-VL and Qwen2.5-VL read alike.

use super::*;

/// The decoder of a GGUF file, which names the lengths of its sections.
pub fn sectioned_gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let mut config = file.decoder(&Usual::LLAMA)?;
    if let Some(rope) = config.relative.rope_mut() {
        rope.axes = RopeAxes::Sections(gguf_sections(file)?);
    }
    Ok(config)
}

/// Qwen3-VL's, whose frequencies of positions in both directions take turns.
pub fn turned_gguf(file: &GgufFile<'_>) -> Result<DecoderConfig> {
    let mut config = file.decoder(&Usual::LLAMA)?;
    if let Some(rope) = config.relative.rope_mut() {
        rope.axes = RopeAxes::Turns(gguf_sections(file)?);
    }
    config.experts = file.experts(true, false)?;
    Ok(config)
}

/// GLM's, of vision-language models too: the converter has put the halves of what rotates together in a row.
pub fn in_sections(file: &GgufFile<'_>, mut config: DecoderConfig) -> Result<DecoderConfig> {
    let key = file.key("rope.dimension_sections");
    let lengths = file.metadata().opt_i64s(&key)?;
    if let (Some(_), Some(rope)) = (lengths, config.relative.rope_mut()) {
        let turned = rope.pairing == RopeKind::Interleaved;
        rope.pairing = RopeKind::Half;
        rope.axes = RopeAxes::Sections(gguf_sections(file)?);
        if turned {
            config.row_order = RowOrder::Changed;
        }
    }
    Ok(config)
}

fn gguf_sections(file: &GgufFile<'_>) -> Result<[usize; 3]> {
    let key = file.key("rope.dimension_sections");
    sections(file.metadata().opt_i64s(&key)?)
        .ok_or_else(|| file.corrupt(format!("key {key:?} is not three lengths or four")))
}

/// The frequencies of positions in both directions take turns. Models of texts alone may have other sizes of heads, and
/// then keep to lines, which are the same for texts.
pub fn take_turns(raw: &RawConfig, config: &mut DecoderConfig, usual: [usize; 3]) -> Result<()> {
    turn(config, rope_sections(raw, usual)?);
    Ok(())
}

/// The same of a file, where it names lengths.
pub fn take_turns_gguf(file: &GgufFile<'_>, config: &mut DecoderConfig) -> Result<()> {
    let key = file.key("rope.dimension_sections");
    if file.metadata().opt_i64s(&key)?.is_some() {
        turn(config, gguf_sections(file)?);
    }
    Ok(())
}

fn turn(config: &mut DecoderConfig, sections: [usize; 3]) {
    if let Some(rope) = config.relative.rope_mut() {
        if sections.iter().sum::<usize>() == rope.rotary_size / 2 {
            rope.axes = RopeAxes::Turns(sections);
        }
    }
}

/// The texts' part of Qwen3-VL. What stands outside of it says whether the head is tied, where both do.
pub fn tied_outside(raw: &RawConfig) -> Result<RawConfig> {
    let text = text_of(raw)?;
    Ok(match raw.opt_bool("tie_word_embeddings")? {
        Some(tied) => text.with(json!({"tie_word_embeddings": tied})),
        None => text,
    })
}

/// Qwen3-VL's experts, whose matrices are stacked.
pub fn stacked_experts(raw: &RawConfig, layer_count: usize) -> Result<Option<Experts>> {
    if !raw.has(["num_experts", "num_local_experts"]) {
        return Ok(None);
    }
    let given = experts(raw, layer_count, true, Shared::None)?;
    Ok(given.map(|given| Experts {
        normalize: true,
        layout: ExpertLayout::fused(true, false),
        ..given
    }))
}

/// How many frequencies belong to time, rows and columns.
pub fn rope_sections(raw: &RawConfig, usual: [usize; 3]) -> Result<[usize; 3]> {
    let parameters = raw.opt_nested(["rope_parameters", "rope_scaling"])?;
    let lengths = match &parameters {
        Some(parameters) => parameters.opt_integers("mrope_section")?,
        None => None,
    };
    let Some(lengths) = lengths else {
        return Ok(usual);
    };
    sections(Some(lengths))
        .ok_or_else(|| Error::corrupt(raw.file(), "\"mrope_section\" is not three lengths"))
}

/// Three lengths, after which files may have zeros.
pub fn sections(lengths: Option<Vec<i64>>) -> Option<[usize; 3]> {
    let Some(lengths) = lengths else {
        return Some([16, 24, 24]);
    };
    let length = |length: &i64| {
        let length = usize::try_from(*length).ok();
        length.filter(|length| *length <= 1 << 20)
    };
    let lengths: Vec<usize> = lengths.iter().map(length).collect::<Option<_>>()?;
    match lengths[..] {
        [time, rows, columns] | [time, rows, columns, 0] => Some([time, rows, columns]),
        _ => None,
    }
}

/// Qwen2-VL's; `hidden` is its width, which is named differently from file to file.
pub fn qwen_vision(raw: &RawConfig, hidden: usize) -> Result<VisionConfig> {
    let size =
        |key: &str, usual: usize| -> Result<usize> { Ok(raw.opt_usize(key)?.unwrap_or(usual)) };
    let named = raw.clone().with(json!({
        "hidden_size": hidden, "num_hidden_layers": size("depth", 32)?, "layer_norm_eps": 1e-6,
        "num_attention_heads": size("num_heads", 16)?,
    }));
    let named = named.with_defaults(json!({"patch_size": 14, "hidden_act": "quick_gelu"}));
    let edge = size("spatial_merge_size", 2)?;
    Ok(in_blocks(
        vision(&named, "qwen2_vl")?,
        edge,
        grid_theta(raw)?,
    ))
}

/// The base of a tower that rotates by row and column.
pub fn grid_theta(raw: &RawConfig) -> Result<f32> {
    let theta = match raw.opt_nested("rope_parameters")? {
        Some(parameters) => parameters.opt_f64("rope_theta")?,
        None => raw.opt_f64("rope_theta")?,
    };
    Ok(theta.unwrap_or(10_000.0) as f32)
}

/// A tower that reads patches in blocks of an edge, and rotates by row and column.
pub fn in_blocks(mut config: VisionConfig, edge: usize, theta: f32) -> VisionConfig {
    config.positions = GridPositions::Rotary;
    config.blocks = Some(Blocks {
        edge,
        window: None,
        windowed: Vec::new(),
    });
    config.encoder.relative = Relative::Rope(RopeConfig {
        theta,
        local_theta: None,
        rotary_size: config.encoder.head_size,
        pairing: RopeKind::Half,
        scaling: RopeScaling::None,
        layers: Vec::new(),
        by_layer: Vec::new(),
        unscaled_windows: false,
        backwards: false,
        axes: RopeAxes::Grid,
    });
    config
}

/// Qwen2.5-VL's, most of whose layers keep to windows.
pub fn qwen_windowed_vision(raw: &RawConfig) -> Result<VisionConfig> {
    let raw = raw.clone().with_defaults(json!({"hidden_act": "silu"}));
    let mut config = qwen_vision(&raw, raw.usize_in("hidden_size", WIDTH)?)?;
    config.encoder.norm = NormConfig::new(NormKind::Rms, 1e-6);
    config.encoder.mlp.kind = MlpKind::Gated;
    let whole = raw.opt_integers("fullatt_block_indexes")?;
    let whole = whole.unwrap_or(vec![7, 15, 23, 31]);
    let pixels = raw.opt_usize("window_size")?;
    Ok(in_windows(config, pixels, |layer| {
        !whole.contains(&(layer as i64))
    }))
}

/// A tower some of whose layers keep to windows of an edge in pixels.
pub fn in_windows(
    mut config: VisionConfig,
    pixels: Option<usize>,
    is_windowed: impl Fn(usize) -> bool,
) -> VisionConfig {
    if let Some(blocks) = &mut config.blocks {
        let edge = blocks.edge.max(1) * config.patch_size.max(1);
        blocks.window = Some(pixels.unwrap_or(112) / edge);
        blocks.windowed = (0..config.encoder.layers.len()).map(is_windowed).collect();
    }
    config
}
