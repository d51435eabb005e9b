//! The memory for keys and values of one model, and the sequences that have pages of it.

use std::ops::Range;
use std::sync::Arc;

use super::adapter::Adapter;
use super::config::DecoderConfig;
use super::pages::{Kind, PageBook};
use super::stages::Stages;
use super::state_memory::{SavedState, StateMemory};
use super::states::{SequenceState, StateLayout, Worth};
use crate::{Error, Result};
use base::runtime::memory::format_bytes;
use kernels::paged::{KvShape, KvType, PagedLayer, PAGE};

/// What a page is taken for where no layer has keys: its place in the book.
const BOOK_BYTES: usize = 1024;

/// States that are saved at equal distances of one prompt take at most this part of the memory.
const STATES_SHARE: usize = 8;
/// They are at least so many pages apart where one takes more memory than these.
const APART: usize = 4;

/// So many tokens share what a sequence takes whatever its length.
const USUAL_LENGTH: usize = 1024;

pub struct KvPool {
    layers: Vec<PagedLayer>,
    /// For each layer of the model, which of these it reads.
    places: Vec<usize>,
    /// The keys of layers that choose.
    indexes: Vec<Option<PagedLayer>>,
    book: PageBook,
    page_bytes: usize,
    /// Of the states that sequences keep, where layers do, and how many pages one sequence's take.
    states: Option<Arc<StateLayout>>,
    state_pages: usize,
    /// Where they are, on a GPU.
    state_memory: Option<StateMemory>,
    /// How many positions a token sees at most, its own included; `None` is all.
    reach: Option<usize>,
    begun: u64,
}

/// The tokens of one text whose keys and values are in a pool, complete in every layer. It must go back
/// to its pool by [`KvPool::release`] in the end.
#[derive(Default)]
pub struct Sequence {
    tokens: Vec<u32>,
    pages: Vec<u32>,
    /// How many of the first pages were released, since they are out of every window. Others may use them.
    passed: usize,
    /// Which rotation the keys were made with; see `RopeConfig::variant`.
    rope_variant: usize,
    /// What the keys and values are made with.
    adapter: Option<Arc<Adapter>>,
    /// What layers without keys keep, once there is room for it, and what that begins with.
    state: Option<Box<SequenceState>>,
    resumed: Option<SavedState>,
    /// How long the beginning is that others have too.
    common: usize,
    /// How long the whole prompt is expected to be, and the instructions that it begins with.
    expected: (usize, usize),
    /// How many of the first tokens see each other. What is computed of them is of no use to another prompt.
    prompt: usize,
    state_pages: usize,
}

impl Sequence {
    pub fn new(adapter: Option<Arc<Adapter>>) -> Self {
        Self {
            adapter,
            ..Self::default()
        }
    }

    /// How many positions are there.
    pub fn length(&self) -> usize {
        self.tokens.len()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// How many pages it has, and how many its state takes.
    pub fn held(&self) -> usize {
        self.pages.len() - self.passed + self.state_pages
    }

    /// How many tokens its pages have room for.
    pub fn room(&self) -> usize {
        (self.pages.len() - self.passed) * PAGE
    }

    pub fn rope_variant(&self) -> usize {
        self.rope_variant
    }

    pub(super) fn state(&self) -> Option<&SequenceState> {
        self.state.as_deref()
    }

    /// To be called before anything is read.
    pub(super) fn set_rope_variant(&mut self, variant: usize) {
        self.rope_variant = variant;
    }

    /// How many of the first tokens see each other, whichever comes first.
    pub fn bidirectional_prompt(&self) -> usize {
        self.prompt
    }

    /// To be called before anything is read.
    pub fn set_bidirectional_prompt(&mut self, length: usize) {
        self.prompt = length;
    }

    /// How long the prompt will be, and how much of it are instructions, with which other prompts begin too: states
    /// are saved for the prefix cache accordingly. To be called before anything is read.
    pub fn expect(&mut self, prompt: usize, instructions: usize) {
        self.expected = (prompt, instructions);
    }

    pub fn adapter(&self) -> Option<&Arc<Adapter>> {
        self.adapter.as_ref()
    }

    fn kind(&self) -> Kind {
        let adapter = self.adapter.as_ref();
        (adapter.map_or(0, |adapter| adapter.id()), self.rope_variant)
    }

    /// Declares all but the first `length` tokens, which a step before the latest has read, not computed, and keeps
    /// the pages for another attempt.
    pub(crate) fn rewind(&mut self, length: usize) {
        self.go_back(length);
    }

    /// Forgets all but the first `length` tokens, or more where there is no state for these.
    fn go_back(&mut self, length: usize) {
        let length = match &mut self.state {
            Some(state) if length < self.tokens.len() => state.go_back(length),
            _ => length,
        };
        self.tokens.truncate(length);
    }
}

impl KvPool {
    /// Pages of at most `limit` bytes in all. The keys and values of each layer are where it is.
    pub fn new(
        config: &DecoderConfig,
        kind: KvType,
        stages: &Stages,
        limit: usize,
    ) -> Result<Self> {
        let device = |layer: usize| &stages.home_of(layer).device;
        let stored: Vec<usize> = storing(config).collect();
        let layers = stored
            .iter()
            .map(|&layer| PagedLayer::new(kv_shape(config, layer), kind, device(layer)));
        let place = |layer| stored.partition_point(|&stored| stored < config.kv_layer(layer));
        let indexes = (0..config.layer_count).map(|layer| {
            let indexer = config.indexer.as_ref();
            let indexer = indexer.filter(|indexer| indexer.layers[layer]);
            let shape = indexer.map(|indexer| KvShape {
                heads: 1,
                width: indexer.size,
            });
            shape
                .map(|shape| PagedLayer::new(shape, kind, device(layer)))
                .transpose()
        });
        let states = StateLayout::new(config).map(Arc::new);
        let page_bytes = match Self::token_bytes(config, kind) * PAGE {
            0 => BOOK_BYTES,
            bytes => bytes,
        };
        let state_bytes = states.as_ref().map_or(0, |states| states.bytes());
        let book = PageBook::new((limit / page_bytes).min(u32::MAX as usize / PAGE));
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            indexes: indexes.collect::<Result<_>>()?,
            places: (0..config.layer_count).map(place).collect(),
            book: book.with_states(state_bytes.div_ceil(page_bytes)),
            state_pages: (SequenceState::COPIES * state_bytes).div_ceil(page_bytes),
            state_memory: match &states {
                Some(states) => StateMemory::new(states, &stages.main().device)?,
                None => None,
            },
            states,
            begun: 0,
            page_bytes,
            reach: config.reach(),
        })
    }

    /// What a token takes.
    pub fn token_bytes(config: &DecoderConfig, kind: KvType) -> usize {
        Self::layer_bytes(config, kind, 0..config.layer_count)
    }

    /// What a token takes in some of the layers.
    pub fn layer_bytes(config: &DecoderConfig, kind: KvType, layers: Range<usize>) -> usize {
        let index = config.indexer.as_ref().map_or(0, |indexer| {
            let own = indexer.layers.iter().enumerate();
            let own = own.filter(|(layer, chooses)| **chooses && layers.contains(layer));
            2 * own.count() * kind.bytes(indexer.size)
        });
        let of_layer = |layer| {
            let KvShape { heads, width } = kv_shape(config, layer);
            2 * kind.bytes(heads * width)
        };
        let stored = storing(config).filter(|layer| layers.contains(layer));
        stored.map(of_layer).sum::<usize>() + index
    }

    /// What a sequence takes whatever its length.
    pub fn sequence_bytes(config: &DecoderConfig) -> usize {
        let states = StateLayout::new(config);
        states.map_or(0, |states| SequenceState::COPIES * states.bytes())
    }

    /// What a token takes, with its share in what its sequence takes.
    pub fn spread_bytes(config: &DecoderConfig, kind: KvType) -> usize {
        let share = Self::sequence_bytes(config).div_ceil(USUAL_LENGTH);
        Self::token_bytes(config, kind) + share
    }

    pub fn book(&self) -> &PageBook {
        &self.book
    }

    /// How many sequences were begun: until there are more, nobody else stands where a sequence stood.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The memory taken so far.
    pub fn bytes(&self) -> usize {
        let all = self.layers.iter().chain(self.indexes.iter().flatten());
        all.map(PagedLayer::bytes).sum::<usize>() + self.book.state_pages() * self.page_bytes
    }

    /// How many tokens there may be in all.
    pub fn most_tokens(&self) -> usize {
        self.book.limit().saturating_sub(self.state_pages) * PAGE
    }

    /// An error unless a sequence of so many tokens fits when it has the pool to itself.
    pub fn check_fits(&self, tokens: usize) -> Result<()> {
        if tokens <= self.most_tokens() {
            return Ok(());
        }
        let pages = tokens.div_ceil(PAGE).saturating_add(self.state_pages);
        let needed = pages.saturating_mul(self.page_bytes);
        let kept = match self.states {
            Some(_) => "keys, values and states",
            None => "keys and values",
        };
        Err(Error::InvalidInput(format!(
            "{tokens} tokens need {} of {kept}, but kv_cache: allows {}: raise it, choose a smaller \
             kv_dtype:, or shorten the text",
            format_bytes(needed),
            format_bytes(self.book.limit() * self.page_bytes)
        )))
    }

    /// After every how many tokens of a prompt of this length its state is saved: after every page where states are
    /// small, and so rarely that all of them take [`STATES_SHARE`] of the memory at most.
    pub fn state_spacing(&self, prompt: usize) -> usize {
        let state = self.book.state_size();
        let all = prompt.div_ceil(PAGE).saturating_mul(state);
        let share = (self.book.limit() / STATES_SHARE).max(1);
        let pages = all.div_ceil(share).max(state.clamp(1, APART));
        pages.saturating_mul(PAGE)
    }

    /// A sequence that begins with whatever of `tokens` is kept here. `rope_variant` is the rotation that
    /// the whole text needs.
    pub fn begin(
        &mut self,
        adapter: Option<Arc<Adapter>>,
        rope_variant: usize,
        tokens: &[u32],
    ) -> Result<Sequence> {
        let mut sequence = Sequence {
            adapter,
            rope_variant,
            ..Sequence::default()
        };
        self.begun += 1;
        let found = self.book.find(sequence.kind(), tokens);
        sequence.pages = found.pages;
        sequence.resumed = found.state;
        sequence.common = found.common;
        sequence
            .tokens
            .extend_from_slice(&tokens[..sequence.pages.len() * PAGE]);
        if let Some((page, common)) = found.partly {
            // The page may be the one that is evicted for its copy.
            if let Some(copy) = self.book.allocate(sequence.pages.last().copied()) {
                if let Err(error) = self.copy(page, copy) {
                    self.book.release(copy);
                    self.release(sequence);
                    return Err(error);
                }
                sequence.pages.push(copy);
                let length = sequence.tokens.len();
                sequence
                    .tokens
                    .extend_from_slice(&tokens[length..length + common]);
            } else if sequence.resumed.take().is_some() {
                // The state belongs to a page that is missing.
                self.shorten(&mut sequence, 0);
                sequence.tokens.clear();
            }
        }
        Ok(sequence)
    }

    fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        self.reserve_page(to)?;
        if from == to {
            return Ok(());
        }
        self.all_mut().try_for_each(|layer| layer.copy(from, to))
    }

    /// Makes sure that there is memory for a page.
    fn reserve_page(&mut self, page: u32) -> Result<()> {
        let pages = page as usize + 1;
        self.all_mut().try_for_each(|layer| layer.reserve(pages))
    }

    /// Pages for `added` more tokens; false, and nothing is changed, where there are too few.
    pub fn extend(&mut self, sequence: &mut Sequence, added: usize) -> Result<bool> {
        if let (Some(layout), None) = (&self.states, &sequence.state) {
            if !self.book.charge(self.state_pages) {
                return Ok(false);
            }
            sequence.state_pages = self.state_pages;
            let resumed = sequence.resumed.take();
            let (prompt, instructions) = sequence.expected;
            let worth = Worth {
                instructions: instructions / PAGE * PAGE,
                common: sequence.common,
                spacing: self.state_spacing(prompt.max(sequence.length() + added)),
            };
            let memory = self.state_memory.as_mut();
            let state = SequenceState::new(layout, resumed, (sequence.length(), worth), memory)?;
            sequence.state = Some(Box::new(state));
        }
        let before = sequence.pages.len();
        let wanted = (sequence.length() + added).div_ceil(PAGE);
        while sequence.pages.len() < wanted {
            let page = self.book.allocate(sequence.pages.last().copied());
            let Some(page) = page else {
                self.shorten(sequence, before);
                return Ok(false);
            };
            sequence.pages.push(page);
            if let Err(error) = self.reserve_page(page) {
                self.shorten(sequence, before);
                return Err(error);
            }
        }
        Ok(true)
    }

    fn shorten(&mut self, sequence: &mut Sequence, pages: usize) {
        let first = pages.max(sequence.passed);
        for &page in &sequence.pages[first.min(sequence.pages.len())..] {
            self.book.release(page);
        }
        sequence.pages.truncate(pages);
        sequence.passed = sequence.passed.min(pages);
    }

    /// Adds the sequence's full pages to the prefix cache.
    pub fn share(&mut self, sequence: &mut Sequence) {
        if sequence.prompt > 0 {
            return;
        }
        let kind = sequence.kind();
        let whole = sequence.length() / PAGE;
        let (tokens, pages) = (
            &sequence.tokens[..whole * PAGE],
            &mut sequence.pages[..whole],
        );
        self.book.keep(kind, tokens, pages, sequence.passed, false);
        let states = sequence.state.as_mut().map(|state| state.take_saved());
        for (length, state) in states.unwrap_or_default() {
            self.book.save(kind, &sequence.tokens[..length], state);
        }
    }

    /// Releases the pages that are out of every window, in a model whose layers all have one. They stay
    /// in the prefix cache until the memory is needed.
    pub fn pass_by(&mut self, sequence: &mut Sequence) {
        let Some(reach) = self.reach else { return };
        let passed = (sequence.length() + 1).saturating_sub(reach) / PAGE;
        let passed = passed.min(sequence.pages.len().saturating_sub(1));
        for &page in sequence.pages.get(sequence.passed..passed).unwrap_or(&[]) {
            self.book.release(page);
        }
        sequence.passed = sequence.passed.max(passed);
        // A query that reads more than the window sees the sequence's own there, and not what others write.
        if let Some(&own) = sequence.pages.get(sequence.passed) {
            sequence.pages[..sequence.passed].fill(own);
        }
    }

    /// Forgets all but the first `length` tokens, of which the last page must be the sequence's own. A sequence whose
    /// layers keep states forgets more where it has none for these.
    pub fn truncate(&mut self, sequence: &mut Sequence, length: usize) {
        sequence.go_back(length);
        self.shorten(sequence, sequence.length().div_ceil(PAGE));
    }

    /// Ends a sequence; what it has read stays in the prefix cache until the memory is wanted.
    pub fn release(&mut self, mut sequence: Sequence) {
        if sequence.prompt > 0 {
            sequence.tokens.clear();
        }
        let kind = sequence.kind();
        let written = sequence.length().div_ceil(PAGE);
        self.shorten(&mut sequence, written);
        let passed = sequence.passed;
        let state = sequence.state.take();
        self.book.discharge(sequence.state_pages);
        // What can't be copied is computed again.
        let memory = self.state_memory.as_mut();
        let state = state.and_then(|state| state.into_current(memory).ok().flatten());
        // Without a state nobody can go on in the midst of a page.
        let finally = self.states.is_none() || state.is_some();
        let (tokens, pages) = (&sequence.tokens, &mut sequence.pages);
        self.book.keep(kind, tokens, pages, passed, finally);
        if let Some(state) = state.filter(|_| !tokens.is_empty()) {
            self.book.save(kind, tokens, state);
        }
        self.shorten(&mut sequence, 0);
    }

    /// The state of a sequence, before a step reads so many tokens, of which the logits of the last `wanted` are.
    pub(super) fn prepare<'a>(
        &mut self,
        sequence: &'a mut Sequence,
        rows: usize,
        wanted: usize,
    ) -> Result<Option<&'a mut SequenceState>> {
        let Some(state) = sequence.state.as_deref_mut() else {
            return Ok(None);
        };
        // All but the first of these may be draft tokens.
        let doubtful = wanted.saturating_sub(1);
        state.prepare(rows, doubtful, wanted > 0, self.state_memory.as_mut())?;
        Ok(Some(state))
    }

    /// Declares tokens complete, after their rows went to every layer.
    pub(super) fn advance(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<()> {
        if let Some(state) = &mut sequence.state {
            state.advance(tokens.len(), self.state_memory.as_mut())?;
        }
        sequence.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// What layers without keys keep of a sequence, for comparisons; `None` where it is to be made again.
    pub fn state_values(&self, sequence: &Sequence) -> Result<Option<Vec<f32>>> {
        match &sequence.state {
            Some(state) => state.values(self.state_memory.as_ref()),
            None => Ok(None),
        }
    }

    /// Of the states of sequences, on a GPU.
    pub(super) fn state_memory(&mut self) -> Option<&mut StateMemory> {
        self.state_memory.as_mut()
    }

    /// Evicts every cached page and state that no sequence uses.
    pub fn forget_idle(&mut self) {
        self.book.forget_idle();
    }

    /// Of the keys and values of all layers, on a GPU, and of states; `None` where these have no place yet.
    pub(super) fn addresses(&mut self) -> Result<Option<Vec<u64>>> {
        let layers = self.layers.iter().map(PagedLayer::addresses);
        let layers = layers.collect::<Result<Vec<_>>>()?.into_iter().flatten();
        Ok(match &mut self.state_memory {
            Some(memory) => {
                let states = memory.addresses()?;
                states.map(|states| layers.chain(states).collect())
            }
            None => Some(layers.collect()),
        })
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut PagedLayer> {
        let indexes = self.indexes.iter_mut().flatten();
        self.layers.iter_mut().chain(indexes)
    }

    /// The keys of a layer that chooses.
    pub(super) fn index(&mut self, layer: usize) -> Option<&mut PagedLayer> {
        self.indexes[layer].as_mut()
    }

    /// What a layer stores in, or reads of another.
    pub(super) fn layer(&mut self, layer: usize) -> &mut PagedLayer {
        &mut self.layers[self.places[layer]]
    }
}

/// Layers that have keys and values, and read no other's.
fn storing(config: &DecoderConfig) -> impl Iterator<Item = usize> + '_ {
    let layers = (0..config.layer_count).filter(|&layer| config.kv_layer(layer) == layer);
    layers.filter(|&layer| config.sublayers(layer).attention)
}

/// Keys and values are stored as wide as the wider of them.
fn kv_shape(config: &DecoderConfig, layer: usize) -> KvShape {
    let shape = config.shape(layer);
    KvShape {
        heads: shape.kv_head_count,
        width: shape.stored_size(),
    }
}
