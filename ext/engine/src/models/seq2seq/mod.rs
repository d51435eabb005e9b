//! One encoder-decoder for every family: a text's tokens in, the logits of another text's next token
//! out. The encoder is the one of `models::encoder`; it runs once, and so do the keys and values that
//! the decoder reads of it.

mod cache;
pub mod config;
mod heads;
mod layer;
mod verify;

use candle_core::{DType, Device, Tensor};

use crate::models::encoder::embeddings::Embeddings;
use crate::models::encoder::relative::RelativePositions;
use crate::models::encoder::Encoder;
use crate::models::families;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::nn::{elementwise, Inventory, Linear, Norm, PackedSequences};
use crate::{CancelToken, Error, Result};
use base::runtime::memory;
use formats::weights::WeightSource;

pub use cache::{Cache, Memory};
pub use config::Seq2SeqConfig;

use layer::{Group, Kept, Layer, Step, Tokens};

/// Rows whose next tokens are wanted: their latest tokens, what they have written before, and what they
/// read.
pub struct Rows<'a> {
    pub ids: &'a [u32],
    pub cache: &'a Cache,
    pub memory: &'a Memory,
}

/// What a checkpoint of an encoder-decoder is.
pub type Blueprint = families::Blueprint<Seq2SeqConfig>;

/// Weights and blueprint; immutable, and free to be shared between threads.
#[derive(Debug)]
pub struct Seq2Seq {
    config: Seq2SeqConfig,
    encoder: Encoder,
    embeddings: Embeddings,
    relative: RelativePositions,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    /// `None` in a model that is loaded for its hidden states.
    head: Option<Linear>,
    logit_bias: Option<Tensor>,
}

impl Seq2Seq {
    /// With the head that predicts the next token.
    pub fn load(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        cancel: &CancelToken,
    ) -> Result<Self> {
        let body = Self::load_body(blueprint, source, (device, dtype), false, cancel)?;
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?;
        let (hidden, vocabulary) = (body.config.decoder.hidden_size, body.config.vocab_size);
        let head = if parameters.has(Part::Head) {
            parameters.linear(Part::Head, hidden, vocabulary)?
        } else {
            body.embeddings.tokens().tied_output(None)?
        };
        let bias = parameters.optional_tensor(Part::LogitBias)?;
        let logit_bias = bias
            .map(|bias| {
                if bias.elem_count() == head.outputs() {
                    Ok(bias.to_dtype(DType::F32)?.reshape((1, head.outputs()))?)
                } else {
                    Err(parameters.misfit(Part::LogitBias, &[1, head.outputs()]))
                }
            })
            .transpose()?;
        Ok(Self {
            head: Some(head),
            logit_bias,
            ..body
        })
    }

    /// Without a head, for its hidden states. With `int8` the linear layers hold bytes, on the CPU and
    /// beside f32 or bf16.
    pub fn load_body(
        blueprint: &Blueprint,
        source: &dyn WeightSource,
        (device, dtype): (&Device, DType),
        int8: bool,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let config = blueprint.config.clone();
        let encoder = Encoder::load(&config.encoder, source, device, dtype, int8, cancel)?;
        let decoder = &config.decoder;
        let parameters = Parameters::new(source, &blueprint.names, device, dtype)?.with_int8(int8);
        parameters.check_layers(decoder.stored_layers())?;
        let layers = (0..decoder.layers.len())
            .map(|number| {
                cancel.check()?;
                Layer::load(decoder, &parameters, number)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            encoder,
            embeddings: Embeddings::load(decoder, &parameters)?,
            relative: RelativePositions::load(decoder, &parameters)?,
            layers,
            final_norm: parameters.optional_norm(
                Part::FinalNorm,
                &[decoder.hidden_size],
                decoder.norm,
            )?,
            head: None,
            logit_bias: None,
            config,
        })
    }

    pub fn config(&self) -> &Seq2SeqConfig {
        &self.config
    }

    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// What it is made of.
    pub fn inventory(&self) -> Result<Inventory> {
        let mut inventory = self.encoder.inventory()?;
        self.embeddings.list(&mut inventory)?;
        for layer in &self.layers {
            layer.list(&mut inventory)?;
        }
        if let Some(norm) = &self.final_norm {
            inventory.add_norm(norm)?;
        }
        if let Some(head) = &self.head {
            inventory.add_linear(head)?;
        }
        if let Some(bias) = &self.logit_bias {
            inventory.add_tensor(bias);
        }
        Ok(inventory)
    }

    /// How many tokens there are logits for.
    pub fn vocabulary(&self) -> usize {
        let head = self.head.as_ref().map(Linear::outputs);
        head.unwrap_or_else(|| self.embeddings.tokens().count())
    }

    /// The longest text that can be read.
    pub fn max_source(&self) -> Option<usize> {
        self.encoder.max_positions()
    }

    /// The longest text that can be written, its first token included.
    pub fn max_target(&self) -> Option<usize> {
        self.embeddings.max_positions()
    }

    /// Reads texts.
    pub fn read(&self, sequences: &PackedSequences, cancel: &CancelToken) -> Result<Memory> {
        let states = self.encoder.forward(sequences, cancel)?;
        self.remember(&states, sequences, cancel)
    }

    fn remember(
        &self,
        states: &Tensor,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Memory> {
        let layers = self.layers.iter().map(|layer| {
            cancel.check()?;
            layer.memory(states)
        });
        Ok(Memory {
            layers: layers.collect::<Result<_>>()?,
            boundaries: sequences.boundaries().to_vec(),
        })
    }

    /// Decodes one more token in each row, of which every text of the memory has equally many: f32 logits
    /// [rows, vocabulary] and the rows' cache with that token.
    pub fn decode(
        &self,
        ids: &[u32],
        cache: &Cache,
        memory: &Memory,
        cancel: &CancelToken,
    ) -> Result<(Tensor, Cache)> {
        let (logits, mut caches) = self.write_together(&[Rows { ids, cache, memory }], cancel)?;
        Ok((logits, caches.remove(0)))
    }

    /// `write` for several groups of rows, which may be of different lengths, in one pass over the
    /// weights: logits of all rows, and each group's cache.
    pub fn write_together(
        &self,
        groups: &[Rows<'_>],
        cancel: &CancelToken,
    ) -> Result<(Tensor, Vec<Cache>)> {
        let rows: usize = groups.iter().map(|rows| rows.ids.len()).sum();
        // The logits, again where the next tokens are chosen, and what a layer holds of each row.
        let held = 2 * self.config.vocab_size + 8 * self.config.decoder.hidden_size;
        memory::ensure_elements(&[rows, held], 4, format_args!("{rows} texts at once"))?;
        let step = Step {
            tokens: Tokens::Next,
            bias: self.relative.shared_bias(),
            groups: groups
                .iter()
                .map(|rows| self.group(rows))
                .collect::<Result<_>>()?,
        };
        let ids: Vec<u32> = groups.iter().flat_map(|rows| rows.ids).copied().collect();
        let before = groups
            .iter()
            .flat_map(|rows| std::iter::repeat_n(rows.cache.length, rows.ids.len()));
        let mut x = self.embeddings.at(&ids, before)?;
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
        let width = self.config.decoder.attention_shape().width();
        rows.cache.check_room(count, width, self.layers.len())?;
        let per_text = (count / texts) as u32;
        Ok(Group {
            rows: count,
            text_boundaries: (0..=texts as u32).map(|text| text * per_text).collect(),
            memory_boundaries: &rows.memory.boundaries,
        })
    }

    /// The decoder's states over the texts themselves, each moved one to the right behind the token that
    /// precedes every text: [tokens, hidden].
    pub fn forward_packed(
        &self,
        sequences: &PackedSequences,
        cancel: &CancelToken,
    ) -> Result<Tensor> {
        let states = self.encoder.forward(sequences, cancel)?;
        if sequences.tokens() == 0 {
            return Ok(states);
        }
        let memory = self.remember(&states, sequences, cancel)?;
        let mut shifted = PackedSequences::new();
        for range in sequences.ranges() {
            let ids = &sequences.ids()[range];
            let (_, before) = ids.split_last().unwrap_or((&0, &[]));
            let moved: Vec<u32> = std::iter::once(self.config.start)
                .chain(before.iter().copied())
                .take(ids.len())
                .collect();
            shifted.push(&moved, None)?;
        }
        let step = Step::whole(sequences, self.relative.shared_bias());
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
        let states = elementwise::scale(states, self.config.output_scale)?;
        let logits = head.forward(&states)?.to_dtype(DType::F32)?;
        match &self.logit_bias {
            Some(bias) => elementwise::add(&logits, bias),
            None => Ok(logits),
        }
    }
}
