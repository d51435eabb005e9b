//! How the layers of a decoder divide attention, where they differ.

use super::config::DecoderConfig;
use crate::models::config::{check_layers, AttentionShape, Checked};

/// The attention of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    pub head_count: usize,
    pub kv_head_count: usize,
    /// Of queries and keys.
    pub head_size: usize,
    /// Of values.
    pub value_size: usize,
    pub kv: KvSource,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    Own,
    /// Values are the projected keys, before these are normalized and rotated (Gemma 4).
    KeysAlone,
    /// The layer reads those that an earlier layer has stored (Gemma 3n and 4).
    Layer(usize),
}

impl LayerShape {
    /// The width of a head where keys and values are stored side by side: the narrower of them end in zeros.
    pub fn stored_size(&self) -> usize {
        self.head_size.max(self.value_size)
    }
}

impl DecoderConfig {
    /// The attention of a layer.
    pub fn shape(&self, layer: usize) -> LayerShape {
        let own = self.shapes.get(layer).copied();
        own.unwrap_or(LayerShape {
            head_count: self.head_count,
            kv_head_count: self.kv_head_count,
            head_size: self.head_size,
            value_size: self.head_size,
            kv: KvSource::Own,
        })
    }

    /// The sizes of a layer's matrices.
    pub fn attention_shape(&self, layer: usize) -> AttentionShape {
        let shape = self.shape(layer);
        // Heads that attend twice have matrices for one.
        let times = 1 + usize::from(self.differential);
        AttentionShape {
            hidden_size: self.hidden_size,
            head_count: shape.head_count / times,
            kv_head_count: shape.kv_head_count / times,
            head_size: shape.head_size,
            value_size: shape.value_size,
        }
    }

    /// The width of what all heads of a layer give together.
    pub fn attended_width(&self, layer: usize) -> usize {
        match self.latent {
            Some(latent) => self.head_count * latent.value_size,
            None => self.attention_shape(layer).attended_width(),
        }
    }

    /// The layer whose keys and values a layer reads.
    pub fn kv_layer(&self, layer: usize) -> usize {
        match self.shape(layer).kv {
            KvSource::Layer(source) => source,
            KvSource::Own | KvSource::KeysAlone => layer,
        }
    }

    /// Layers whose keys and values others read too.
    pub fn shared_layers(&self) -> Vec<usize> {
        let sources = (0..self.layer_count).filter_map(|layer| match self.shape(layer).kv {
            KvSource::Layer(source) => Some(source),
            KvSource::Own | KvSource::KeysAlone => None,
        });
        let mut sources: Vec<usize> = sources.collect();
        sources.sort();
        sources.dedup();
        sources
    }

    /// The last so many layers read the keys and values of the last layer before them that has a window as they do,
    /// or none as they do.
    pub fn share_last(&mut self, count: usize) {
        let first = self.layer_count.saturating_sub(count);
        let windowed = |layer: usize| self.windows.get(layer).is_some_and(Option::is_some);
        let shape = |layer: usize| {
            let mut sources = (0..first).rev();
            let source = sources.find(|&other| windowed(other) == windowed(layer));
            match source.filter(|_| layer >= first) {
                Some(source) => LayerShape {
                    kv: KvSource::Layer(source),
                    ..self.shape(layer)
                },
                None => self.shape(layer),
            }
        };
        let shapes = (0..self.layer_count).map(shape).collect();
        self.shapes = shapes;
    }

    pub(super) fn check_shapes(&self) -> Checked {
        if !self.shapes.is_empty() {
            check_layers("the list of heads", self.shapes.len(), self.layer_count)?;
        }
        for layer in 0..self.shapes.len().max(1) {
            self.attention_shape(layer).check()?;
            let shape = self.shape(layer);
            let source = self.kv_layer(layer);
            let of_source = self.shape(source);
            let fits = (of_source.kv_head_count, of_source.head_size)
                == (shape.kv_head_count, shape.head_size)
                && shape.value_size == of_source.value_size;
            let stores =
                source == layer || source < layer && !matches!(of_source.kv, KvSource::Layer(_));
            if !fits || !stores {
                return Err(format!(
                    "layer {layer} can't read the keys and values of layer {source}"
                ));
            }
            if let Some(rope) = self.relative.rope() {
                let own = rope.by_layer.get(layer).and_then(Option::as_ref);
                own.unwrap_or(rope)
                    .check(shape.head_size, self.layer_count)?;
            }
        }
        match self.relative.rope() {
            Some(rope) => rope.check(self.head_size, self.layer_count),
            None => Ok(()),
        }
    }
}
