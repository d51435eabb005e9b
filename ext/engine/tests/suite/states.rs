//! Decoders whose layers keep states: a sequence says the same, bit for bit, however it is read, and whatever it comes
//! back from.

use std::sync::Arc;
use std::thread;

use candle_core::DType;
use engine::generation::{GenerationConfig, Speculative};
use engine::models::decoder::model::Reading;
use engine::models::decoder::{Decoder, KvPool, Sequence};
use engine::tasks::{Generation, LanguageModel};
use engine::{CancelToken, Error};
use kernels::paged::{KvType, PAGE};
use serde_json::json;

use super::decoder::read_checkpoint;
use super::scheduling::{begin, counted, limited, load_with, tokens};
use super::seeded_gguf::roomy_alone;
use super::seeded_weights::{changed, names, one_tap, roomy};

const POSITIONS: usize = 1024;
const LENGTH: usize = 2 * PAGE + 22;
const ROOM: usize = 1 << 28;

/// Bits of the logits of rows.
type Rows = Vec<Vec<u32>>;

/// Those that only GGUF files have.
const FILES: [&str; 4] = ["plamo2", "rwkv6", "rwkv6-apart", "rwkv7"];

/// All fixtures of models that keep states, those of GGUF files too.
fn all_stateful() -> Vec<(String, Decoder)> {
    let files = FILES.map(|name| (name.to_owned(), roomy_alone(name, POSITIONS as u32)));
    files.into_iter().chain(stateful()).collect()
}

/// The checkpoints of models that keep states.
fn stateful() -> Vec<(String, Decoder)> {
    let decoders = names().into_iter().filter_map(|name| {
        let folder = roomy(&name, POSITIONS);
        let decoder = read_checkpoint(&folder.path(""), DType::F32).ok()?;
        decoder.config().state.is_some().then_some((name, decoder))
    });
    let decoders: Vec<_> = decoders.collect();
    assert!(!decoders.is_empty());
    decoders
}

fn text(length: usize, seed: u32) -> Vec<u32> {
    let ids = 0..length as u32;
    ids.map(|at| 5 + (at * 7 + at * at * 3 + seed * 31) % 260)
        .collect()
}

fn pool(decoder: &Decoder) -> KvPool {
    KvPool::new(decoder.config(), KvType::F32, decoder.stages(), ROOM).unwrap()
}

/// Reads tokens, the logits of the last of which are wanted.
fn read(
    decoder: &Decoder,
    pool: &mut KvPool,
    sequence: &mut Sequence,
    tokens: &[u32],
    wanted: usize,
) -> Rows {
    assert!(pool.extend(sequence, tokens.len()).unwrap());
    let reading = Reading {
        tokens,
        sequence,
        wanted,
    };
    let logits = decoder.forward_batch(&mut [reading], pool, &CancelToken::new());
    let Some(logits) = logits.unwrap() else {
        return Rows::new();
    };
    let rows: Vec<Vec<f32>> = logits.to_vec2().unwrap();
    let bits = |row: &Vec<f32>| row.iter().map(|value| value.to_bits()).collect();
    rows.iter().map(bits).collect()
}

fn state(pool: &KvPool, sequence: &Sequence) -> Vec<u32> {
    let values = pool.state_values(sequence).unwrap().unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

/// What reading tokens in parts of this length gives: the logits of all, and the state in the end.
fn in_parts(decoder: &Decoder, ids: &[u32], part: usize) -> (Rows, Vec<u32>) {
    let mut pool = pool(decoder);
    let mut sequence = pool.begin(None, 0, &[]).unwrap();
    let rows = ids
        .chunks(part)
        .flat_map(|part| read(decoder, &mut pool, &mut sequence, part, part.len()));
    let rows = rows.collect();
    (rows, state(&pool, &sequence))
}

#[test]
fn a_prompt_in_parts_gives_the_same_bits() {
    for (name, decoder) in all_stateful() {
        let ids = text(LENGTH, 1);
        let whole = in_parts(&decoder, &ids, LENGTH);
        for part in [1, 3, 7, 64] {
            let found = in_parts(&decoder, &ids, part);
            assert!(found == whole, "{name} in parts of {part}");
        }
    }
}

/// Three sequences of other lengths in the same steps.
#[test]
fn sequences_beside_others_give_the_same_bits() {
    for (name, decoder) in all_stateful() {
        let texts = [text(LENGTH, 8), text(7, 9), text(PAGE + 1, 10)];
        let expected = texts.each_ref().map(|ids| in_parts(&decoder, ids, LENGTH));
        let mut pool = pool(&decoder);
        let mut sequences = [(); 3].map(|()| pool.begin(None, 0, &[]).unwrap());
        let mut found = [(); 3].map(|()| Rows::new());
        for half in 0..2 {
            let parts = texts.each_ref().map(|ids| {
                let (first, rest) = ids.split_at(ids.len() / 2);
                [first, rest][half]
            });
            let mut readings = Vec::new();
            for (tokens, sequence) in parts.into_iter().zip(&mut sequences) {
                assert!(pool.extend(sequence, tokens.len()).unwrap());
                readings.push(Reading {
                    tokens,
                    sequence,
                    wanted: tokens.len(),
                });
            }
            let logits = decoder.forward_batch(&mut readings, &mut pool, &CancelToken::new());
            let rows: Vec<Vec<f32>> = logits.unwrap().unwrap().to_vec2().unwrap();
            let mut rows = rows.iter();
            for (found, part) in found.iter_mut().zip(parts) {
                let rows = rows.by_ref().take(part.len());
                let bits =
                    |row: &Vec<f32>| row.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                found.extend(rows.map(bits));
            }
        }
        for ((found, sequence), (rows, last)) in found.iter().zip(&sequences).zip(&expected) {
            assert!(found == rows, "{name}");
            assert!(&state(&pool, sequence) == last, "{name}");
        }
    }
}

#[test]
fn a_sequence_resumes_where_a_state_was_saved() {
    for (name, decoder) in all_stateful() {
        let mut pool = pool(&decoder);
        let spacing = pool.state_spacing(LENGTH);
        let ids = text(LENGTH, 2);
        let expected = in_parts(&decoder, &ids, LENGTH);
        let mut first = pool.begin(None, 0, &ids).unwrap();
        read(&decoder, &mut pool, &mut first, &ids[..LENGTH - 5], 1);
        pool.share(&mut first);
        read(
            &decoder,
            &mut pool,
            &mut first,
            &ids[LENGTH - 5..LENGTH - 2],
            1,
        );
        pool.release(first);
        // At the end of the first one, at the end of its prompt's last whole page, and where a small state was saved.
        let other = text(LENGTH, 3);
        let branch = [&ids[..2 * PAGE + 9], &other[..20]].concat();
        let short = [&ids[..PAGE + 9], &other[..20]].concat();
        for (ids, length) in [
            (&ids, LENGTH - 2),
            (&branch, 2 * PAGE),
            (&short, PAGE / spacing * spacing),
        ] {
            let mut sequence = pool.begin(None, 0, &ids[..ids.len() - 1]).unwrap();
            assert_eq!(sequence.length(), length, "{name}");
            let alone = in_parts(&decoder, ids, ids.len());
            let rest = &ids[length..];
            let found = read(&decoder, &mut pool, &mut sequence, rest, rest.len());
            assert!(found == alone.0[length..], "{name} from {length}");
            assert!(state(&pool, &sequence) == alone.1, "{name} from {length}");
            pool.truncate(&mut sequence, 0);
            pool.release(sequence);
        }
        assert_eq!(expected.0.len(), LENGTH);
        assert_eq!(pool.book().used(), 0, "{name}");
        pool.forget_idle();
        assert_eq!(pool.book().idle(), 0, "{name}");
    }
}

/// Prompts of two pages and some that are the same, and more that is not.
fn prompts_alike(count: u32) -> Vec<Vec<u32>> {
    let same = text(2 * PAGE + 9, 11);
    let prompt = |number: u32| [&same[..], &text(PAGE + 30, 12 + number)].concat();
    (0..count).map(prompt).collect()
}

/// Prompts that share a prefix: where the second one parts from the first, its state is saved, and the third resumes
/// there.
#[test]
fn a_state_is_saved_where_prompts_part() {
    let mut seen = [false; 2];
    for (name, decoder) in all_stateful() {
        let mut pool = pool(&decoder);
        for (number, ids) in prompts_alike(4).iter().enumerate() {
            // A small state was saved there already.
            let spacing = pool.state_spacing(ids.len());
            let resumed = [0, 2 * PAGE / spacing * spacing, 2 * PAGE, 2 * PAGE][number];
            seen[usize::from(spacing > 2 * PAGE)] = true;
            let expected = in_parts(&decoder, ids, ids.len());
            let mut sequence = pool.begin(None, 0, &ids[..ids.len() - 1]).unwrap();
            assert_eq!(sequence.length(), resumed, "{name}, prompt {number}");
            let rest = &ids[resumed..];
            let found = read(&decoder, &mut pool, &mut sequence, rest, 1);
            assert!(found[0] == expected.0[ids.len() - 1], "{name}");
            assert!(state(&pool, &sequence) == expected.1, "{name}");
            pool.share(&mut sequence);
            pool.release(sequence);
        }
    }
    assert_eq!(seen, [true; 2]);
}

/// Where it is known how long the instructions are, the first prompt saves their state, in whatever parts it is read.
#[test]
fn the_first_prompt_saves_the_state_of_its_instructions() {
    for (name, decoder) in all_stateful() {
        let prompts = prompts_alike(2);
        let expected = [0, 1].map(|at| in_parts(&decoder, &prompts[at], POSITIONS).1);
        for part in [7, 50, 2 * PAGE, POSITIONS] {
            let mut pool = pool(&decoder);
            for (number, ids) in prompts.iter().enumerate() {
                let resumed = [0, 2 * PAGE][number];
                let mut sequence = pool.begin(None, 0, &ids[..ids.len() - 1]).unwrap();
                assert_eq!(sequence.length(), resumed, "{name} in parts of {part}");
                sequence.expect(ids.len(), 2 * PAGE + 9);
                for piece in ids[resumed..].chunks(part) {
                    read(&decoder, &mut pool, &mut sequence, piece, 0);
                }
                assert!(state(&pool, &sequence) == expected[number], "{name}");
                pool.share(&mut sequence);
                pool.release(sequence);
            }
        }
    }
}

/// States are saved at equal distances, as many as an eighth of the memory holds, and at the end of the prompt.
#[test]
fn states_of_a_prompt_take_a_share_of_the_memory() {
    for (name, decoder) in all_stateful() {
        let page = (KvPool::token_bytes(decoder.config(), KvType::F32) * PAGE).max(1024);
        let state = (KvPool::sequence_bytes(decoder.config()) / 2).div_ceil(page);
        let ids = text(8 * PAGE + 5, 13);
        for (limit, scarce) in [(ROOM / page, false), (12 + 12 * state, true)] {
            let (kind, stages) = (KvType::F32, decoder.stages());
            let mut pool = KvPool::new(decoder.config(), kind, stages, limit * page).unwrap();
            let spacing = pool.state_spacing(ids.len()) / PAGE;
            assert_eq!(spacing > state.min(4), scarce, "{name} of {limit}");
            assert!(8 * (9 / spacing) * state <= limit, "{name} of {limit}");
            let mut sequence = pool.begin(None, 0, &ids).unwrap();
            sequence.expect(ids.len(), 0);
            for part in ids.chunks(100) {
                let ends = usize::from(part.len() < 100);
                read(&decoder, &mut pool, &mut sequence, part, ends);
            }
            pool.share(&mut sequence);
            let saved = 8 / spacing + usize::from(8 % spacing > 0);
            assert_eq!(pool.book().idle(), saved * state, "{name} of {limit}");
            pool.release(sequence);
        }
    }
}

/// Draft tokens that are not accepted are taken back, any number of them and several times in a row.
#[test]
fn tokens_are_taken_back_with_their_states() {
    for (name, decoder) in all_stateful() {
        let ids = text(LENGTH, 4);
        let expected = in_parts(&decoder, &ids, LENGTH);
        for wrong in [1, 2, 7, 15] {
            let mut pool = pool(&decoder);
            let mut sequence = pool.begin(None, 0, &[]).unwrap();
            let prompt = LENGTH - 20;
            read(&decoder, &mut pool, &mut sequence, &ids[..prompt], 1);
            for (turn, right) in [1, 3, 2, 1, 4].into_iter().enumerate() {
                let at = sequence.length();
                let drafts = [&ids[at..at + right], &text(wrong, 9 + turn as u32)].concat();
                let wanted = drafts.len();
                let found = read(&decoder, &mut pool, &mut sequence, &drafts, wanted);
                assert!(
                    found[..right] == expected.0[at..at + right],
                    "{name} at {at}"
                );
                pool.truncate(&mut sequence, at + right);
                assert_eq!(sequence.length(), at + right, "{name}");
            }
            let at = sequence.length();
            let rest = &ids[at..];
            let found = read(&decoder, &mut pool, &mut sequence, rest, rest.len());
            assert!(found == expected.0[at..], "{name} after {wrong} wrong ones");
            assert!(
                state(&pool, &sequence) == expected.1,
                "{name} after {wrong}"
            );
        }
    }
}

#[test]
fn a_sequence_that_forgets_much_reads_it_again() {
    for (name, decoder) in all_stateful() {
        let ids = text(LENGTH, 5);
        let expected = in_parts(&decoder, &ids, LENGTH);
        let mut pool = pool(&decoder);
        let mut sequence = pool.begin(None, 0, &[]).unwrap();
        read(&decoder, &mut pool, &mut sequence, &ids[..PAGE], 0);
        read(&decoder, &mut pool, &mut sequence, &text(50, 6), 0);
        pool.truncate(&mut sequence, PAGE + 40);
        let at = sequence.length();
        assert!(at <= PAGE + 40, "{name}");
        pool.truncate(&mut sequence, PAGE.min(at));
        let at = sequence.length();
        let found = read(&decoder, &mut pool, &mut sequence, &ids[at..], LENGTH - at);
        assert!(found == expected.0[at..], "{name} from {at}");
        assert!(state(&pool, &sequence) == expected.1, "{name} from {at}");
    }
}

/// A step that is interrupted in the midst of its layers leaves a state half changed.
#[test]
fn an_interrupted_step_is_computed_again_with_the_same_bits() {
    let (name, decoder) = stateful().pop().unwrap();
    let ids = text(LENGTH, 7);
    let expected = in_parts(&decoder, &ids, LENGTH);
    let mut interrupts = 0;
    for pause in 0..200 {
        let mut pool = pool(&decoder);
        let mut sequence = pool.begin(None, 0, &[]).unwrap();
        let prompt = LENGTH - 30;
        read(&decoder, &mut pool, &mut sequence, &ids[..prompt], 1);
        assert!(pool.extend(&mut sequence, 30).unwrap());
        let cancel = CancelToken::new();
        let other = cancel.clone();
        let stopper = thread::spawn(move || {
            (0..pause * 200).for_each(|_| std::hint::spin_loop());
            other.cancel();
        });
        let reading = Reading {
            tokens: &ids[prompt..],
            sequence: &mut sequence,
            wanted: 1,
        };
        let computed = decoder.forward_batch(&mut [reading], &mut pool, &cancel);
        stopper.join().unwrap();
        if matches!(computed, Err(Error::Interrupted)) {
            interrupts += 1;
            assert_eq!(sequence.length(), prompt);
            let rest = &ids[prompt..];
            let found = read(&decoder, &mut pool, &mut sequence, rest, rest.len());
            assert!(found == expected.0[prompt..], "{name}");
        }
        assert!(state(&pool, &sequence) == expected.1, "{name}");
    }
    assert!(interrupts > 0);
}

/// With so many bytes for keys, values and states.
fn model(name: &str, limit: usize) -> Arc<LanguageModel> {
    let folder = roomy(name, POSITIONS);
    Arc::new(load_with(&folder.path(""), &limited(limit)).unwrap())
}

fn asked(number: u32, speculative: Speculative) -> (Vec<u32>, GenerationConfig) {
    // Texts that repeat themselves, so that there is something to guess.
    let prompt: Vec<u32> = text(12, number % 3).repeat(4 + number as usize);
    let config = GenerationConfig {
        max_new_tokens: 40,
        speculative,
        ..Default::default()
    };
    (prompt, config)
}

fn alone(model: &Arc<LanguageModel>, number: u32) -> Vec<u32> {
    let (prompt, config) = asked(number, Speculative::None);
    tokens(&begin(model, &prompt, &config))
}

#[test]
fn speculative_decoding_changes_no_token() {
    for (name, _) in stateful() {
        let expected: Vec<_> = (0..3)
            .map(|number| alone(&model(&name, ROOM), number))
            .collect();
        let model = model(&name, ROOM);
        let (mut drafted, mut accepted) = (0, 0);
        for _ in 0..2 {
            for (number, expected) in expected.iter().enumerate() {
                let (prompt, config) = asked(number as u32, Speculative::Lookup);
                assert_eq!(
                    &tokens(&begin(&model, &prompt, &config)),
                    expected,
                    "{name}"
                );
            }
            (drafted, accepted) = (counted(&model, "drafted"), counted(&model, "accepted"));
        }
        assert!(drafted > accepted, "{name}: {accepted} of {drafted}");
        assert!(counted(&model, "prefix_hits") > 0, "{name}");
    }
}

#[test]
fn preempted_sequences_go_on_with_the_same_tokens() {
    for (name, decoder) in stateful() {
        let roomy = model(&name, ROOM);
        let expected: Vec<_> = (0..4).map(|number| alone(&roomy, number)).collect();
        // Two states and the pages of one long sequence and some.
        let state = KvPool::sequence_bytes(decoder.config());
        let page = (KvPool::token_bytes(decoder.config(), KvType::F32) * PAGE).max(1024);
        let tight = model(&name, 2 * state + 5 * page);
        let all: Vec<Generation> = (0..4)
            .map(|number| {
                let (prompt, config) = asked(number, Speculative::None);
                begin(&tight, &prompt, &config)
            })
            .collect();
        for (generation, expected) in all.iter().zip(&expected) {
            assert_eq!(&tokens(generation), expected, "{name}");
        }
        drop(all);
        assert_eq!(counted(&tight, "pages_used"), 0, "{name}");
    }
}

/// There is room for one of two: the first gives its pages and its state to the second, whose caller waits, and comes
/// back as a prompt.
#[test]
fn a_preempted_sequence_computes_its_state_again() {
    for (name, decoder) in stateful() {
        let roomy = model(&name, ROOM);
        let expected = [0, 1].map(|number| alone(&roomy, number));
        let page = (KvPool::token_bytes(decoder.config(), KvType::F32) * PAGE).max(1024);
        let state = KvPool::sequence_bytes(decoder.config()).div_ceil(page);
        let tight = model(&name, (state + 2) * page);
        let [first, second] = [0, 1].map(|number| {
            let (prompt, config) = asked(number, Speculative::None);
            begin(&tight, &prompt, &config)
        });
        for _ in 0..3 {
            first.step(&CancelToken::new()).unwrap();
        }
        assert_eq!(counted(&tight, "preempted"), 0, "{name}");
        // Its state counts beside its pages.
        assert!(counted(&tight, "pages_used") > state as u64, "{name}");
        assert_eq!(tokens(&second), expected[1], "{name}");
        assert!(counted(&tight, "preempted") > 0, "{name}");
        assert_eq!(tokens(&first), expected[0], "{name}");
        drop([first, second]);
        assert_eq!(counted(&tight, "pages_used"), 0, "{name}");
    }
}

#[test]
fn states_count_as_what_sequences_take() {
    let (name, decoder) = stateful().pop().unwrap();
    let state = KvPool::sequence_bytes(decoder.config());
    let tight = model(&name, state / 2);
    let (prompt, config) = asked(0, Speculative::None);
    let refused = begin(&tight, &prompt, &config).finish(&CancelToken::new());
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("keys, values and states"), "{message}");
}

#[test]
fn a_convolution_of_one_token_keeps_nothing() {
    let decoder = read_checkpoint(&one_tap().path(""), DType::F32).unwrap();
    let ids = text(20, 1);
    let (rows, kept) = in_parts(&decoder, &ids, 20);
    assert!(kept.is_empty());
    assert!(in_parts(&decoder, &ids, 1).0 == rows);
}

/// Sizes that do not fit each other, that no tensor has, or for which there is no memory.
#[test]
fn wrong_sizes_of_states_are_refused() {
    let wrong = [
        ("lfm2", "conv_L_cache", json!(0)),
        ("lfm2", "conv_L_cache", json!(1_u64 << 40)),
        ("lfm2", "conv_L_cache", json!(5)),
        ("lfm2", "layer_types", json!(["conv"])),
        ("granitemoehybrid", "mamba_n_heads", json!(0)),
        ("granitemoehybrid", "mamba_d_state", json!(1 << 19)),
        ("granitemoehybrid", "mamba_n_groups", json!(4)),
        ("granitemoehybrid", "mamba_n_groups", json!(0)),
        ("granitemoehybrid", "mamba_d_head", json!(17)),
        ("granitemoehybrid", "time_step_limit", json!("none")),
        ("mamba", "state_size", json!(1 << 20)),
        ("mamba", "time_step_rank", json!(0)),
        ("mamba", "expand", json!(1e300)),
        ("nemotron_h", "layers_block_type", json!(["mamba", "mamba"])),
    ];
    for (name, key, value) in wrong {
        let folder = changed(name, key, value.clone());
        let found = read_checkpoint(&folder.path(""), DType::F32).err();
        let refused = matches!(found, Some(Error::CorruptModel(_)));
        assert!(refused, "{name} with {key} {value}: {found:?}");
    }
}
