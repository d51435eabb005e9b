//! Where the texts of all calls are written: in one pass over the decoder's weights after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rayon::prelude::*;

use super::writing::Texts;
use super::Seq2SeqModel;
use crate::models::seq2seq::{Cache, Rows};
use crate::nn::PackedSequences;
use crate::serving::leader::{caught, Leader, Table, Text};
use crate::serving::seq2seq_stats::Stats;
use crate::{CancelToken, Error, Result};
use base::runtime::threads;

/// Sources are read before a pass up to this many tokens, unless the first has more: while they are read
/// nobody writes.
const READING: usize = 512;

/// A pass of one call alone, or of more rows than this, ends at once when its thread is interrupted; a
/// short one for others too is brought to its end.
const SHORT: usize = 64;

/// What threads take turns at, whose calls write on one model.
pub(super) struct Seq2SeqScheduler {
    table: Table<Texts>,
    taken: Mutex<()>,
    stats: Arc<Stats>,
}

impl Seq2SeqScheduler {
    pub fn new(stats: Arc<Stats>) -> Self {
        stats.note_waiting(0);
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
    type Work = Texts;
    type Shared = ();

    fn table(&self) -> &Table<Texts> {
        &self.table
    }

    fn shared(&self) -> MutexGuard<'_, ()> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, (): &mut (), own: &Text<Texts>, cancel: &CancelToken) -> Result<bool> {
        let under_way = self.table.texts();
        let mut parts: Vec<_> = under_way
            .iter()
            .filter(|one| one.goes_on)
            .map(|one| (&*one.text, one.text.work()))
            .collect();
        let Some((_, first)) = parts.first() else {
            return Ok(false);
        };
        let model = first.model().clone();
        let (going, mut reading) = (parts.len(), 0);
        parts.retain(|(_, texts)| {
            let unread = texts.unread();
            let fits = unread == 0 || reading == 0 || reading + unread <= READING;
            reading += if fits { unread } else { 0 };
            fits
        });
        self.stats.note_waiting(going - parts.len());
        let rows: usize = parts.iter().map(|(_, texts)| texts.rows()).sum();
        let alone = parts.iter().all(|(text, _)| text.number == own.number);
        let unhurried = CancelToken::new();
        let cancel = if alone || rows + reading > SHORT {
            cancel
        } else {
            &unhurried
        };
        let active: usize = parts.iter().map(|(_, texts)| texts.active()).sum();
        let running = self.stats.running.enter_many(active as u64);
        let mut texts: Vec<&mut Texts> = parts.iter_mut().map(|(_, texts)| &mut **texts).collect();
        let chosen = threads::install(|| {
            model.info.device.keeping_awake(|| {
                let computed = compute_each(&model, &mut texts, cancel)?;
                let choosing = texts.into_par_iter().zip(computed);
                Ok(choosing
                    .map(|(texts, computed)| choose(texts, computed))
                    .collect::<Vec<_>>())
            })
        })
        .and_then(|chosen| chosen)?;
        drop(running);
        let told: Vec<_> = parts.into_iter().map(|(text, _)| text).collect();
        for (text, (said, ended)) in told.into_iter().zip(chosen) {
            self.table.tell(text, said, ended);
        }
        Ok(true)
    }

    fn release(&self, (): &mut (), _: &mut Texts) {}

    fn forget(&self, (): &mut ()) {}

    fn note_live(&self, live: usize) {
        self.stats.note_live(live);
    }
}

/// The logits of every call's texts. Only an interrupt is an error of the whole; after another, each call
/// is computed by itself, so that only whose it is has it.
fn compute_each(
    model: &Seq2SeqModel,
    texts: &mut [&mut Texts],
    cancel: &CancelToken,
) -> Result<Vec<Result<Computed>>> {
    let compute = |texts: &mut [&mut Texts]| {
        let bug = "red-candle met a bug of its own while it generated. Please report it";
        caught(bug, || compute(model, texts, cancel))
    };
    match compute(texts) {
        Ok(computed) => return Ok(computed.into_iter().map(Ok).collect()),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) if texts.len() == 1 => return Ok(vec![Err(error)]),
        Err(_) => {}
    }
    let alone = texts.chunks_mut(1).map(|one| match compute(one) {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        computed => Ok(computed.map(|mut computed| computed.remove(0))),
    });
    alone.collect()
}

fn compute(
    model: &Seq2SeqModel,
    texts: &mut [&mut Texts],
    cancel: &CancelToken,
) -> Result<Vec<Computed>> {
    let started = Instant::now();
    read(model, texts, cancel)?;
    let latest = texts.iter_mut().map(|texts| texts.latest(cancel));
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
    for texts in texts.iter_mut() {
        texts.computed(time);
    }
    let parts = counts.into_iter().zip(caches);
    Ok(parts
        .map(|(count, cache)| (rows.by_ref().take(count).collect(), cache))
        .collect())
}

/// Reads the sources of those that have not read theirs, all at once.
fn read(model: &Seq2SeqModel, texts: &mut [&mut Texts], cancel: &CancelToken) -> Result<()> {
    let started = Instant::now();
    let mut sequences = PackedSequences::new();
    let unread = texts.iter_mut().filter(|texts| texts.unread() > 0);
    let mut reading: Vec<_> = unread.collect();
    for texts in &reading {
        for source in texts.sources() {
            sequences.push(source, None)?;
        }
    }
    if reading.is_empty() {
        return Ok(());
    }
    let memory = model.model.read(&sequences, cancel)?;
    model.stats.tokens_in.add(sequences.tokens() as u64);
    let mut first = 0;
    for texts in &mut reading {
        let own: Vec<usize> = (first..first + texts.active()).collect();
        first += texts.active();
        texts.remember(memory.of(&own)?, started.elapsed());
    }
    Ok(())
}

/// What became certain of a call's first text, and the end where it has come.
fn choose(texts: &mut Texts, computed: Result<Computed>) -> (Option<String>, Option<Result<()>>) {
    let bug = "red-candle met a bug of its own while it chose a token. Please report it";
    let chosen = computed.and_then(|(rows, cache)| caught(bug, || texts.choose(&rows, &cache)));
    match chosen {
        Ok(said) => (Some(said), texts.is_over().then_some(Ok(()))),
        Err(error) => (None, Some(Err(error))),
    }
}
