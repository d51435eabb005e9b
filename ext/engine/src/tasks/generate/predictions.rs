//! How well a model predicts a text, alone and beside a reference.

use candle_core::DType;

use super::LanguageModel;
use crate::generation::sampler::log_sum_exp;
use crate::models::decoder::model::Logits;
use crate::models::decoder::KvCache;
use crate::{CancelToken, Error, Result};

/// The logits of this many tokens are held at a time.
const LOGITS_CHUNK: usize = 256;

/// How one prediction differs from that of a reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Kullback and Leibler's, in nats: what the reference says that this model does not.
    pub kl: f32,
    /// Whether both take the same token for the likeliest.
    pub same_token: bool,
}

impl LanguageModel {
    /// The log probability of each token of `ids` but the first, given those before it.
    pub fn logprobs(
        &self,
        ids: &[u32],
        adapter: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<Vec<f32>> {
        let mut cache = self.reading_cache(ids, adapter)?;
        let mut logprobs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(LOGITS_CHUNK) {
            let first = cache.length();
            let rows = self.logits(chunk, &mut cache, cancel)?;
            for (row, next) in rows.iter().zip(&ids[first + 1..]) {
                logprobs.push(row[*next as usize] - log_sum_exp(row));
            }
        }
        Ok(logprobs)
    }

    /// How far what it predicts after each token of `ids` but the last is from what `reference` predicts there.
    pub fn divergence(
        &self,
        reference: &Self,
        ids: &[u32],
        adapter: Option<&str>,
        cancel: &CancelToken,
    ) -> Result<Vec<Divergence>> {
        let widths = [self, reference].map(|model| model.decoder.config().vocab_size);
        if widths[0] != widths[1] {
            return Err(Error::InvalidInput(format!(
                "the models predict other tokens: {} of them, and {} of the reference. Compare models of one vocabulary",
                widths[0], widths[1]
            )));
        }
        let mut cache = self.reading_cache(ids, adapter)?;
        let mut other = reference.reading_cache(ids, None)?;
        let mut found = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(LOGITS_CHUNK) {
            let rows = self.logits(chunk, &mut cache, cancel)?;
            let wanted = reference.logits(chunk, &mut other, cancel)?;
            found.extend(
                rows.iter()
                    .zip(&wanted)
                    .map(|(row, wanted)| divergence(row, wanted)),
            );
        }
        found.truncate(ids.len().saturating_sub(1));
        Ok(found)
    }

    fn reading_cache(&self, ids: &[u32], adapter: Option<&str>) -> Result<KvCache> {
        self.check_length(ids.len())?;
        let mut cache = self.decoder.new_cache()?;
        cache.adapt(self.adapter(adapter)?);
        cache.clear(self.decoder.rope_variant(ids.len()));
        Ok(cache)
    }

    fn logits(
        &self,
        chunk: &[u32],
        cache: &mut KvCache,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<f32>>> {
        let logits = self.decoder.forward(chunk, cache, Logits::All, cancel)?;
        Ok(logits.to_dtype(DType::F32)?.to_vec2()?)
    }
}

fn divergence(row: &[f32], reference: &[f32]) -> Divergence {
    let (own, wanted) = (log_sum_exp(row), log_sum_exp(reference));
    let terms = row.iter().zip(reference).map(|(&a, &b)| {
        let (a, b) = (f64::from(a - own), f64::from(b - wanted));
        // A token that the reference rules out says nothing, whatever this model says of it.
        if b == f64::NEG_INFINITY {
            0.0
        } else {
            b.exp() * (b - a)
        }
    });
    let kl = terms.sum::<f64>().max(0.0) as f32;
    Divergence {
        kl,
        same_token: likeliest(row) == likeliest(reference),
    }
}

fn likeliest(row: &[f32]) -> Option<usize> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&logit| logit == largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divergence_is_that_of_the_formula() {
        let reference = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()];
        let same = divergence(&reference.map(|logit| logit + 3.0), &reference);
        assert!(same.kl < 1e-6 && same.same_token);
        let flat = divergence(&[0.0; 3], &reference);
        let wanted = 0.5 * (1.5f32).ln() + 0.5 * 0.75f32.ln();
        assert!((flat.kl - wanted).abs() < 1e-6 && flat.same_token);
        let other = divergence(&[0.0, 5.0, 0.0], &reference);
        assert!(other.kl > flat.kl && !other.same_token);
        let ruled_out = divergence(&[0.0, 0.0, 0.0], &[0.0, 0.0, f32::NEG_INFINITY]);
        assert!((ruled_out.kl - 1.5f32.ln()).abs() < 1e-6);
    }
}
