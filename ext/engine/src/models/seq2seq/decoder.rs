//! The half that writes: its layers attend to what was written and to what an encoder made, of texts or of
//! audio.

use candle_core::{DType, Device, Tensor};

use super::cache::{Cache, Memory};
use super::layer::{Group, Kept, Layer, Step, Tokens};
use super::output::OutputLayer;
use crate::models::encoder::embeddings::Embeddings;
use crate::models::encoder::relative::RelativePositions;
use crate::models::encoder::EncoderConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::{Names, Part};
use crate::nn::{elementwise, Inventory, Norm, PackedSequences};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use formats::weights::WeightSource;

/// Rows whose next tokens are wanted: their latest tokens, what they have written before, and what they
/// read.
pub struct Rows<'a> {
    pub ids: &'a [u32],
    pub cache: &'a Cache,
    pub memory: &'a Memory,
}

/// What a decoder is, beside its weights.
#[derive(Clone, Debug)]
pub struct DecoderShape {
    /// In the words of an encoder: its attention is causal.
    pub stack: EncoderConfig,
    pub vocab_size: usize,
    /// Multiplies the states that logits are made of.
    pub output_scale: f32,
    /// Whether it writes few texts at a time: its layers are then held for that.
    pub few_rows: bool,
}

/// A decoder with cross-attention.
#[derive(Debug)]
pub struct CrossDecoder {
    shape: DecoderShape,
    pub(super) embeddings: Embeddings,
    pub(super) relative: RelativePositions,
    pub(super) layers: Vec<Layer>,
    final_norm: Option<Norm>,
    /// `None` in a model that is loaded for its hidden states.
    head: Option<OutputLayer>,
    logit_bias: Option<Tensor>,
    device: Device,
    /// Whether linear layers are rounded to bytes.
    int8: bool,
}

impl CrossDecoder {
    /// Without a head.
    pub fn load(
        shape: DecoderShape,
        names: &Names,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let stack = &shape.stack;
        let parameters = Parameters::new(source, names, device, dtype)?
            .with_int8(int8)
            .with_compact(shape.few_rows);
        parameters.check_layers(stack.stored_layers())?;
        let layers = (0..stack.layers.len())
            .map(|number| {
                cancel.check()?;
                Layer::load(stack, &parameters, number)
            })
            .collect::<Result<Vec<_>>>()?;
        let hidden = [stack.hidden_size];
        Ok(Self {
            embeddings: Embeddings::load(stack, &parameters)?,
            relative: RelativePositions::load(stack, &parameters)?,
            layers,
            final_norm: parameters.optional_norm(Part::FinalNorm, &hidden, stack.norm)?,
            head: None,
            logit_bias: None,
            device: device.clone(),
            int8,
            shape,
        })
    }

    /// Reads the head that predicts the next token.
    pub fn load_head(
        &mut self,
        names: &Names,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
    ) -> Result<()> {
        let parameters = Parameters::new(source, names, device, dtype)?
            .with_int8(self.int8)
            .with_compact(self.shape.few_rows);
        let (hidden, vocabulary) = (self.shape.stack.hidden_size, self.shape.vocab_size);
        let head = if parameters.has(Part::Head) {
            OutputLayer::Plain(parameters.linear(Part::Head, hidden, vocabulary)?)
        } else {
            OutputLayer::tied(self.embeddings.tokens(), self.shape.few_rows, self.int8)?
        };
        let bias = parameters.optional_tensor(Part::LogitBias)?;
        self.logit_bias = bias
            .map(|bias| {
                if bias.elem_count() == head.outputs() {
                    Ok(bias.to_dtype(DType::F32)?.reshape((1, head.outputs()))?)
                } else {
                    Err(parameters.misfit(Part::LogitBias, &[1, head.outputs()]))
                }
            })
            .transpose()?;
        self.head = Some(head);
        Ok(())
    }

    /// Adds what it is made of.
    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        self.embeddings.list(inventory)?;
        for layer in &self.layers {
            layer.list(inventory)?;
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if let Some(head) = &self.head {
            head.list(inventory)?;
        }
        if let Some(bias) = &self.logit_bias {
            inventory.add_tensor(bias);
        }
        Ok(())
    }

    /// How many tokens there are logits for.
    pub fn vocabulary(&self) -> usize {
        let head = self.head.as_ref().map(OutputLayer::outputs);
        head.unwrap_or_else(|| self.embeddings.tokens().count())
    }

    /// The longest sequence that can be written, its first token included.
    pub fn max_target(&self) -> Option<usize> {
        self.embeddings.max_positions()
    }

    /// What cross-attention reads of an encoder's states, [tokens, hidden].
    pub fn remember(
        &self,
        states: &Tensor,
        boundaries: Vec<u32>,
        cancel: &CancelToken,
    ) -> Result<Memory> {
        let layers = self.layers.iter().map(|layer| {
            cancel.check()?;
            layer.memory(states)
        });
        Ok(Memory {
            layers: layers.collect::<Result<_>>()?,
            boundaries,
        })
    }

    /// One more token in each row of several groups, which may be of different lengths, in one forward
    /// pass: f32 logits [rows, vocabulary], and each group's cache with that token.
    pub fn write_together(
        &self,
        groups: &[Rows<'_>],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<Cache>)> {
        let rows: usize = groups.iter().map(|rows| rows.ids.len()).sum();
        // The logits, again where the next tokens are chosen, and what a layer holds of each row.
        let held = 2 * self.shape.vocab_size + 8 * self.shape.stack.hidden_size;
        memory::ensure_elements(&[rows, held], 4, format_args!("{rows} texts at once"))?;
        let before = || {
            let lengths = groups.iter();
            lengths.flat_map(|rows| std::iter::repeat_n(rows.cache.length, rows.ids.len()))
        };
        let places = before().map(|length| length..length + 1);
        let step = Step {
            tokens: Tokens::Next,
            bias: self.relative.shared_bias(),
            rotation: self.relative.rotation(places, &self.device)?,
            groups: groups
                .iter()
                .map(|rows| self.group(rows))
                .collect::<Result<_>>()?,
        };
        let ids: Vec<u32> = groups.iter().flat_map(|rows| rows.ids).copied().collect();
        let mut x = self.embeddings.at(&ids, before())?;
        let mut caches: Vec<Cache> = groups
            .iter()
            .map(|rows| Cache {
                layers: Vec::with_capacity(self.layers.len()),
                length: rows.cache.length + 1,
            })
            .collect();
        for (number, layer) in self.layers.iter().enumerate() {
            cancel.check()?;
            let kept: Vec<Kept<'_>> = groups
                .iter()
                .map(|rows| Kept {
                    memory: &rows.memory.layers[number],
                    past: rows.cache.layers.get(number),
                })
                .collect();
            let (next, extended) = layer.forward(&x, &kept, &step)?;
            for (cache, extended) in caches.iter_mut().zip(extended) {
                cache.layers.push(extended);
            }
            x = next;
        }
        Ok((self.logits(&self.normed(x)?)?, caches))
    }

    fn group<'a>(&self, rows: &Rows<'a>) -> Result<Group<'a>> {
        let (count, texts) = (rows.ids.len(), rows.memory.texts());
        if texts == 0 || !count.is_multiple_of(texts) {
            return Err(Error::Internal(format!("{count} rows for {texts} texts")));
        }
        let width = self.shape.stack.attention_shape().width();
        rows.cache.check_room(count, width, self.layers.len())?;
        let per_text = (count / texts) as u32;
        Ok(Group {
            rows: count,
            text_boundaries: (0..=texts as u32).map(|text| text * per_text).collect(),
            memory_boundaries: &rows.memory.boundaries,
        })
    }

    /// The first tokens of one row, which reads a memory of one text: f32 logits [tokens, vocabulary] after
    /// those of `wanted` places, and the row's cache.
    pub fn begin(
        &self,
        ids: &[u32],
        memory: &Memory,
        wanted: &[u32],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Cache)> {
        let (x, cache) = self.run(ids, memory, cancel, &mut |_, _| Ok(()))?;
        let wanted = Tensor::new(wanted, x.device())?;
        Ok((
            self.logits(&x.index_select(&wanted, 0)?.contiguous()?)?,
            cache,
        ))
    }

    /// What `take` makes of each layer's cross-attention to a memory of one text: its number, the attention
    /// of some heads is asked by [`CrossQueries`].
    pub fn watch(
        &self,
        ids: &[u32],
        memory: &Memory,
        take: &mut dyn FnMut(usize, CrossQueries<'_>) -> Result<()>,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let (x, _) = self.run(ids, memory, cancel, take)?;
        self.logits(&x)
    }

    fn run(
        &self,
        ids: &[u32],
        memory: &Memory,
        cancel: &CancelToken,
        take: &mut dyn FnMut(usize, CrossQueries<'_>) -> Result<()>,
    ) -> Result<(Tensor, Cache)> {
        let boundaries = [0, ids.len() as u32];
        let step = Step {
            tokens: Tokens::First(&boundaries),
            bias: self.relative.shared_bias(),
            rotation: self
                .relative
                .rotation(std::iter::once(0..ids.len()), &self.device)?,
            groups: vec![Group {
                rows: ids.len(),
                text_boundaries: boundaries.to_vec(),
                memory_boundaries: &memory.boundaries,
            }],
        };
        let mut cache = Cache {
            layers: Vec::with_capacity(self.layers.len()),
            length: ids.len(),
        };
        let mut x = self.embeddings.at(ids, 0..ids.len())?;
        for (number, (layer, memory)) in self.layers.iter().zip(&memory.layers).enumerate() {
            cancel.check()?;
            let kept = [Kept { memory, past: None }];
            let (next, extended) = layer.forward_noting(&x, &kept, &step, &mut |queries| {
                let queries = CrossQueries {
                    queries,
                    keys: &memory.keys,
                    scale: layer.scale(),
                };
                take(number, queries)
            })?;
            cache.layers.extend(extended);
            x = next;
        }
        Ok((self.normed(x)?, cache))
    }

    /// The states over texts, each moved one to the right behind the token `start` that precedes every text:
    /// [tokens, hidden].
    pub fn forward_packed(
        &self,
        sequences: &PackedSequences,
        memory: &Memory,
        start: u32,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let mut shifted = PackedSequences::new();
        for range in sequences.ranges() {
            let ids = &sequences.ids()[range];
            let (_, before) = ids.split_last().unwrap_or((&0, &[]));
            let moved: Vec<u32> = std::iter::once(start)
                .chain(before.iter().copied())
                .take(ids.len())
                .collect();
            shifted.push(&moved, None)?;
        }
        let step = Step::whole(sequences, &self.relative, &self.device)?;
        let mut x = self.embeddings.forward(&shifted)?;
        for (layer, memory) in self.layers.iter().zip(&memory.layers) {
            cancel.check()?;
            (x, _) = layer.forward(&x, &[Kept { memory, past: None }], &step)?;
        }
        self.normed(x)
    }

    fn normed(&self, x: Tensor) -> Result<Tensor> {
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    fn logits(&self, states: &Tensor) -> Result<Tensor> {
        let head = self.head.as_ref().ok_or_else(|| {
            Error::Internal("a decoder without its head was asked for logits".into())
        })?;
        let states = elementwise::scale(states, self.shape.output_scale)?;
        let logits = head.forward(&states)?;
        match &self.logit_bias {
            Some(bias) => elementwise::add(&logits, bias),
            None => Ok(logits),
        }
    }
}

/// A layer's queries to a memory and its keys, of which attention is a function.
pub struct CrossQueries<'a> {
    /// [tokens, heads, head size]
    queries: &'a Tensor,
    keys: &'a Tensor,
    scale: f32,
}

impl CrossQueries<'_> {
    /// The scores of one head before the softmax, [tokens, memory], on the CPU.
    pub fn scores(&self, head: usize) -> Result<Vec<Vec<f32>>> {
        let of_head = |all: &Tensor| -> Result<Tensor> {
            Ok(all.narrow(1, head, 1)?.squeeze(1)?.to_dtype(DType::F32)?)
        };
        let (queries, keys) = (of_head(self.queries)?, of_head(self.keys)?);
        let (queries, keys): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (queries.to_vec2()?, keys.to_vec2()?);
        let score = |query: &[f32], key: &[f32]| {
            query.iter().zip(key).map(|(a, b)| a * b).sum::<f32>() * self.scale
        };
        let row = |query: &Vec<f32>| keys.iter().map(|key| score(query, key)).collect();
        Ok(queries.iter().map(row).collect())
    }
}
