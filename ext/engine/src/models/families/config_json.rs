//! What families read alike from a `config.json`.

use super::*;
use crate::models::config;
use formats::files::raw_config::{HEADS, VOCABULARY};

/// What a decoder's configuration means where it does not say.
pub struct Usual {
    pub norm: NormKind,
    pub activation: Activation,
    /// How much of each head is rotated.
    pub rotated: f64,
    /// Whether the output head is the token embedding.
    pub tied: bool,
    pub mlp: MlpKind,
}

impl Usual {
    pub const LLAMA: Self = Self {
        norm: NormKind::Rms,
        activation: Activation::Silu,
        rotated: 1.0,
        tied: false,
        mlp: MlpKind::Gated,
    };

    pub const TIED: Self = Self {
        tied: true,
        ..Self::LLAMA
    };

    pub const LAYER_NORM: Self = Self {
        norm: NormKind::Layer,
        activation: Activation::Gelu,
        mlp: MlpKind::Plain,
        ..Self::LLAMA
    };

    pub const GPT2: Self = Self {
        activation: Activation::GeluTanh,
        tied: true,
        ..Self::LAYER_NORM
    };

    pub fn norm(&self, epsilon: Option<f32>) -> NormConfig {
        let usual = match self.norm {
            NormKind::Rms => 1e-6,
            NormKind::Layer => 1e-5,
        };
        NormConfig::new(self.norm, epsilon.unwrap_or(usual))
    }
}

const EPSILON: [&str; 5] = [
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
];

pub fn is_type(raw: &RawConfig, model_types: &[&str]) -> bool {
    matches!(raw.model_type(), Ok(Some(found)) if model_types.contains(&found))
}

pub fn number(raw: &RawConfig, key: &str) -> Result<Option<f32>> {
    Ok(raw.opt_f64(key)?.map(|value| value as f32))
}

pub fn flag(raw: &RawConfig, key: &str, otherwise: bool) -> Result<bool> {
    Ok(raw.opt_bool(key)?.unwrap_or(otherwise))
}

/// Switches that no forward of ours has.
pub fn refuse(raw: &RawConfig, keys: &[&str]) -> Result<()> {
    for key in keys {
        if flag(raw, key, false)? {
            let reason = format!("{key}: true is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        }
    }
    Ok(())
}

/// `position_embedding_type` must be what the family is written for.
pub fn require_positions(raw: &RawConfig, wanted: &str) -> Result<()> {
    match raw.opt_string("position_embedding_type")? {
        None => Ok(()),
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(Error::unsupported(
            raw.file(),
            format!("position_embedding_type {found:?} is not supported, only {wanted:?}"),
        )),
    }
}

/// What BERT's relatives have in common; each then says where it differs.
pub fn encoder(raw: &RawConfig, family: &'static str) -> Result<EncoderConfig> {
    let (hidden_size, head_count, head_size) = attention_sizes(raw)?;
    let layers = raw.usize_in(["num_hidden_layers", "n_layers", "n_layer"], LAYERS)?;
    let activation = raw.opt_string(["hidden_act", "activation", "hidden_activation"])?;
    let activation = config::activation(activation.unwrap_or("gelu"), raw.file())?;
    let epsilon = raw.opt_f64(EPSILON)?.unwrap_or(1e-12) as f32;
    Ok(EncoderConfig {
        family,
        hidden_size,
        head_count,
        head_size,
        layers: plain_layers(layers),
        attention_scale: None,
        embedding_scale: 1.0,
        embedding_size: hidden_size,
        token_types: raw.opt_usize("type_vocab_size")?.unwrap_or(0),
        positions: Positions::Learned,
        relative: Relative::None,
        max_positions: raw.opt_usize_in(["max_position_embeddings", "n_positions"], POSITIONS)?,
        norm: NormConfig::new(NormKind::Layer, epsilon),
        norm_placement: NormPlacement::Post,
        mlp: Mlp {
            kind: MlpKind::Plain,
            activation,
        },
        qkv: QkvLayout::Stacked,
        heads_on_top: HeadConfigs {
            masked_activation: activation,
            masked_untied: !flag(raw, "tie_word_embeddings", true)?,
            ..HeadConfigs::default()
        },
        convolution: None,
        mechanisms: Mechanisms::default(),
    })
}

/// What all decoders share, with Llama's choices where they differ.
pub fn decoder(raw: &RawConfig, usual: &Usual) -> Result<DecoderConfig> {
    let (hidden_size, head_count, head_size) = attention_sizes(raw)?;
    let layer_count = raw.usize_in(["num_hidden_layers", "n_layer"], LAYERS)?;
    let kv_head_count =
        raw.opt_usize_in(["num_key_value_heads", "num_kv_heads", "n_head_kv"], HEADS)?;
    let epsilon = raw.opt_f64(EPSILON)?.map(|epsilon| epsilon as f32);
    let max_positions = ["max_position_embeddings", "n_positions", "n_ctx"];
    let activation = [
        "hidden_activation",
        "hidden_act",
        "activation_function",
        "activation",
        "mlp_hidden_act",
    ];
    let sizes = DecoderSizes {
        vocab_size: raw.usize_in("vocab_size", VOCABULARY)?,
        hidden_size,
        layer_count,
        head_count,
        kv_head_count: kv_head_count.unwrap_or(head_count),
        head_size,
        max_positions: raw.opt_usize_in(max_positions, POSITIONS)?.unwrap_or(2048),
    };
    let mlp = Mlp {
        kind: usual.mlp,
        activation: match raw.opt_string(activation)? {
            Some(name) => config::activation(name, raw.file())?,
            None => usual.activation,
        },
    };
    let rope = rope(raw, head_size, usual.rotated, 10_000.0)?;
    Ok(DecoderConfig {
        architecture: raw.model_type()?.unwrap_or_default().to_owned(),
        tied_head: flag(raw, "tie_word_embeddings", usual.tied)?,
        ..DecoderConfig::plain(sizes, usual.norm(epsilon), mlp, rope)
    })
}

/// The hidden size, the number of heads and the size of one.
fn attention_sizes(raw: &RawConfig) -> Result<(usize, usize, usize)> {
    let hidden = raw.usize_in(["hidden_size", "dim", "n_embd", "d_model"], WIDTH)?;
    let heads = raw.usize_in(["num_attention_heads", "n_heads", "n_head"], HEADS)?;
    match raw.opt_usize_in("head_dim", WIDTH)? {
        Some(size) => Ok((hidden, heads, size)),
        None if hidden % heads == 0 => Ok((hidden, heads, hidden / heads)),
        None => Err(Error::corrupt(
            raw.file(),
            format!("the hidden size {hidden} can't be divided among {heads} attention heads"),
        )),
    }
}

/// For each layer its window, if it has one: by `layer_types` where the file lists them, else by
/// `is_windowed`.
pub fn windows(
    raw: &RawConfig,
    layer_count: usize,
    window: Option<usize>,
    is_windowed: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let Some(types) = raw.opt_strings("layer_types")? else {
        return Ok((0..layer_count)
            .map(|layer| window.filter(|_| is_windowed(layer)))
            .collect());
    };
    check_layers("layer_types", types.len(), layer_count)
        .map_err(|reason| Error::corrupt(raw.file(), reason))?;
    Ok(types
        .iter()
        .map(|kind| window.filter(|_| kind == "sliding_attention"))
        .collect())
}

/// For each layer whether it has attention or a state: by `layer_types` or `layers_block_type` where the file lists
/// them, else by `attends`.
pub fn sublayers(
    raw: &RawConfig,
    layer_count: usize,
    attends: impl Fn(usize) -> bool,
) -> Result<Vec<Sublayers>> {
    let attends: Vec<bool> = match raw.opt_strings(["layer_types", "layers_block_type"])? {
        Some(kinds) => {
            check_layers("layer_types", kinds.len(), layer_count)
                .map_err(|reason| Error::corrupt(raw.file(), reason))?;
            let attends = |kind: &String| ["full_attention", "attention"].contains(&&kind[..]);
            kinds.iter().map(attends).collect()
        }
        None => (0..layer_count).map(attends).collect(),
    };
    let layer = |attends| {
        if attends {
            Sublayers::ATTENTION
        } else {
            Sublayers::STATE
        }
    };
    Ok(attends.into_iter().map(layer).collect())
}

/// One group per key-value head in the file's fused matrix.
pub fn grouped(mut config: DecoderConfig) -> DecoderConfig {
    config.qkv = QkvLayout::ByHead;
    config.row_order = RowOrder::Grouped;
    config
}

/// Attention and MLP read one normalized input.
pub fn parallel(mut config: DecoderConfig) -> DecoderConfig {
    config.residual = Residual::ParallelOneNorm;
    config
}

/// Every `interval`-th layer does not rotate, unless a list says which do.
pub fn rotated(mut config: DecoderConfig, interval: usize, given: Vec<bool>) -> DecoderConfig {
    let usual = (1..=config.layer_count).map(|layer| layer % interval.max(1) != 0);
    if let Some(rope) = config.relative.rope_mut() {
        rope.layers = if given.is_empty() {
            usual.collect()
        } else {
            given
        };
    }
    config
}

/// With one number under each key, where the file gives one for each layer; all of a key must be the same.
pub fn with_single_numbers(raw: &RawConfig, keys: &[&str]) -> Result<RawConfig> {
    let mut single = raw.clone();
    for &key in keys {
        if !raw.get(key).is_some_and(serde_json::Value::is_array) {
            continue;
        }
        let numbers = raw.opt_integers(key)?.unwrap_or_default();
        let same = |first: &&i64| numbers.iter().all(|number| number == *first);
        let Some(first) = numbers.first().filter(same) else {
            let reason = format!("{key} that differs from layer to layer is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        };
        single = single.with(json!({ (key): first }));
    }
    Ok(single)
}

/// Experts in every layer, or in those that the file says.
pub fn experts(
    raw: &RawConfig,
    layer_count: usize,
    normalize: bool,
    shared: Shared,
) -> Result<Option<Experts>> {
    let step = raw.opt_usize("decoder_sparse_step")?.unwrap_or(1).max(1);
    let plain = raw.opt_integers("mlp_only_layers")?.unwrap_or_default();
    let count = raw.usize(["num_local_experts", "num_experts", "n_routed_experts"])?;
    let used = raw.usize(["num_experts_per_tok", "moe_topk"])?;
    Ok(Some(Experts {
        normalize: flag(raw, "norm_topk_prob", normalize)?,
        shared,
        layers: (0..layer_count)
            .map(|layer| !plain.contains(&(layer as i64)) && (layer + 1) % step == 0)
            .collect(),
        ..Experts::softmax(count, used, layer_count)
    }))
}

/// DeepSeek V3's router, and its shared expert: sigmoids, a bias on the choice, groups, a factor.
pub fn sigmoid_experts(raw: &RawConfig, layer_count: usize) -> Result<Experts> {
    let count = raw.usize(["n_routed_experts", "num_experts", "num_local_experts"])?;
    let used = raw.usize("num_experts_per_tok")?;
    let groups = raw.opt_usize("n_group")?.unwrap_or(1);
    let shared = raw.opt_usize(["n_shared_experts", "num_shared_experts"])?;
    Ok(Experts {
        scoring: Scoring::Sigmoid,
        normalize: flag(raw, "norm_topk_prob", true)?,
        scale: number(raw, "routed_scaling_factor")?.unwrap_or(1.0),
        biased: true,
        groups: (groups > 1).then_some(Groups {
            count: groups,
            used: raw.opt_usize("topk_group")?.unwrap_or(1),
            best_of: 2,
            left_out: f32::NEG_INFINITY,
        }),
        shared: match shared.unwrap_or(0) {
            0 => Shared::None,
            _ => Shared::Plain,
        },
        layers: sparse_layers(raw, layer_count)?,
        ..Experts::softmax(count, used, layer_count)
    })
}

/// Which layers have experts, by `mlp_layer_types` or by how many of the first have none.
pub fn sparse_layers(raw: &RawConfig, layer_count: usize) -> Result<Vec<bool>> {
    if let Some(types) = raw.opt_strings("mlp_layer_types")? {
        check_layers("mlp_layer_types", types.len(), layer_count)
            .map_err(|reason| Error::corrupt(raw.file(), reason))?;
        return Ok(types.iter().map(|kind| kind == "sparse").collect());
    }
    let dense = raw.opt_usize(["first_k_dense_replace", "num_dense_layers"])?;
    let dense = dense.unwrap_or(0);
    Ok((0..layer_count).map(|layer| layer >= dense).collect())
}

/// Windows in all layers but every `pattern`-th, unless the file lists them.
pub fn sliding(raw: &RawConfig, config: &mut DecoderConfig, pattern: usize) -> Result<()> {
    let window = raw.opt_usize("sliding_window")?;
    config.windows = windows(raw, config.layer_count, window, |layer| {
        (layer + 1) % pattern.max(1) != 0
    })?;
    Ok(())
}

/// Layers that see everything do not rotate, in a model that has others.
pub fn rotate_in_windows(config: &mut DecoderConfig) {
    let windowed = config.windows.iter().map(Option::is_some).collect();
    if let Some(rope) = config.relative.rope_mut() {
        rope.layers = windowed;
    }
}

/// Every layer rotates as `rope_parameters` says of its type; layers of types without an entry do not.
pub fn rotate_by_type(raw: &RawConfig, config: &mut DecoderConfig) -> Result<()> {
    let of_layer = |layer: usize| {
        let kind = match config.windows[layer] {
            Some(_) => "sliding_attention",
            None => "full_attention",
        };
        rope_of_type(raw, kind, config.shape(layer).head_size)
    };
    let own: Vec<_> = (0..config.layer_count)
        .map(of_layer)
        .collect::<Result<_>>()?;
    if let Some(rope) = config.relative.rope_mut() {
        rope.layers = own.iter().map(Option::is_some).collect();
        rope.by_layer = own;
    }
    Ok(())
}

/// Granite's factors.
pub fn multiplied(raw: &RawConfig, config: &mut DecoderConfig) -> Result<()> {
    let factor = |key| number(raw, key).map(|value| value.unwrap_or(1.0));
    config.embedding_scale = factor("embedding_multiplier")?;
    config.residual_scale = factor("residual_multiplier")?;
    if let Some(scale) = number(raw, "attention_multiplier")? {
        config.attention_scale = scale;
    }
    config.logit_scale = 1.0 / factor("logits_scaling")?;
    Ok(())
}

/// Rotates so many of the first dimensions of a head.
pub fn rotate_first(raw: &RawConfig, config: &mut DecoderConfig) -> Result<()> {
    let size = raw.opt_usize("rotary_dim")?.unwrap_or(config.head_size);
    if let Some(rope) = config.relative.rope_mut() {
        rope.rotary_size = size;
    }
    Ok(())
}

/// A table of positions whose first rows have other uses.
pub fn learned_from(config: DecoderConfig, first: u32) -> DecoderConfig {
    DecoderConfig {
        positions: match first {
            0 => Positions::Learned,
            first => Positions::LearnedFrom { first },
        },
        relative: Relative::None,
        ..config
    }
}

/// The part of a model of texts and images that generates.
pub fn text_of(raw: &RawConfig) -> Result<RawConfig> {
    let Some(text) = raw.opt_nested("text_config")? else {
        return Ok(raw.clone());
    };
    Ok(match raw.opt_bool("tie_word_embeddings")? {
        Some(tied) => text.with_defaults(json!({"tie_word_embeddings": tied})),
        None => text,
    })
}

/// What a key of some encoders says of gate and activation at once.
pub fn gated(raw: &RawConfig, key: &str, otherwise: Mlp) -> Result<Mlp> {
    let gated = |activation| Mlp {
        kind: MlpKind::Gated,
        activation,
    };
    Ok(match raw.opt_string(key)? {
        None => otherwise,
        Some("original") => Mlp {
            kind: MlpKind::Plain,
            ..otherwise
        },
        Some("swiglu") => gated(Activation::Silu),
        Some("geglu") => gated(Activation::Gelu),
        Some("reglu") => gated(Activation::Relu),
        Some("glu") => gated(Activation::Sigmoid),
        Some(plain) => Mlp {
            kind: MlpKind::Plain,
            activation: config::activation(plain, raw.file())?,
        },
    })
}

/// Positions by rotation alone.
pub fn rotary(
    config: EncoderConfig,
    rope: impl FnOnce(&EncoderConfig) -> Result<RopeConfig>,
) -> Result<EncoderConfig> {
    Ok(EncoderConfig {
        positions: Positions::None,
        relative: Relative::Rope(rope(&config)?),
        ..config
    })
}

/// Layers that see `reach` tokens to each side: all but every `every`-th, unless the file lists them.
pub fn local_layers(
    raw: &RawConfig,
    config: &mut EncoderConfig,
    reach: usize,
    every: usize,
) -> Result<()> {
    let windows = windows(raw, config.layers.len(), Some(reach), |layer| {
        !layer.is_multiple_of(every)
    })?;
    in_windows_of(config, &windows);
    Ok(())
}

/// Windows of so many tokens to each side, in the layers that have one.
pub fn in_windows_of(config: &mut EncoderConfig, windows: &[Option<usize>]) {
    for (layer, window) in config.layers.iter_mut().zip(windows) {
        if let Some(reach) = *window {
            let (left, right) = (reach, reach);
            layer.attention = AttentionKind::Window { left, right };
        }
    }
}

/// Encoders with the layers of Llama, which see what follows too.
pub fn bidirectional_llama(
    raw: &RawConfig,
    family: &'static str,
    epsilon: f64,
) -> Result<EncoderConfig> {
    let raw = &raw.clone().with_defaults(json!({"rms_norm_eps": epsilon}));
    let mut config = pre_norm(rotary(encoder(raw, family)?, |config| {
        rope(raw, config.head_size, 1.0, 10_000.0)
    })?);
    config.norm.kind = NormKind::Rms;
    config.mlp.kind = MlpKind::Gated;
    if !raw.has("hidden_act") && !raw.has("hidden_activation") {
        config.mlp.activation = Activation::Silu;
    }
    config.mechanisms.kv_head_count = raw.opt_usize_in("num_key_value_heads", HEADS)?;
    Ok(config)
}

/// A width that files may leave out.
pub fn opt_width(raw: &RawConfig, key: &str) -> Result<Option<usize>> {
    raw.opt_usize_in(key, WIDTH)
}

/// The number of a token that files may leave out.
pub fn token(raw: &RawConfig, key: &str) -> Result<Option<u32>> {
    let ids = raw.opt_integers(key)?.unwrap_or_default();
    Ok(ids.first().and_then(|&id| u32::try_from(id).ok()))
}

/// One activation for the heads of all tasks.
pub fn classifier_heads(raw: &RawConfig) -> Result<HeadConfigs> {
    let activation = raw.opt_string("classifier_activation")?.unwrap_or("gelu");
    let activation = config::activation(activation, raw.file())?;
    Ok(HeadConfigs {
        pooling: match raw.opt_string("classifier_pooling")? {
            Some("mean") => SequencePooling::Mean,
            _ => SequencePooling::First,
        },
        sequence_activation: activation,
        token_activation: activation,
        masked_activation: activation,
        ..HeadConfigs::default()
    })
}

/// Norms before the sublayers, and one at the end.
pub fn pre_norm(config: EncoderConfig) -> EncoderConfig {
    EncoderConfig {
        norm_placement: NormPlacement::Pre,
        ..config
    }
}

/// What towers that read images have in common.
pub fn vision(raw: &RawConfig, family: &'static str) -> Result<VisionConfig> {
    Ok(VisionConfig {
        encoder: EncoderConfig {
            positions: Positions::None,
            ..pre_norm(encoder(raw, family)?)
        },
        patch_size: raw.usize_in("patch_size", 1..=1024)?,
        patch_order: PatchOrder::ByChannel,
        positions: GridPositions::Fixed,
        finders: None,
        blocks: None,
        pooling: VisionPooling::First,
        classifier: ClassifierInput::First,
    })
}

/// An edge that files may write as a pair of the same lengths.
pub fn square_edge(raw: &RawConfig, key: &str) -> Result<Option<usize>> {
    let lengths = raw.opt_integers(key)?.unwrap_or_default();
    let alike = lengths.iter().all(|length| Some(length) == lengths.first());
    match lengths[..] {
        [] => Ok(None),
        [edge] | [edge, _] if alike && (1..=1024).contains(&edge) => Ok(Some(edge as usize)),
        _ => Err(Error::unsupported(
            raw.file(),
            format!("{key:?} is {lengths:?}, which is not the edge of a square"),
        )),
    }
}

/// How many patches fit beside each other and above each other in an image, whose edges are one number or height and
/// width.
pub fn patch_grid(raw: &RawConfig, key: &str, patch: usize) -> Result<(usize, usize)> {
    let patches = |edge: i64| usize::try_from(edge).unwrap_or(0) / patch;
    Ok(match raw.opt_integers(key)?.unwrap_or_default()[..] {
        [edge] => (patches(edge), patches(edge)),
        [height, width] => (patches(width), patches(height)),
        _ => (0, 0),
    })
}

/// What SigLIP's files leave out.
pub fn siglip(raw: &RawConfig) -> RawConfig {
    raw.clone().with_defaults(json!({
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }))
}
