//! Keys and values of a text that is read alone, in a pool of its own.

use std::sync::Arc;

use candle_core::DType;

use super::adapter::Adapter;
use super::config::DecoderConfig;
use super::pool::{KvPool, Sequence};
use super::stages::Stages;
use crate::Result;
use kernels::paged::KvType;

pub struct KvCache {
    pub(super) pool: KvPool,
    pub(super) sequence: Sequence,
}

impl KvCache {
    pub fn new(config: &DecoderConfig, stages: &Stages, dtype: DType) -> Result<Self> {
        Ok(Self {
            pool: KvPool::new(config, KvType::of(dtype), stages, usize::MAX)?,
            sequence: Sequence::default(),
        })
    }

    /// How many positions are cached.
    pub fn length(&self) -> usize {
        self.sequence.length()
    }

    /// What its keys and values take.
    pub fn bytes(&self) -> usize {
        self.pool.bytes()
    }

    pub fn rope_variant(&self) -> usize {
        self.sequence.rope_variant()
    }

    /// Goes on with this adapter; what another one made is void.
    pub fn adapt(&mut self, adapter: Option<Arc<Adapter>>) {
        let same = match (self.sequence.adapter(), &adapter) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            self.begin(adapter, self.rope_variant());
        }
    }

    pub fn clear(&mut self, rope_variant: usize) {
        self.begin(self.sequence.adapter().cloned(), rope_variant);
    }

    fn begin(&mut self, adapter: Option<Arc<Adapter>>, rope_variant: usize) {
        self.pool.truncate(&mut self.sequence, 0);
        self.sequence = Sequence::new(adapter);
        self.sequence.set_rope_variant(rope_variant);
    }
}
