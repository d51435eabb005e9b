//! GGUF metadata in the words of `config.json`, so that the rules of a family stand once.
//!
//! `GgufFile::like` asks a family what it makes of the translated metadata, and then corrects what llama.cpp's
//! converter has changed, or shows by the tensors alone: it fuses, splits, stacks and sorts matrices, adds Gemma's 1 to
//! norms, and stores frequencies that are scaled.

use std::ops::RangeInclusive;

use super::*;
use formats::files::raw_config::HEADS;
use formats::weights::Value as GgufValue;
use serde_json::{Map, Value};

/// What an architecture's key is called in `config.json`.
type Word = (&'static str, &'static str);

/// Keys that mean the same in every architecture.
const COMMON: &[Word] = &[
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.sliding_window_pattern", "sliding_window_pattern"),
    ("attention.clamp_kqv", "clip_qkv"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.indexer.head_count", "index_n_heads"),
    ("attention.indexer.key_length", "index_head_dim"),
    ("attention.indexer.top_k", "index_topk"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    (
        "embedding_length_per_layer_input",
        "hidden_size_per_layer_input",
    ),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("rope.freq_base", "rope_theta"),
    ("rope.freq_base_swa", "rope_local_base_freq"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("leading_dense_block_count", "first_k_dense_replace"),
];

const FULL: &str = "full_attention";

/// Tensors that show that a layer keeps a state.
const STATES: [&[&str]; 5] = [
    &["time_mix_key.weight"],
    &["ssm_conv1d.weight"],
    &["ssm_conv1d_q.weight"],
    &["shortconv.conv.weight"],
    &["attn_norm_2.weight", "attn_gate.weight"],
];

impl GgufFile<'_> {
    /// What a family makes of the file, given what else its architecture says.
    pub fn like(
        &self,
        config: impl FnOnce(&RawConfig) -> Result<DecoderConfig>,
        also: &[Word],
    ) -> Result<DecoderConfig> {
        self.like_with(config, also, json!({}))
    }

    /// The same, with words that the file does not have, or not as one key.
    pub fn like_with(
        &self,
        config: impl FnOnce(&RawConfig) -> Result<DecoderConfig>,
        also: &[Word],
        said: Value,
    ) -> Result<DecoderConfig> {
        let mut config = config(&self.as_config(also)?.with(said))?;
        self.correct(&mut config)?;
        self.correct_rope(&mut config)?;
        self.correct_experts(&mut config)?;
        Ok(config)
    }

    fn as_config(&self, also: &[Word]) -> Result<RawConfig> {
        let mut words = Map::new();
        let mut say = |word: &str, value: Value| {
            words.insert(word.to_owned(), value);
        };
        let layer_count = self.layer_count()?;
        say("model_type", json!(self.architecture()));
        say("vocab_size", json!(self.vocabulary()?));
        say("num_hidden_layers", json!(layer_count));
        say("hidden_size", json!(self.size("embedding_length", WIDTH)?));
        let positions = self.size("context_length", POSITIONS)?;
        say("max_position_embeddings", json!(positions));
        say("tie_word_embeddings", json!(!self.has("output")));
        let kinds = self.layer_kinds(layer_count);
        // Files of models without attention say that they have no heads.
        let attends = kinds.is_empty() || kinds.contains(&FULL);
        let range = if attends { HEADS } else { 0..=*HEADS.end() };
        let heads = self.largest("attention.head_count", range)?;
        let heads = heads.ok_or_else(|| self.missing("attention.head_count"))?;
        say("num_attention_heads", json!(heads.max(1)));
        if !kinds.is_empty() {
            say("layer_types", json!(kinds));
        }
        if let Some(heads) = self.largest("attention.head_count_kv", HEADS)? {
            say("num_key_value_heads", json!(heads));
        }
        if let Some(size) = self.opt_size("attention.key_length")? {
            say("head_dim", json!(size));
        }
        if self.opt_size("attention.kv_lora_rank")?.is_some() {
            let (plain, rotated, value) = self.latent_sizes()?;
            say("qk_nope_head_dim", json!(plain));
            say("qk_rope_head_dim", json!(rotated));
            say("v_head_dim", json!(value));
        }
        let window = self.opt_size("attention.sliding_window")?;
        if let Some(window) = window.filter(|&window| window > 0) {
            say("sliding_window", json!(window));
        }
        if let Some(windowed) = self.flags("attention.sliding_window_pattern", layer_count)? {
            let kind = |windowed| {
                if windowed {
                    "sliding_attention"
                } else {
                    "full_attention"
                }
            };
            let kinds = windowed.into_iter().map(kind);
            say("layer_types", kinds.collect());
        }
        if let Some(scaling) = self.scaling_words()? {
            say("rope_scaling", scaling);
        }
        for (key, word) in COMMON.iter().chain(also) {
            if let Some(value) = self.scalar(key)? {
                say(word, value);
            }
        }
        let called = COMMON.iter().chain(also);
        let called = called.map(|(key, word)| ((*word).to_owned(), self.key(key)));
        Ok(RawConfig::new(self.path(), Value::Object(words))?.called(called))
    }

    /// For each layer whether it has attention or a state; empty where none keeps one.
    fn layer_kinds(&self, layer_count: usize) -> Vec<&'static str> {
        let keeps = |layer: usize| {
            let has = |name: &str| self.shape(&format!("blk.{layer}.{name}")).is_some();
            STATES.iter().any(|all| all.iter().all(|name| has(name)))
        };
        let kinds = (0..layer_count).map(|layer| {
            if keeps(layer) {
                "linear_attention"
            } else {
                FULL
            }
        });
        let kinds: Vec<_> = kinds.collect();
        if kinds.iter().all(|kind| *kind == FULL) {
            Vec::new()
        } else {
            kinds
        }
    }

    /// A number or a flag; lists are read where they are meant.
    fn scalar(&self, name: &str) -> Result<Option<Value>> {
        let key = self.key(name);
        Ok(match self.metadata().get(&key) {
            None | Some(GgufValue::Array(_)) => None,
            Some(GgufValue::Bool(flag)) => Some(json!(flag)),
            Some(GgufValue::Unsigned(number)) => Some(json!(number)),
            Some(GgufValue::Signed(number)) => Some(json!(number)),
            Some(_) => self.metadata().opt_f32(&key)?.map(|number| json!(number)),
        })
    }

    /// The largest of a size that layers may have each for themselves.
    pub fn largest(&self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let sizes = self.sizes(name)?;
        let Some(largest) = sizes.iter().max().copied() else {
            return Ok(None);
        };
        let found = check_size(&self.key(name), largest, range);
        found.map_err(|reason| self.corrupt(reason))?;
        Ok(Some(largest))
    }

    /// A size, or one for each layer; none where the file does not say.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>> {
        let key = self.key(name);
        let Some(GgufValue::Array(_)) = self.metadata().get(&key) else {
            return Ok(self.opt_size(name)?.into_iter().collect());
        };
        let sizes = self.metadata().opt_i64s(&key)?.unwrap_or_default();
        let sizes = sizes.into_iter().map(usize::try_from);
        sizes
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| self.corrupt(format!("key {key:?} holds a negative number")))
    }

    /// A flag for each of so many layers, where the file has a list of them.
    pub fn flags(&self, name: &str, layer_count: usize) -> Result<Option<Vec<bool>>> {
        let key = self.key(name);
        let Some(GgufValue::Array(list)) = self.metadata().get(&key) else {
            return Ok(None);
        };
        if list.len() < layer_count {
            let found = list.len();
            let reason = format!("key {key:?} lists {found} of {layer_count} layers");
            return Err(self.corrupt(reason));
        }
        let is_set = |value| {
            matches!(
                value,
                GgufValue::Bool(true) | GgufValue::Unsigned(1..) | GgufValue::Signed(1..)
            )
        };
        Ok(Some(list.values().take(layer_count).map(is_set).collect()))
    }

    /// Of latent attention: how much of a key is plain and rotated, and the size of a head's values. Older files say
    /// so without the ending.
    fn latent_sizes(&self) -> Result<(usize, usize, usize)> {
        let of = |name: &str| -> Result<Option<usize>> {
            match self.opt_size(&format!("{name}_mla"))? {
                Some(size) => Ok(Some(size)),
                None => self.opt_size(name),
            }
        };
        let rotated = self.size("rope.dimension_count", WIDTH)?;
        let key = of("attention.key_length")?.unwrap_or(0);
        let plain = key.checked_sub(rotated).filter(|&plain| plain > 0);
        let plain = plain.ok_or_else(|| {
            let key = self.key("attention.key_length");
            self.corrupt(format!(
                "key {key:?} leaves nothing beside {rotated} rotated dimensions"
            ))
        })?;
        let value = match of("attention.value_length")? {
            Some(size) => size,
            None => {
                // MiniCPM's files show it by a matrix alone.
                let heads = self.size("attention.head_count", HEADS)?;
                let matrix = self.shape("blk.0.attn_kv_b.weight").unwrap_or_default();
                let rows = matrix.first().copied().unwrap_or(0);
                (rows / heads).saturating_sub(plain)
            }
        };
        Ok((plain, rotated, value))
    }

    /// Rotations by the kind of layer: those in windows have a base and a size of their own, and are not scaled.
    pub fn ropes_by_type(&self) -> Result<Value> {
        let rope = |base: &str, size: &str| -> Result<Map<String, Value>> {
            let mut words = Map::new();
            if let Some(theta) = self.scalar(base)? {
                words.insert("rope_theta".into(), theta);
            }
            let sizes = (self.opt_size(size)?, self.opt_size("attention.key_length")?);
            if let (Some(size), Some(head)) = sizes {
                // What is cut off later must not be less by rounding.
                let share = ((size as f64 + 0.5) / head.max(1) as f64).min(1.0);
                words.insert("partial_rotary_factor".into(), json!(share));
            }
            Ok(words)
        };
        let mut full = rope("rope.freq_base", "rope.dimension_count")?;
        if let Some(Value::Object(scaling)) = self.scaling_words()? {
            full.extend(scaling);
        }
        let own = "rope.dimension_count_swa";
        let own = self.opt_size(own)?.map_or("rope.dimension_count", |_| own);
        let sliding = rope("rope.freq_base_swa", own)?;
        Ok(json!({"full_attention": full, "sliding_attention": sliding}))
    }

    /// Scaled positions, unless tensors hold the divisors of frequencies.
    fn scaling_words(&self) -> Result<Option<Value>> {
        let kind = self.metadata().opt_str(&self.key("rope.scaling.type"))?;
        let kind = match kind {
            None | Some("none" | "longrope") => return Ok(None),
            Some(kind @ ("linear" | "yarn")) => kind,
            Some(other) => return Err(self.unscalable(other)),
        };
        let mut words = Map::new();
        words.insert("rope_type".into(), json!(kind));
        for (key, word) in [
            ("factor", "factor"),
            (
                "original_context_length",
                "original_max_position_embeddings",
            ),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
            ("yarn_attn_factor", "attention_factor"),
        ] {
            if let Some(value) = self.scalar(&format!("rope.scaling.{key}"))? {
                words.insert(word.into(), value);
            }
        }
        if let Some(scale) = self.number("rope.scaling.yarn_log_multiplier")? {
            // The converter divides DeepSeek's by ten.
            let tenth = self.opt_size("attention.kv_lora_rank")?.is_some();
            let scale = if tenth { 10.0 * scale } else { scale };
            words.insert("mscale".into(), json!(scale));
            words.insert("mscale_all_dim".into(), json!(scale));
        }
        Ok(Some(Value::Object(words)))
    }

    /// What the converter changes, and what tensors say.
    fn correct(&self, config: &mut DecoderConfig) -> Result<()> {
        config.architecture = self.architecture().to_owned();
        config.bidirectional = !self.flag("attention.causal", true)?;
        config.norm.offset = 0.0;
        if config.qkv != QkvLayout::Stacked {
            config.qkv = QkvLayout::Stacked;
            config.row_order = RowOrder::Grouped;
        }
        let mlps = config.sublayers.is_empty() || config.sublayers.iter().any(|layer| layer.mlp);
        if mlps {
            config.mlp.kind = self.mlp_kind()?;
        }
        let size = config.shape(0).head_size;
        let mut layers = 0..config.layer_count;
        let norm = layers.find(|&layer| config.sublayers(layer).attention);
        let norm = norm.unwrap_or(0);
        let norm = format!("blk.{norm}.attn_q_norm.weight");
        if config.query_key_norm != QueryKeyNorm::Plain {
            config.query_key_norm = match self.shape(&norm).as_deref() {
                None => QueryKeyNorm::None,
                Some([_, _]) => QueryKeyNorm::EachHead,
                Some([width]) if *width == size => QueryKeyNorm::PerHead,
                Some(_) => QueryKeyNorm::Whole,
            };
        }
        for (key, scale) in [
            ("attention.scale", &mut config.attention_scale),
            ("embedding_scale", &mut config.embedding_scale),
            ("residual_scale", &mut config.residual_scale),
        ] {
            if let Some(given) = self.number(key)?.filter(|given| *given != 0.0) {
                *scale = given;
            }
        }
        Ok(())
    }

    fn correct_rope(&self, config: &mut DecoderConfig) -> Result<()> {
        let Some(rope) = config.relative.rope_mut() else {
            return Ok(());
        };
        if !rope.by_layer.is_empty() {
            return Ok(());
        }
        if let Some(size) = self.opt_size("rope.dimension_count")? {
            rope.rotary_size = size;
        }
        let given = self.rope_scaling(rope.rotary_size)?;
        if matches!(
            given,
            RopeScaling::Divisors(_) | RopeScaling::LongRope { .. }
        ) {
            rope.scaling = given;
        }
        Ok(())
    }

    fn correct_experts(&self, config: &mut DecoderConfig) -> Result<()> {
        let layer_has = |layer: usize, name: &str| self.has(&format!("blk.{layer}.{name}"));
        let layers = 0..config.layer_count;
        let sparse: Vec<bool> = layers
            .map(|layer| layer_has(layer, "ffn_gate_inp"))
            .collect();
        let Some(first) = sparse.iter().position(|sparse| *sparse) else {
            config.experts = None;
            return Ok(());
        };
        let Some(experts) = &mut config.experts else {
            return Ok(());
        };
        experts.layers = sparse;
        experts.layout = ExpertLayout::Parts;
        let bias = format!("blk.{first}.exp_probs_b");
        experts.biased = [".bias", ""]
            .iter()
            .any(|ending| self.shape(&format!("{bias}{ending}")).is_some());
        experts.shared = if layer_has(first, "ffn_gate_inp_shexp") {
            Shared::Gated
        } else if layer_has(first, "ffn_up_shexp") {
            Shared::Plain
        } else {
            Shared::None
        };
        match self.opt_size("expert_gating_func")?.unwrap_or(0) {
            0 => {}
            1 => experts.scoring = Scoring::Softmax,
            2 if experts.scoring == Scoring::SigmoidOfChosen => {}
            2 => experts.scoring = Scoring::Sigmoid,
            // A softmax of the chosen alone.
            3 => (experts.scoring, experts.normalize) = (Scoring::Softmax, true),
            other => {
                let key = self.key("expert_gating_func");
                let reason = format!("key {key:?} is {other}, which is not supported");
                return Err(Error::unsupported(self.path(), reason));
            }
        }
        Ok(())
    }
}
