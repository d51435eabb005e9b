//! One layer of a decoder that attends to its own text and to what an encoder made of another.

use candle_core::{Device, Tensor};

use super::cache::KeyValues;
use crate::models::config::{AttentionShape, NormPlacement};
use crate::models::encoder::relative::{RelativePositions, RelativeState};
use crate::models::encoder::EncoderConfig;
use crate::models::parameters::Parameters;
use crate::models::parts::Part;
use crate::models::projections::{Join, MlpParts};
use crate::models::rope::Rotation;
use crate::nn::{
    attention, AttentionBias, AttentionKind, AttentionOptions, Epilogue, Inventory, Linear, Norm,
    PackedSequences, Projection,
};
use crate::{Error, Result};
use kernels::attention::halves_by_head;
use kernels::Activation;

#[derive(Debug)]
pub struct Layer {
    qkv: Projection,
    attention_output: Linear,
    attention_norm: Norm,
    cross_query: Linear,
    /// Keys and values of the encoder's states.
    cross_memory: Projection,
    cross_output: Linear,
    cross_norm: Norm,
    /// Gate and up in gated families, else up alone.
    up: Projection,
    down: Linear,
    mlp_norm: Norm,
    /// Whether keys and values of the encoder's states are held in 16 bits.
    halves: bool,
    shape: AttentionShape,
    scale: f32,
    placement: NormPlacement,
    activation: Activation,
}

/// What a forward runs on.
pub enum Tokens<'a> {
    /// Whole texts with their boundaries.
    Whole(&'a [u32]),
    /// The beginning of one row, whose keys and values are kept.
    First(&'a [u32]),
    /// One more token for each row.
    Next,
}

/// Rows that were begun together: they are of one length.
pub struct Group<'a> {
    pub rows: usize,
    /// Which of them attend to which text of the memory.
    pub text_boundaries: Vec<u32>,
    pub memory_boundaries: &'a [u32],
}

/// What all layers of a forward share.
pub struct Step<'a> {
    pub tokens: Tokens<'a>,
    pub bias: AttentionBias<'a>,
    /// Of queries and keys to what was written, where positions turn them.
    pub rotation: Option<Rotation<'a>>,
    pub groups: Vec<Group<'a>>,
}

impl<'a> Step<'a> {
    /// Of whole texts, which have read themselves.
    pub fn whole(
        sequences: &'a PackedSequences,
        relative: &'a RelativePositions,
        device: &Device,
    ) -> Result<Self> {
        let rotation = match relative.state(sequences, device)? {
            RelativeState::Rope(rotation) => Some(rotation),
            _ => None,
        };
        Ok(Self {
            tokens: Tokens::Whole(sequences.boundaries()),
            bias: relative.shared_bias(),
            rotation,
            groups: vec![Group {
                rows: sequences.tokens(),
                text_boundaries: sequences.boundaries().to_vec(),
                memory_boundaries: sequences.boundaries(),
            }],
        })
    }
}

/// What a layer keeps of a group.
#[derive(Clone, Copy)]
pub struct Kept<'a> {
    pub memory: &'a KeyValues,
    /// What was written, where tokens come one by one.
    pub past: Option<&'a KeyValues>,
}

impl Layer {
    pub fn load(
        config: &EncoderConfig,
        parameters: &Parameters<'_>,
        number: usize,
    ) -> Result<Self> {
        let shape = config.attention_shape();
        let (hidden, width) = (config.hidden_size, shape.width());
        let norm =
            |part: Part| parameters.norm(part.at(number), &[config.hidden_size], config.norm);
        let linear = |part: Part, inputs: usize, outputs: usize| {
            parameters.linear(part.at(number), inputs, outputs)
        };
        let read = config.mechanisms.memory_size.unwrap_or(hidden);
        let whole = parameters.of_many_rows();
        let read_by = |part: Part| whole.linear(part.at(number), read, width);
        let (up, down) =
            parameters.mlp(MlpParts::of(number), hidden, config.mlp.kind, Join::Dense)?;
        Ok(Self {
            qkv: parameters.qkv(number, &shape, config.qkv, Join::Dense)?,
            attention_output: linear(Part::AttentionOutput, width, hidden)?,
            attention_norm: norm(Part::AttentionNorm)?,
            cross_query: linear(Part::CrossQuery, hidden, width)?,
            cross_memory: Projection::split(vec![
                read_by(Part::CrossKey)?,
                read_by(Part::CrossValue)?,
            ])?,
            cross_output: linear(Part::CrossOutput, width, hidden)?,
            cross_norm: norm(Part::CrossNorm)?,
            up,
            down,
            mlp_norm: norm(Part::MlpNorm)?,
            halves: parameters.holds_halves(),
            shape,
            scale: config
                .attention_scale
                .unwrap_or(1.0 / (config.head_size as f32).sqrt()),
            placement: config.norm_placement,
            activation: config.mlp.activation,
        })
    }

    pub fn list(&self, inventory: &mut Inventory) -> Result<()> {
        for projection in [&self.qkv, &self.cross_memory, &self.up] {
            inventory.add_projection(projection)?;
        }
        for linear in [
            &self.attention_output,
            &self.cross_query,
            &self.cross_output,
            &self.down,
        ] {
            inventory.add_linear(linear)?;
        }
        for norm in [&self.attention_norm, &self.cross_norm, &self.mlp_norm] {
            inventory.add_norm(norm)?;
        }
        Ok(())
    }

    /// What multiplies query · key.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// What the layer's cross-attention reads of the encoder's states.
    pub fn memory(&self, states: &Tensor) -> Result<KeyValues> {
        let parts = self.cross_memory.heads(states, self.shape.head_size, &[])?;
        let [keys, values] = parts_of(parts)?;
        let held = |part: Tensor| -> Result<Tensor> {
            let halves = if self.halves {
                halves_by_head(&part)?
            } else {
                None
            };
            match halves {
                Some(halves) => Ok(halves),
                None => Ok(part.contiguous()?),
            }
        };
        Ok(KeyValues {
            keys: held(keys)?,
            values: held(values)?,
        })
    }

    /// `x` is [tokens, hidden], group by group. Beside the result: the keys and values of each group so
    /// far, where tokens come one by one.
    pub fn forward(
        &self,
        x: &Tensor,
        kept: &[Kept<'_>],
        step: &Step<'_>,
    ) -> Result<(Tensor, Vec<KeyValues>)> {
        self.forward_noting(x, kept, step, &mut |_| Ok(()))
    }

    /// `forward`; `note` gets the queries of the cross-attention, [tokens, heads, head size].
    pub fn forward_noting(
        &self,
        x: &Tensor,
        kept: &[Kept<'_>],
        step: &Step<'_>,
        note: &mut dyn FnMut(&Tensor) -> Result<()>,
    ) -> Result<(Tensor, Vec<KeyValues>)> {
        let mut extended = Vec::with_capacity(kept.len());
        let x = self.sublayer(x, &self.attention_norm, &self.attention_output, |x| {
            self.attend(x, kept, step, &mut extended)
        })?;
        let x = self.sublayer(&x, &self.cross_norm, &self.cross_output, |x| {
            self.look_up(x, kept, step, note)
        })?;
        let x = self.sublayer(&x, &self.mlp_norm, &self.down, |x| {
            self.up.activated(x, self.activation, &[])
        })?;
        Ok((x, extended))
    }

    /// x + output(inner(x)), normalized before or after.
    fn sublayer(
        &self,
        x: &Tensor,
        norm: &Norm,
        output: &Linear,
        inner: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let epilogue = Epilogue {
            residual: Some(x),
            ..Epilogue::default()
        };
        match self.placement {
            NormPlacement::Pre => output.forward_with(&inner(&norm.forward(x)?)?, &epilogue),
            // On what a sublayer adds no encoder-decoder has a norm.
            NormPlacement::Post | NormPlacement::Output | NormPlacement::Both => {
                norm.forward(&output.forward_with(&inner(x)?, &epilogue)?)
            }
        }
    }

    fn attend(
        &self,
        x: &Tensor,
        kept: &[Kept<'_>],
        step: &Step<'_>,
        extended: &mut Vec<KeyValues>,
    ) -> Result<Tensor> {
        let [mut q, mut k, v] = parts_of(self.qkv.heads(x, self.shape.head_size, &[])?)?;
        if let Some(rotation) = &step.rotation {
            (q, k) = (rotation.rotate(&q, false)?, rotation.rotate(&k, false)?);
        }
        let options = AttentionOptions {
            bias: step.bias,
            ..AttentionOptions::new(AttentionKind::Causal, self.scale)
        };
        if let Tokens::Whole(boundaries) | Tokens::First(boundaries) = step.tokens {
            if let Tokens::First(_) = step.tokens {
                extended.push(KeyValues {
                    keys: k.contiguous()?.unsqueeze(0)?,
                    values: v.contiguous()?.unsqueeze(0)?,
                });
            }
            return self.joined(&attention(&q, &k, &v, boundaries, boundaries, &options)?);
        }
        let mixed = each_group(&step.groups, |number, group, rows| {
            let all = KeyValues::appended(kept[number].past, &rows(&k)?, &rows(&v)?)?;
            let length = all.keys.dim(1)? as u32;
            let count = group.rows as u32;
            let queries: Vec<u32> = (0..=count).collect();
            let keys: Vec<u32> = (0..=count).map(|row| row * length).collect();
            let (k, v) = (all.keys.flatten(0, 1)?, all.values.flatten(0, 1)?);
            extended.push(all);
            attention(&rows(&q)?, &k, &v, &queries, &keys, &options)
        })?;
        self.joined(&mixed)
    }

    fn look_up(
        &self,
        x: &Tensor,
        kept: &[Kept<'_>],
        step: &Step<'_>,
        note: &mut dyn FnMut(&Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let (heads, size) = (self.shape.head_count, self.shape.head_size);
        let query = self.cross_query.forward(x)?;
        let query = query.reshape((x.dim(0)?, heads, size))?;
        note(&query)?;
        let options = AttentionOptions::new(AttentionKind::Bidirectional, self.scale);
        let mixed = each_group(&step.groups, |number, group, rows| {
            let memory = kept[number].memory;
            let mixed = attention(
                &rows(&query)?.to_dtype(memory.keys.dtype())?,
                &memory.keys,
                &memory.values,
                &group.text_boundaries,
                group.memory_boundaries,
                &options,
            )?;
            Ok(mixed.to_dtype(query.dtype())?)
        })?;
        self.joined(&mixed)
    }

    fn joined(&self, mixed: &Tensor) -> Result<Tensor> {
        Ok(mixed.reshape((mixed.dim(0)?, self.shape.width()))?)
    }
}

/// What `work` makes of every group, one after the other; it gets what takes a group's rows of a tensor.
fn each_group(
    groups: &[Group<'_>],
    mut work: impl FnMut(usize, &Group<'_>, &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor>,
) -> Result<Tensor> {
    if let [group] = groups {
        return work(0, group, &|all| Ok(all.clone()));
    }
    let mut start = 0;
    let mut made = Vec::with_capacity(groups.len());
    for (number, group) in groups.iter().enumerate() {
        let rows = |all: &Tensor| Ok(all.narrow(0, start, group.rows)?);
        made.push(work(number, group, &rows)?);
        start += group.rows;
    }
    Ok(Tensor::cat(&made, 0)?)
}

fn parts_of<const N: usize>(parts: Vec<Tensor>) -> Result<[Tensor; N]> {
    parts
        .try_into()
        .map_err(|_| Error::Internal(format!("attention needs {N} projections")))
}
