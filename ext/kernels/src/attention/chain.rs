//! Attention from matrix products and the softmax kernel, on any device.
//!
//! Sequences of one length go together; a mask is a predicate that all heads share.

use candle_core::{DType, Tensor};

use super::bias::Biases;
use super::{Alignment, AttentionOptions, Inputs};
use crate::Result;
use crate::SoftmaxOptions;

pub(super) fn attend(inputs: &Inputs<'_>, options: &AttentionOptions<'_>) -> Result<Tensor> {
    let shape = &inputs.shape;
    let (query_boundaries, key_boundaries) = (inputs.query_boundaries, inputs.key_boundaries);
    let biases = Biases::read(options, shape)?;
    let sequences = query_boundaries.len() - 1;
    let mut parts = Vec::new();
    let mut first = 0;
    while first < sequences {
        let lengths = |s: usize| {
            (
                query_boundaries[s + 1] - query_boundaries[s],
                key_boundaries[s + 1] - key_boundaries[s],
            )
        };
        let (queries, keys) = lengths(first);
        let mut last = first + 1;
        let alike = options.chosen.is_none();
        while alike && last < sequences && lengths(last) == (queries, keys) {
            last += 1;
        }
        let run = Run {
            batch: last - first,
            first_query: query_boundaries[first] as usize,
            queries: queries as usize,
            first_key: key_boundaries[first] as usize,
            keys: keys as usize,
            alignment: options.alignment,
        };
        if run.queries > 0 {
            parts.push(run.attend(inputs, options, &biases)?);
        }
        first = last;
    }
    match parts.len() {
        0 => Ok(Tensor::zeros(
            (shape.tokens, shape.heads, shape.value_width),
            inputs.q.dtype(),
            inputs.q.device(),
        )?),
        1 => Ok(parts.swap_remove(0)),
        _ => Ok(Tensor::cat(&parts, 0)?),
    }
}

/// Neighbouring sequences of one length.
struct Run {
    batch: usize,
    first_query: usize,
    queries: usize,
    first_key: usize,
    keys: usize,
    alignment: Alignment,
}

impl Run {
    fn attend(
        &self,
        inputs: &Inputs<'_>,
        options: &AttentionOptions<'_>,
        biases: &Biases<'_>,
    ) -> Result<Tensor> {
        let Inputs { q, k, v, shape, .. } = inputs;
        let dims = (self.batch * self.queries, shape.heads, shape.value_width);
        if self.keys == 0 {
            return Ok(Tensor::zeros(dims, q.dtype(), q.device())?);
        }
        let group = shape.heads / shape.key_heads;
        let q = q.narrow(0, self.first_query, self.batch * self.queries)?;
        let q = q
            .reshape((self.batch, self.queries, shape.heads, shape.width))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((
                self.batch,
                shape.key_heads,
                group * self.queries,
                shape.width,
            ))?;
        let side = |t: &Tensor, width: usize| -> Result<Tensor> {
            Ok(t.narrow(0, self.first_key, self.batch * self.keys)?
                .reshape((self.batch, self.keys, shape.key_heads, width))?
                .transpose(1, 2)?
                .contiguous()?)
        };
        let (k, v) = (side(k, shape.width)?, side(v, shape.value_width)?);
        let scores = q.matmul(&k.transpose(2, 3)?)?.reshape((
            self.batch,
            shape.heads,
            self.queries,
            self.keys,
        ))?;
        let probabilities = self.probabilities(&scores, shape.heads, options, biases)?;
        let probabilities = probabilities.reshape((
            self.batch,
            shape.key_heads,
            group * self.queries,
            self.keys,
        ))?;
        let out = probabilities.matmul(&v)?.reshape((
            self.batch,
            shape.heads,
            self.queries,
            shape.value_width,
        ))?;
        Ok(out.transpose(1, 2)?.contiguous()?.reshape(dims)?)
    }

    fn probabilities(
        &self,
        scores: &Tensor,
        heads: usize,
        options: &AttentionOptions<'_>,
        biases: &Biases<'_>,
    ) -> Result<Tensor> {
        let (scores, scale) = match options.soft_cap {
            None => (scores.clone(), options.scale),
            Some(cap) => {
                let inner = (scores.to_dtype(DType::F32)? * f64::from(options.scale / cap))?;
                let capped = (inner.tanh()? * f64::from(cap))?;
                (capped.to_dtype(scores.dtype())?, 1.0)
            }
        };
        let keep = self.keep(options, &scores)?;
        let bias = self.bias(heads, biases, &scores)?;
        let masks = SoftmaxOptions {
            scale: Some(scale),
            additive: bias.as_ref(),
            keep: keep.as_ref(),
            lengths: None,
        };
        match options.sinks {
            None => crate::softmax_masked(&scores, &masks),
            Some(sinks) => self.with_sinks(&scores, &masks, sinks),
        }
    }

    /// Softmax with one more column, which is then left out.
    fn with_sinks(
        &self,
        scores: &Tensor,
        masks: &SoftmaxOptions<'_>,
        sinks: &[f32],
    ) -> Result<Tensor> {
        let (batch, heads, queries, keys) = scores.dims4()?;
        let (device, dtype) = (scores.device(), scores.dtype());
        let scale = masks.scale.unwrap_or(1.0);
        let sinks: Vec<f32> = sinks.iter().map(|sink| sink / scale).collect();
        let column = Tensor::from_vec(sinks, (1, heads, 1, 1), device)?.to_dtype(dtype)?;
        let column = column.broadcast_as((batch, heads, queries, 1))?;
        let scores = Tensor::cat(&[scores, &column.contiguous()?], 3)?;
        let one_more = |mask: Option<&Tensor>, fill: f64| -> Result<Option<Tensor>> {
            let Some(mask) = mask else { return Ok(None) };
            let mut dims = mask.dims().to_vec();
            let last = dims.len() - 1;
            dims[last] = 1;
            let column = Tensor::full(fill as f32, dims, device)?.to_dtype(mask.dtype())?;
            Ok(Some(Tensor::cat(&[mask, &column], last)?))
        };
        let keep = one_more(masks.keep, 1.0)?;
        let additive = one_more(masks.additive, 0.0)?;
        let masks = SoftmaxOptions {
            keep: keep.as_ref(),
            additive: additive.as_ref(),
            ..*masks
        };
        Ok(crate::softmax_masked(&scores, &masks)?
            .narrow(3, 0, keys)?
            .contiguous()?)
    }

    /// Where query i stands among the keys.
    fn position(&self, i: usize) -> isize {
        self.alignment.position(i, self.queries, self.keys)
    }

    /// [queries, keys], or nothing where every query sees every key.
    fn keep(&self, options: &AttentionOptions<'_>, scores: &Tensor) -> Result<Option<Tensor>> {
        let seen = |i: usize| options.kind.seen(self.position(i), self.keys);
        let chosen = |i: usize| options.chosen?.get(self.first_query + i)?.as_ref();
        if (0..self.queries).all(|i| seen(i) == (0..self.keys) && chosen(i).is_none()) {
            return Ok(None);
        }
        let mut keep = vec![0u8; self.queries * self.keys];
        for (i, row) in keep.chunks_mut(self.keys).enumerate() {
            match chosen(i) {
                Some(chosen) => chosen.iter().for_each(|&key| row[key as usize] = 1),
                None => row[seen(i)].fill(1),
            }
        }
        let dims = (self.queries, self.keys);
        Ok(Some(Tensor::from_vec(keep, dims, scores.device())?))
    }

    /// [batch or 1, heads, queries, keys].
    fn bias(&self, heads: usize, biases: &Biases<'_>, scores: &Tensor) -> Result<Option<Tensor>> {
        let batch = match biases {
            Biases::None => return Ok(None),
            Biases::Alibi(_) | Biases::Relative { .. } => 1,
            Biases::Disentangled { .. } | Biases::Windows { .. } => self.batch,
        };
        let mut values = vec![0f32; batch * heads * self.queries * self.keys];
        for (at, row) in values.chunks_mut(self.keys).enumerate() {
            let (i, rest) = (at % self.queries, at / self.queries);
            let (head, sequence) = (rest % heads, rest / heads);
            let query = self.first_query + sequence * self.queries + i;
            let key = self.first_key + sequence * self.keys;
            biases.add(row, head, query, key, -self.position(i));
        }
        let dims = (batch, heads, self.queries, self.keys);
        let values = Tensor::from_vec(values, dims, scores.device())?;
        Ok(Some(values.to_dtype(scores.dtype())?))
    }
}
