//! Keys and values of the tokens seen so far: the run state of one conversation.

use std::sync::Arc;

use candle_core::Tensor;

use super::adapter::Adapter;
use super::config::DecoderConfig;
use crate::runtime::device::zeros;
use crate::Result;

/// Rows are allocated in multiples of this.
const CHUNK: usize = 256;

pub struct KvCache {
    layers: Vec<LayerCache>,
    /// The tokens whose keys and values are complete in every layer.
    tokens: Vec<u32>,
    /// Which rotation the keys were made with; see `RopeConfig::variant`.
    rope_variant: usize,
    /// What the keys and values were, and further ones will be, made with.
    adapter: Option<Arc<Adapter>>,
}

struct LayerCache {
    /// `[capacity, key-value heads, head size]` each.
    storage: Option<(Tensor, Tensor)>,
    /// The position that row 0 holds.
    start: usize,
    rows: usize,
    window: Option<usize>,
}

impl KvCache {
    pub fn new(config: &DecoderConfig) -> Self {
        let layer = |&window: &Option<usize>| LayerCache {
            storage: None,
            start: 0,
            rows: 0,
            window,
        };
        Self {
            layers: config.windows.iter().map(layer).collect(),
            tokens: Vec::new(),
            rope_variant: 0,
            adapter: None,
        }
    }

    /// How many positions are cached.
    pub fn length(&self) -> usize {
        self.tokens.len()
    }

    /// What its keys and values take.
    pub fn bytes(&self) -> usize {
        let size = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let storages = self
            .layers
            .iter()
            .filter_map(|layer| layer.storage.as_ref());
        storages
            .map(|(keys, values)| size(keys) + size(values))
            .sum()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn rope_variant(&self) -> usize {
        self.rope_variant
    }

    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }

    /// Goes on with this adapter; what another one made is void.
    pub fn adapt(&mut self, adapter: Option<Arc<Adapter>>) {
        let same = match (&self.adapter, &adapter) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.clear(self.rope_variant);
            self.adapter = adapter;
        }
    }

    pub fn clear(&mut self, rope_variant: usize) {
        for layer in &mut self.layers {
            (layer.start, layer.rows) = (0, 0);
        }
        self.tokens.clear();
        self.rope_variant = rope_variant;
    }

    /// Keeps as much of the common prefix with `tokens` as the windows still hold, and returns its
    /// length.
    pub fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let common = self
            .tokens
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b)
            .count();
        if self.layers.iter().all(|layer| layer.reaches(common)) {
            self.tokens.truncate(common);
        } else {
            self.clear(self.rope_variant);
        }
        self.tokens.len()
    }

    /// Adds the rows of new tokens to one layer and returns all that it attends to.
    pub(super) fn append(
        &mut self,
        layer: usize,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let length = self.tokens.len();
        self.layers[layer].append(length, keys, values)
    }

    /// Declares tokens complete, after their rows went to every layer.
    pub(super) fn advance(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}

impl LayerCache {
    /// Whether everything that position `length` attends to is still here.
    fn reaches(&self, length: usize) -> bool {
        let oldest = self
            .window
            .map_or(0, |window| (length + 1).saturating_sub(window));
        self.start <= oldest && length <= self.start + self.rows
    }

    fn append(
        &mut self,
        length: usize,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        // A forward that was cancelled may have left rows behind.
        self.rows = length - self.start;
        let added = keys.dim(0)?;
        self.make_room(added, keys, values)?;
        let Some((key_storage, value_storage)) = &self.storage else {
            return Ok((keys.clone(), values.clone()));
        };
        key_storage.slice_set(&keys.contiguous()?, 0, self.rows)?;
        value_storage.slice_set(&values.contiguous()?, 0, self.rows)?;
        self.rows += added;
        Ok((
            key_storage.narrow(0, 0, self.rows)?,
            value_storage.narrow(0, 0, self.rows)?,
        ))
    }

    fn make_room(&mut self, added: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        let capacity = match &self.storage {
            Some((storage, _)) => storage.dim(0)?,
            None => 0,
        };
        if self.rows + added <= capacity {
            return Ok(());
        }
        let kept = self
            .window
            .map_or(self.rows, |window| self.rows.min(window.saturating_sub(1)));
        let needed = kept + added;
        let wanted = if needed <= capacity {
            capacity
        } else {
            (needed + needed / 2).next_multiple_of(CHUNK)
        };
        let old = self.storage.take();
        let first = self.rows - kept;
        let moved = |old: Option<&Tensor>, like: &Tensor| -> Result<Tensor> {
            let (_, heads, size) = like.dims3()?;
            let shape = [wanted, heads, size];
            let fresh = zeros(&shape, like.dtype(), like.device(), "the KV cache")?;
            if let Some(old) = old.filter(|_| kept > 0) {
                fresh.slice_set(&old.narrow(0, first, kept)?.contiguous()?, 0, 0)?;
            }
            Ok(fresh)
        };
        let fresh_keys = moved(old.as_ref().map(|(keys, _)| keys), keys)?;
        let fresh_values = moved(old.as_ref().map(|(_, values)| values), values)?;
        self.storage = Some((fresh_keys, fresh_values));
        self.start += first;
        self.rows = kept;
        Ok(())
    }
}
