//! The requests of all calls, computed step by step: each step is one forward pass of the decoder.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rayon::prelude::*;

use super::request::RequestState;
use super::Seq2SeqParts;
use crate::models::seq2seq::{Cache, Rows};
use crate::nn::PackedSequences;
use crate::serving::leader::{caught, Leader, Request, Table};
use crate::serving::Stats;
use crate::{CancelToken, Error, Result};

/// Before a step sources are encoded up to this many tokens, unless the first has more: meanwhile no request is
/// decoded.
const ENCODING: usize = 512;

/// A step of one request alone, or of more rows than this, ends at once when its thread is interrupted; a
/// short one that serves others too is brought to its end.
const SHORT: usize = 64;

/// The requests to one model.
pub(crate) struct Seq2SeqScheduler {
    table: Table<RequestState>,
    taken: Mutex<()>,
    stats: Arc<Stats>,
}

impl Seq2SeqScheduler {
    pub fn new(stats: Arc<Stats>) -> Self {
        stats.waiting.set(0);
        Self {
            table: Table::default(),
            taken: Mutex::new(()),
            stats,
        }
    }
}

/// Rows of logits, and the cache with what they were made of.
type Computed = (Vec<Vec<f32>>, Cache);

impl Leader for Seq2SeqScheduler {
    type State = RequestState;
    type Shared = ();

    fn table(&self) -> &Table<RequestState> {
        &self.table
    }

    fn shared(&self) -> MutexGuard<'_, ()> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, (): &mut (), own: &Request<RequestState>, cancel: &CancelToken) -> Result<bool> {
        let listed = self.table.requests();
        let mut parts: Vec<_> = listed
            .iter()
            .filter(|one| one.goes_on)
            .map(|one| (&*one.request, one.request.state()))
            .collect();
        let Some((_, first)) = parts.first() else {
            return Ok(false);
        };
        let model = first.parts().clone();
        let (going, mut encoding) = (parts.len(), 0);
        parts.retain(|(_, request)| {
            let unencoded = request.unencoded();
            let fits = unencoded == 0 || encoding == 0 || encoding + unencoded <= ENCODING;
            encoding += if fits { unencoded } else { 0 };
            fits
        });
        self.stats.waiting.set(going - parts.len());
        let rows: usize = parts.iter().map(|(_, request)| request.rows()).sum();
        let alone = parts
            .iter()
            .all(|(request, _)| request.number == own.number);
        let unhurried = CancelToken::new();
        let cancel = if alone || rows + encoding > SHORT {
            cancel
        } else {
            &unhurried
        };
        let active: usize = parts.iter().map(|(_, request)| request.active()).sum();
        let running = self.stats.running.enter_many(active as u64);
        let mut requests: Vec<&mut RequestState> = parts
            .iter_mut()
            .map(|(_, request)| &mut **request)
            .collect();
        let chosen = model
            .device
            .compute(|| {
                let computed = compute_each(&model, &mut requests, cancel)?;
                let choosing = requests.into_par_iter().zip(computed);
                Ok(choosing
                    .map(|(request, computed)| choose(request, computed))
                    .collect::<Vec<_>>())
            })
            .and_then(|chosen| chosen)?;
        drop(running);
        let told: Vec<_> = parts.into_iter().map(|(request, _)| request).collect();
        for (request, (said, ended)) in told.into_iter().zip(chosen) {
            self.table.tell(request, said, ended);
        }
        Ok(true)
    }

    fn release(&self, (): &mut (), _: &mut RequestState) {}

    fn forget(&self, (): &mut ()) {}

    fn note_live(&self, live: usize) {
        // No more requests wait than are there: those that leave may be the ones that waited.
        self.stats.waiting.at_most(live);
    }
}

/// The logits of every request. Only an interrupt is an error of the whole; after another, each request is
/// computed by itself, so that only the one at fault fails.
fn compute_each(
    model: &Seq2SeqParts,
    requests: &mut [&mut RequestState],
    cancel: &CancelToken,
) -> Result<Vec<Result<Computed>>> {
    let compute = |requests: &mut [&mut RequestState]| {
        let bug = "internal error in red-candle while it generated. Please report it";
        caught(bug, || compute(model, requests, cancel))
    };
    match compute(requests) {
        Ok(computed) => return Ok(computed.into_iter().map(Ok).collect()),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) if requests.len() == 1 => return Ok(vec![Err(error)]),
        Err(_) => {}
    }
    let alone = requests.chunks_mut(1).map(|one| match compute(one) {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        computed => Ok(computed.map(|mut computed| computed.remove(0))),
    });
    alone.collect()
}

fn compute(
    model: &Seq2SeqParts,
    requests: &mut [&mut RequestState],
    cancel: &CancelToken,
) -> Result<Vec<Computed>> {
    let started = Instant::now();
    encode(model, requests, cancel)?;
    let latest = requests.iter_mut().map(|request| request.latest(cancel));
    let latest = latest.collect::<Result<Vec<_>>>()?;
    let groups: Vec<Rows<'_>> = latest
        .iter()
        .map(|(ids, cache, memory)| Rows { ids, cache, memory })
        .collect();
    let (logits, caches) = model.model.write_together(&groups, cancel)?;
    let counts: Vec<usize> = latest.iter().map(|(ids, ..)| ids.len()).collect();
    let mut rows = logits.to_vec2::<f32>()?.into_iter();
    let time = started.elapsed();
    model.stats.batches.add(1);
    model.stats.batch_size.observe(rows.len() as f64);
    for request in requests.iter_mut() {
        request.computed(time);
    }
    let parts = counts.into_iter().zip(caches);
    Ok(parts
        .map(|(count, cache)| (rows.by_ref().take(count).collect(), cache))
        .collect())
}

/// Encodes the sources that are not encoded yet, all at once.
fn encode(
    model: &Seq2SeqParts,
    requests: &mut [&mut RequestState],
    cancel: &CancelToken,
) -> Result<()> {
    let started = Instant::now();
    let mut sequences = PackedSequences::new();
    let waiting = requests
        .iter_mut()
        .filter(|request| request.unencoded() > 0);
    let mut waiting: Vec<_> = waiting.collect();
    for request in &waiting {
        for source in request.sources() {
            sequences.push(source, None)?;
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let memory = model.model.read(&sequences, cancel)?;
    model.stats.tokens_in.add(sequences.tokens() as u64);
    let mut first = 0;
    for request in &mut waiting {
        let own: Vec<usize> = (first..first + request.active()).collect();
        first += request.active();
        request.encoded(memory.of(&own)?, started.elapsed());
    }
    Ok(())
}

/// The new text of a request's first sequence, and the end where it has come.
fn choose(
    request: &mut RequestState,
    computed: Result<Computed>,
) -> (Option<String>, Option<Result<()>>) {
    let bug = "internal error in red-candle while it chose a token. Please report it";
    let chosen = computed.and_then(|(rows, cache)| caught(bug, || request.choose(&rows, &cache)));
    match chosen {
        Ok(said) => (Some(said), request.is_over().then_some(Ok(()))),
        Err(error) => (None, Some(Err(error))),
    }
}
