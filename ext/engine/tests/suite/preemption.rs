//! With a full KV cache, sequences whose callers read nothing are preempted for those whose callers wait:
//! nobody waits for a paused stream, and nobody's tokens change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engine::generation::random::Random;
use engine::generation::GenerationConfig;
use engine::tasks::{Generation, LanguageModel};
use engine::{CancelToken, Error, Result};
use kernels::paged::PAGE;

use super::scheduling::{begin, counted, prompt, roomy, tight, tokens};

const NAME: &str = "llama";
const POSITIONS: usize = 1024;
/// What a caller may wait at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a call asks for: the length of its prompt, which one, and how many tokens.
type Asked = (usize, u32, usize);

fn started(model: &Arc<LanguageModel>, (length, seed, new): Asked) -> Generation {
    let config = GenerationConfig {
        max_new_tokens: new,
        ..Default::default()
    };
    begin(model, &prompt(length, seed), &config)
}

/// What a call gets that is alone, by what it asks for.
struct Alone {
    model: Arc<LanguageModel>,
    known: Mutex<HashMap<Asked, Vec<u32>>>,
}

impl Alone {
    fn new() -> Self {
        Self {
            model: Arc::new(roomy(NAME, POSITIONS)),
            known: Mutex::default(),
        }
    }

    fn tokens(&self, asked: Asked) -> Vec<u32> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.entry(asked);
        found
            .or_insert_with(|| tokens(&started(&self.model, asked)))
            .clone()
    }
}

fn found(generation: &Generation) -> Vec<u32> {
    generation.read(|run| run.choices().iter().map(|choice| choice.token).collect())
}

/// Does `work` with a token that is cancelled when it takes too long.
fn patiently<T>(work: impl FnOnce(&CancelToken) -> T) -> T {
    let cancel = CancelToken::new();
    let over = CancelToken::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !over.is_cancelled() {
                thread::sleep(Duration::from_millis(2));
                if begun.elapsed() > PATIENCE {
                    cancel.cancel();
                    return;
                }
            }
        });
        let done = work(&cancel);
        over.cancel();
        done
    })
}

#[test]
fn a_call_within_a_stream_ends_although_the_stream_has_all_pages() {
    let (alone, model) = (Alone::new(), Arc::new(tight(NAME, POSITIONS, 1)));
    let (outer, middle, inner) = ((30, 1, 20), (40, 2, 20), (50, 3, 10));
    let stream = started(&model, outer);
    patiently(|cancel| {
        stream.step(cancel).unwrap();
        let second = started(&model, middle);
        second.step(cancel).unwrap();
        let third = started(&model, inner);
        third.finish(cancel).unwrap();
        assert_eq!(found(&third), alone.tokens(inner));
        second.finish(cancel).unwrap();
        assert_eq!(found(&second), alone.tokens(middle));
        while stream.step(cancel).unwrap().is_some() {}
        assert_eq!(found(&stream), alone.tokens(outer));
    });
    assert!(counted(&model, "preempted") > 0);
    drop(stream);
    assert_eq!(counted(&model, "pages_used"), 0);
}

#[test]
fn a_thread_does_not_wait_for_the_sleeping_reader_of_a_stream() {
    let (alone, model) = (Alone::new(), Arc::new(tight(NAME, POSITIONS, 2)));
    let (slow, quick) = ((70, 1, 40), (100, 2, 20));
    patiently(|cancel| {
        let stream = started(&model, slow);
        stream.step(cancel).unwrap();
        thread::scope(|scope| {
            let others = (0..3).map(|_| {
                scope.spawn(|| {
                    let call = started(&model, quick);
                    call.finish(cancel).unwrap();
                    found(&call)
                })
            });
            let others: Vec<_> = others.collect();
            for other in others {
                assert_eq!(other.join().unwrap(), alone.tokens(quick));
            }
        });
        // Its reader wakes up.
        stream.finish(cancel).unwrap();
        assert_eq!(found(&stream), alone.tokens(slow));
    });
}

#[test]
fn a_prompt_that_has_the_pages_goes_on_although_others_want_to_decode() {
    let (alone, model) = (Alone::new(), Arc::new(tight(NAME, POSITIONS, 3)));
    let (long, short) = ((150, 1, 20), (60, 2, 60));
    patiently(|cancel| {
        let first = started(&model, long);
        first.step(cancel).unwrap();
        // The stream is preempted, and comes back as a prompt while the other decodes.
        let second = started(&model, short);
        for _ in 0..20 {
            second.step(cancel).unwrap();
        }
        for _ in 0..10 {
            first.step(cancel).unwrap();
        }
        first.finish(cancel).unwrap();
        second.finish(cancel).unwrap();
        assert_eq!(found(&first), alone.tokens(long));
        assert_eq!(found(&second), alone.tokens(short));
    });
}

/// One of several callers, with the streams that it has begun.
struct Caller<'a> {
    model: &'a Arc<LanguageModel>,
    alone: &'a Alone,
    pages: usize,
    random: Random,
    open: Vec<(Asked, Generation)>,
    /// What nobody reads any more, and nobody has freed.
    abandoned: Vec<Generation>,
}

impl Caller<'_> {
    fn below(&mut self, limit: usize) -> usize {
        (self.random.next_u64() % limit.max(1) as u64) as usize
    }

    /// Some of them do not fit.
    fn asked(&mut self) -> Asked {
        let length = 1 + self.below(self.pages * PAGE + 4);
        (length, self.below(3) as u32, 1 + self.below(24))
    }

    /// A call ended as it must: with the tokens that it gets alone, or with an error that says why.
    fn check(&self, asked: Asked, generation: &Generation, outcome: Result<()>) {
        let (expected, found) = (self.alone.tokens(asked), found(generation));
        match outcome {
            Ok(()) => assert_eq!(found, expected, "{asked:?} on {} pages", self.pages),
            Err(Error::InvalidInput(message)) => {
                let needed = asked.0 + asked.2 - 1;
                assert!(message.contains("kv_cache"), "{message}");
                assert!(
                    needed > self.pages * PAGE,
                    "{asked:?} fits {} pages",
                    self.pages
                );
                assert!(expected.starts_with(&found));
            }
            Err(error) => panic!("{asked:?} on {} pages: {error}", self.pages),
        }
    }

    /// Reads so many pieces of a stream; a failed or finished one is over.
    fn read(&mut self, at: usize, count: usize, cancel: &CancelToken) {
        for _ in 0..count {
            let (asked, stream) = &self.open[at];
            match stream.step(cancel) {
                Ok(Some(_)) => continue,
                Ok(None) => self.check(*asked, stream, Ok(())),
                Err(error) => self.check(*asked, stream, Err(error)),
            }
            self.open.remove(at);
            return;
        }
    }

    fn act(&mut self, cancel: &CancelToken) {
        let open = self.open.len();
        match self.below(6) {
            0 => {
                let asked = self.asked();
                self.open.push((asked, started(self.model, asked)));
                let count = self.below(4);
                self.read(open, count, cancel);
            }
            1 => {
                let asked = self.asked();
                let call = started(self.model, asked);
                let outcome = call.finish(cancel);
                self.check(asked, &call, outcome);
            }
            2 if open > 0 => {
                let (at, count) = (self.below(open), self.below(12));
                self.read(at, count, cancel);
            }
            3 if open > 0 => {
                let at = self.below(open);
                self.abandoned.push(self.open.remove(at).1);
            }
            4 => self.kill(),
            _ => thread::sleep(Duration::from_micros(self.below(2_000) as u64)),
        }
    }

    /// A call that is interrupted at some moment.
    fn kill(&mut self) {
        let asked = self.asked();
        let call = started(self.model, asked);
        let (moment, killed) = (self.below(3_000) as u64, CancelToken::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(moment));
                killed.cancel();
            });
            match call.finish(&killed) {
                Err(Error::Interrupted) => {}
                outcome => self.check(asked, &call, outcome),
            }
        });
    }

    fn end(&mut self, cancel: &CancelToken) {
        while !self.open.is_empty() {
            self.read(0, usize::MAX, cancel);
        }
    }
}

/// Random orders of stream, pause, nested call, abandon and kill in three threads: each call ends, as if it
/// were alone.
#[test]
fn every_caller_gets_on_in_any_order_of_calls() {
    let alone = Alone::new();
    for pages in 1..=4 {
        let model = Arc::new(tight(NAME, POSITIONS, pages));
        for round in 0..6 {
            patiently(|cancel| {
                thread::scope(|scope| {
                    for thread in 0..3 {
                        let (model, alone) = (&model, &alone);
                        scope.spawn(move || {
                            let seed = (pages * 100 + round * 10 + thread) as u64;
                            let mut caller = Caller {
                                model,
                                alone,
                                pages,
                                random: Random::new(seed),
                                open: Vec::new(),
                                abandoned: Vec::new(),
                            };
                            (0..12).for_each(|_| caller.act(cancel));
                            caller.end(cancel);
                        });
                    }
                });
            });
            let left = ["pages_used", "running", "waiting"].map(|name| counted(&model, name));
            assert_eq!(left, [0, 0, 0], "round {round} on {pages} pages");
        }
        assert!(counted(&model, "preempted") > 0);
    }
}
