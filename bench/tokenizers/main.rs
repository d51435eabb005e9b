//! Compares how we encode texts with the pipeline of the tokenizers crate, in one process.
//!
//! bench_tokenizers time FILE...             times both, and compares the ids
//! bench_tokenizers fuzz COUNT SEED FILE...  compares all of COUNT random texts for each file
//! bench_tokenizers profile FILE short|words|document ours|crate SECONDS

mod strings;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use formats::files::hub::Access;
use formats::text::tokenizer::{Detail, Input, Tokenizer};
use formats::CancelToken;
use strings::Random;

/// Each is timed so often, ours and the crate's in turn, and the median counts.
const ROUNDS: usize = 9;
const AT_LEAST: Duration = Duration::from_millis(120);

fn open(path: &str) -> Tokenizer {
    let tokenizer = Tokenizer::from_pretrained(path, None, &Access::default(), &CancelToken::new());
    tokenizer.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The prose of our guides, with their code.
fn prose() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let entries = std::fs::read_dir(folder).expect("docs/guides").flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    let texts = paths
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    texts.collect()
}

fn of_words(prose: &str, words: usize) -> Vec<String> {
    let all: Vec<&str> = prose.split_whitespace().collect();
    all.chunks_exact(words)
        .map(|chunk| chunk.join(" "))
        .collect()
}

/// Texts of other scripts, each of about 100 words.
fn scripts() -> Vec<String> {
    const SENTENCES: [&str; 6] = [
        "Быстрая коричневая лиса перепрыгивает через ленивую собаку, а потом спит в тени старого дерева. ",
        "Größere Übungen führen zu schöneren Ergebnissen, müssen aber häufig wiederholt werden. ",
        "我们把文本切分成词元，然后计算每个词元的向量，最后比较它们的相似度。",
        "東京の天気は晴れですが、明日は雨が降るかもしれません。傘を持って行きましょう。",
        "한국어 문장은 띄어쓰기가 있지만 형태소가 복잡해서 토큰의 수가 늘어난다. ",
        "السلام عليكم ورحمة الله، كيف حالك اليوم؟ أتمنى لك يوما سعيدا. ",
    ];
    SENTENCES
        .iter()
        .map(|sentence| sentence.repeat(8))
        .collect()
}

fn texts(kind: &str) -> Vec<String> {
    let prose = prose();
    match kind {
        "short" => of_words(&prose, 5),
        "words" => of_words(&prose, 100),
        "scripts" => scripts(),
        _ => vec![prose.chars().take(200_000).collect()],
    }
}

fn encode_all(tokenizer: &Tokenizer, texts: &[String], detail: Detail) -> Vec<Vec<u32>> {
    let cancel = CancelToken::new();
    let encode = |text| {
        tokenizer
            .encode(text, true, detail, &cancel)
            .expect("an encoding")
    };
    texts
        .iter()
        .map(|text| encode(text).get_ids().to_vec())
        .collect()
}

fn encode_together(tokenizer: &Tokenizer, texts: &[String], detail: Detail) -> Vec<Vec<u32>> {
    let inputs: Vec<Input<'_>> = texts.iter().map(Input::from).collect();
    let all = tokenizer.encode_batch(&inputs, true, detail, &CancelToken::new());
    let all = all.expect("encodings");
    all.iter()
        .map(|encoding| encoding.get_ids().to_vec())
        .collect()
}

/// Seconds of one call.
fn time(work: impl Fn()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    while calls == 0 || start.elapsed() < AT_LEAST {
        work();
        calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(calls)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One row of the table: texts of a kind, and what both take for one.
fn row(path: &str, ours: &Tokenizer, kind: &str, detail: Detail, together: bool) -> bool {
    let theirs = &ours.by_pipeline();
    let texts = texts(kind);
    let encode = if together {
        encode_together
    } else {
        encode_all
    };
    let expected = encode(theirs, &texts, detail);
    let same = encode(ours, &texts, detail) == expected;
    let (mut mine, mut crates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(time(|| drop(encode(ours, &texts, detail))));
        crates.push(time(|| drop(encode(theirs, &texts, detail))));
    }
    let (mine, crates) = (median(mine), median(crates));
    let tokens: usize = expected.iter().map(Vec::len).sum();
    let each = 1e6 / texts.len() as f64;
    println!(
        "| {} | {kind}{} | {} | {:.1} | {:.2} | {:.2} | {:.1} | {:.1} × | {} |",
        name(path),
        if together { ", one call" } else { "" },
        if detail == Detail::Ids {
            "ids"
        } else {
            "offsets"
        },
        tokens as f64 / texts.len() as f64,
        crates * each,
        mine * each,
        tokens as f64 / mine / 1e6,
        crates / mine,
        if same { "same" } else { "DIFFERENT" },
    );
    same
}

fn name(path: &str) -> String {
    // Models of the cache lie in a folder with their name.
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let cached = parts.clone().find_map(|part| part.strip_prefix("models--"));
    let last = parts.next_back().unwrap_or_default();
    cached.map_or(last.to_owned(), |name| name.replace("--", "/"))
}

fn time_all(paths: &[String]) -> bool {
    println!("| tokenizer | texts | detail | tokens each | tokenizers, µs each | ours, µs each | ours, M tokens/s | ratio | ids |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut same = true;
    for path in paths {
        let ours = open(path);
        assert!(ours.is_direct(), "{path} goes through the pipeline");
        for kind in ["short", "words", "document", "scripts"] {
            same &= row(path, &ours, kind, Detail::Ids, false);
        }
        same &= row(path, &ours, "short", Detail::Ids, true);
        for kind in ["short", "words"] {
            same &= row(path, &ours, kind, Detail::Offsets, false);
        }
    }
    same
}

fn fuzz(count: usize, seed: u64, path: &str) -> bool {
    let tokenizer = open(path);
    assert!(tokenizer.is_direct(), "{path} goes through the pipeline");
    let tokens = strings::added_tokens(&tokenizer);
    let mut random = Random(seed);
    let start = Instant::now();
    for at in 0..count {
        if let Some(difference) = strings::difference(&tokenizer, &tokens, &mut random) {
            println!("{path}: text {at} of seed {seed}: {difference}");
            return false;
        }
    }
    println!(
        "{}: {count} texts of seed {seed} alike, {:.0?}",
        name(path),
        start.elapsed()
    );
    true
}

fn profile(path: &str, kind: &str, whose: &str, seconds: f64) {
    let start = Instant::now();
    let tokenizer = open(path);
    println!(
        "loaded in {:?}, direct: {}",
        start.elapsed(),
        tokenizer.is_direct()
    );
    let tokenizer = if whose == "ours" {
        tokenizer
    } else {
        tokenizer.by_pipeline()
    };
    let texts = texts(kind);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        encode_all(&tokenizer, &texts, Detail::Ids);
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let good = match words.as_slice() {
        ["time", ..] => time_all(&arguments[1..]),
        ["fuzz", count, seed, paths @ ..] => {
            let (count, seed) = (count.parse().expect("COUNT"), seed.parse().expect("SEED"));
            let different = paths.iter().filter(|path| !fuzz(count, seed, path));
            different.count() == 0
        }
        ["profile", path, kind, whose, seconds] => {
            profile(path, kind, whose, seconds.parse().expect("SECONDS"));
            true
        }
        _ => {
            eprintln!(
                "time FILE..., fuzz COUNT SEED FILE..., or profile FILE KIND ours|crate SECONDS"
            );
            false
        }
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
