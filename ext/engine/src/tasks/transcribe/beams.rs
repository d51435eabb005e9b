//! Windows of audio to tokens by beam search.

use super::rules;
use super::tokens::WhisperTokens;
use super::window::{Decoded, Window};
use crate::generation::{BeamSearch, BeamSettings, EarlyStopping, LogitBias, TokenRules};
use crate::models::seq2seq::{Cache, CrossDecoder, Rows};
use crate::{CancelToken, Result};

struct Running<'a> {
    number: usize,
    window: &'a Window,
    search: BeamSearch,
    cache: Cache,
    no_speech_prob: f32,
}

/// Decodes windows together, each by so many beams: what comes of one does not depend on the others.
pub fn decode(
    decoder: &CrossDecoder,
    tokens: &WhisperTokens,
    windows: &[&Window],
    width: usize,
    cancel: &CancelToken,
) -> Result<Vec<Decoded>> {
    let mut decoded: Vec<Option<Decoded>> = vec![None; windows.len()];
    let mut running = Vec::with_capacity(windows.len());
    for (number, window) in windows.iter().enumerate() {
        cancel.check()?;
        running.push(begin(decoder, tokens, (number, window), width, cancel)?);
    }
    loop {
        let (over, going): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|run: &Running<'_>| run.search.is_over());
        running = going;
        for run in over {
            decoded[run.number] = Some(run.decoded(tokens));
        }
        if running.is_empty() {
            break;
        }
        cancel.check()?;
        let ids: Vec<Vec<u32>> = running
            .iter()
            .map(|run| run.search.last_tokens().collect())
            .collect();
        let groups: Vec<Rows<'_>> = running
            .iter()
            .zip(&ids)
            .map(|(run, ids)| Rows {
                ids,
                cache: &run.cache,
                memory: &run.window.memory,
            })
            .collect();
        let (logits, caches) = decoder.write_together(&groups, cancel)?;
        let rows: Vec<Vec<f32>> = logits.to_vec2()?;
        for ((run, cache), rows) in running.iter_mut().zip(caches).zip(rows.chunks(width)) {
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            run.advance(tokens, &rows, &cache)?;
        }
    }
    let missing = || crate::Error::Internal("a window was not decoded".to_owned());
    decoded
        .into_iter()
        .map(|one| one.ok_or_else(missing))
        .collect()
}

fn begin<'a>(
    decoder: &CrossDecoder,
    tokens: &WhisperTokens,
    (number, window): (usize, &'a Window),
    width: usize,
    cancel: &CancelToken,
) -> Result<Running<'a>> {
    let wanted = [window.start as u32, (window.prompt.len() - 1) as u32];
    let (logits, cache) = decoder.begin(&window.prompt, &window.memory, &wanted, cancel)?;
    let logits: Vec<Vec<f32>> = logits.to_vec2()?;
    let no_speech = tokens.no_speech;
    let no_speech = no_speech.map(|token| rules::log_probability(&logits[0], token));
    let no_speech = no_speech.transpose()?;
    let settings = BeamSettings {
        width,
        length_penalty: 1.0,
        early_stopping: EarlyStopping::default(),
        repetition_penalty: 1.0,
        logit_bias: LogitBias::default(),
    };
    let limits = TokenRules {
        end_ids: vec![tokens.end],
        max_new_tokens: window.most,
        ..TokenRules::default()
    };
    let mut run = Running {
        number,
        window,
        search: BeamSearch::new(settings, limits, &[tokens.start]),
        no_speech_prob: no_speech.map_or(0.0, f32::exp),
        cache: cache.of(&vec![0; width])?,
    };
    if !run.search.is_over() {
        let (rows, cache) = (vec![logits[1].as_slice(); width], run.cache.clone());
        run.advance(tokens, &rows, &cache)?;
    }
    Ok(run)
}

impl Running<'_> {
    /// Chooses the beams' next tokens. `cache` has what the logits were made of.
    fn advance(&mut self, tokens: &WhisperTokens, rows: &[&[f32]], cache: &Cache) -> Result<()> {
        let window = self.window;
        let parents = self.search.advance_by(rows, |written, scores| {
            window.restrict(tokens, written, scores);
        });
        if !self.search.is_over() {
            let parents: Vec<u32> = parents.into_iter().map(|parent| parent as u32).collect();
            self.cache = cache.of(&parents)?;
        }
        Ok(())
    }

    fn decoded(&self, tokens: &WhisperTokens) -> Decoded {
        let written = self.search.tokens();
        let text = written.strip_suffix(&[tokens.end]).unwrap_or(written);
        Decoded {
            tokens: text.to_vec(),
            avg_logprob: self.search.score(),
            no_speech_prob: self.no_speech_prob,
            temperature: 0.0,
        }
    }
}
