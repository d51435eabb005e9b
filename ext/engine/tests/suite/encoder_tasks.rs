//! What the tasks promise beyond the numbers of a family.

use base::runtime::threads;
use engine::tasks::{
    entities, Aggregation, EmbedOptions, EmbeddingModel, LoadOptions, MaskModel, RerankModel,
    RerankOptions, ScorePooling, TagModel,
};
use engine::{CancelToken, Error, Result};
use serde_json::Value;

use crate::encoder::{difference, embed, files, load, Expected};
use crate::tiny_folder::tiny;

fn limited(max_length: usize) -> LoadOptions {
    LoadOptions {
        max_length: Some(max_length),
        ..LoadOptions::default()
    }
}

fn try_embed(model: &EmbeddingModel, texts: &[String], options: EmbedOptions) -> Result<Vec<f32>> {
    let found = threads::install(|| model.embed(texts, &options, &CancelToken::new())).unwrap();
    found.map(|found| found.values)
}

fn read(name: &str, file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(tiny(name).join(file)).unwrap()).unwrap()
}

#[test]
fn rerankers_give_the_references_logits() {
    for name in [
        "bert-reranker",
        "xlm-roberta-reranker",
        "qwen3-reranker",
        "llama-reranker",
    ] {
        let expected = Expected::of(name);
        let model = RerankModel::load(&files(name), &limited(512), &CancelToken::new()).unwrap();
        let pairs: Vec<(String, String)> =
            serde_json::from_value(expected.record["pairs"].clone()).unwrap();
        let mut worst = 0f32;
        for ((query, document), row) in pairs.iter().zip(expected.rows("logits")) {
            let options = RerankOptions::default();
            let score = || model.score(query, &[document], &options, &CancelToken::new());
            let found = threads::install(score).unwrap().unwrap();
            worst = worst.max(difference(&found, &row));
        }
        println!("{name}: logits within {worst:e}");
        assert!(worst <= 1e-4, "{name}: {worst}");
    }
}

#[test]
fn rerankers_pool_as_asked_and_keep_the_order() {
    let expected = Expected::of("bert-reranker");
    let model =
        RerankModel::load(&files("bert-reranker"), &limited(512), &CancelToken::new()).unwrap();
    let pairs: Vec<(String, String)> =
        serde_json::from_value(expected.record["pairs"].clone()).unwrap();
    for (pooling, key) in [
        (ScorePooling::Pooler, "logits"),
        (ScorePooling::Cls, "cls_logits"),
        (ScorePooling::Mean, "mean_logits"),
    ] {
        let options = RerankOptions {
            pooling,
            batch_tokens: Some(64),
        };
        let (query, document) = &pairs[0];
        let documents: Vec<String> = ["the dog", document, "a fox ", ""]
            .map(String::from)
            .to_vec();
        let score = || model.score(query, &documents, &options, &CancelToken::new());
        let found = threads::install(score).unwrap().unwrap();
        let row = &expected.rows(key)[0];
        assert!(
            (found[1] - row[0]).abs() <= 1e-4,
            "{key}: {} for {}",
            found[1],
            row[0]
        );
        assert_eq!(found.len(), documents.len());
    }
    let none: [&str; 0] = [];
    let score = || model.score("a", &none, &RerankOptions::default(), &CancelToken::new());
    assert!(threads::install(score).unwrap().unwrap().is_empty());
    let classifier = RerankModel::load(&files("bert-sequence"), &limited(512), &CancelToken::new());
    assert!(
        matches!(classifier.err(), Some(Error::UnsupportedModel(message)) if message.contains("Classifier"))
    );
}

#[test]
fn entities_are_those_of_the_reference_pipeline() {
    for name in ["bert-token", "roberta-token", "deberta-v2-token"] {
        let expected = read(name, "entities.json");
        let texts: Vec<String> = serde_json::from_value(expected["texts"].clone()).unwrap();
        let model =
            TagModel::load(&files(name), &LoadOptions::default(), &CancelToken::new()).unwrap();
        let tagged = threads::install(|| model.tag(&texts, None, &CancelToken::new()))
            .unwrap()
            .unwrap();
        for strategy in ["none", "simple", "first", "average", "max"] {
            for (at, (text, tokens)) in texts.iter().zip(&tagged).enumerate() {
                let aggregation = Aggregation::parse(strategy).unwrap();
                let found = entities::aggregate(text, tokens, model.labels(), aggregation);
                let reference = expected[strategy][at].as_array().unwrap();
                let shown = format!("{name}, {strategy}, {text:?}: {found:?} for {reference:?}");
                assert_eq!(found.len(), reference.len(), "{shown}");
                for (entity, reference) in found.iter().zip(reference) {
                    assert_eq!(
                        entity.label,
                        reference["label"].as_str().unwrap(),
                        "{shown}"
                    );
                    assert_eq!(
                        entity.end,
                        reference["end"].as_u64().unwrap() as usize,
                        "{shown}"
                    );
                    let start = reference["start"].as_u64().unwrap() as usize;
                    // The reference counts the space before a word as the word's.
                    let skipped: Vec<char> = text
                        .chars()
                        .skip(start)
                        .take(entity.start - start)
                        .collect();
                    assert!(skipped.iter().all(|c| c.is_whitespace()), "{shown}");
                    let score = reference["score"].as_f64().unwrap() as f32;
                    assert!((entity.confidence - score).abs() <= 1e-4, "{shown}");
                    let exact: String = text
                        .chars()
                        .skip(entity.start)
                        .take(entity.end - entity.start)
                        .collect();
                    assert_eq!(entity.text, exact);
                }
            }
        }
    }
}

#[test]
fn long_texts_are_tagged_whole_and_once() {
    let text = "the quick brown fox é lives in Paris and jumps. ".repeat(40);
    let whole = |tokens: &[engine::tasks::TaggedToken]| {
        let indexes: Vec<usize> = tokens.iter().map(|token| token.index).collect();
        assert_eq!(indexes, (1..=tokens.len()).collect::<Vec<_>>());
        assert!(tokens.windows(2).all(|pair| pair[0].end <= pair[1].start));
        for token in tokens {
            let sum: f32 = token.probabilities.iter().sum();
            assert!((sum - 1.0).abs() < 1e-5);
        }
    };
    for max_length in [3, 4, 9, 40] {
        let model = TagModel::load(
            &files("bert-token"),
            &limited(max_length),
            &CancelToken::new(),
        )
        .unwrap();
        let texts = [text.as_str(), "hello"];
        let tagged = threads::install(|| model.tag(&texts, Some(100), &CancelToken::new()))
            .unwrap()
            .unwrap();
        let count = model.tokenizer().ids(&text, false).unwrap().len();
        assert_eq!(tagged[0].len(), count);
        whole(&tagged[0]);
        assert_eq!(tagged[1].len(), 1);
        let entities = entities::aggregate(&text, &tagged[0], model.labels(), Aggregation::Simple);
        assert!(entities.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
    let none = TagModel::load(&files("bert-token"), &limited(2), &CancelToken::new());
    assert!(matches!(none.err(), Some(Error::InvalidInput(_))));
}

#[test]
fn masks_are_filled_as_by_the_reference_pipeline() {
    for name in ["bert-masked", "roberta-masked"] {
        let expected = read(name, "fillings.json");
        let model =
            MaskModel::load(&files(name), &LoadOptions::default(), &CancelToken::new()).unwrap();
        let text = expected["text"].as_str().unwrap();
        let filled = threads::install(|| model.fill(text, 5, &CancelToken::new()))
            .unwrap()
            .unwrap();
        for (filling, reference) in filled[0]
            .iter()
            .zip(expected["fillings"].as_array().unwrap())
        {
            assert_eq!(u64::from(filling.id), reference["token"].as_u64().unwrap());
            assert_eq!(filling.token, reference["token_str"].as_str().unwrap());
            assert_eq!(filling.sequence, reference["sequence"].as_str().unwrap());
            assert!(
                (f64::from(filling.score) - reference["score"].as_f64().unwrap()).abs() <= 1e-5
            );
        }
        let twice = format!("{text} {}", model.mask_token());
        let filled = threads::install(|| model.fill(&twice, 3, &CancelToken::new()))
            .unwrap()
            .unwrap();
        assert_eq!(filled.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        let error = threads::install(|| model.fill("no mask", 3, &CancelToken::new()))
            .unwrap()
            .unwrap_err();
        assert!(matches!(&error, Error::InvalidInput(text) if text.contains(&model.mask_token())));
    }
}

#[test]
fn too_long_is_cut_or_refused_by_index_and_count() {
    let model = load("bert", &limited(8));
    assert_eq!(model.max_length(), 8);
    let long = "the dog ".repeat(10);
    let texts = ["a".to_owned(), long.clone()];
    let refused = EmbedOptions {
        truncate: false,
        ..EmbedOptions::default()
    };
    let error = try_embed(&model, &texts, refused.clone()).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::InvalidInput(_)));
    assert!(
        message.contains("index 1") && message.contains("22 tokens"),
        "{message}"
    );
    assert_eq!(model.count_tokens(&long, &CancelToken::new()).unwrap(), 22);
    assert!(try_embed(&model, &texts[..1], refused).is_ok());
    let cut = embed(
        &model,
        &[long, "the dog the dog the dog".to_owned()],
        &EmbedOptions::default(),
    );
    assert!(difference(&cut[0], &cut[1]) <= 1e-6);
}

#[test]
fn ten_megabytes_of_text_are_cut_before_they_are_tokenized() {
    let model = load("bert", &LoadOptions::default());
    let long = "the quick brown fox ".repeat(500_000);
    let started = std::time::Instant::now();
    let found = embed(
        &model,
        &[long.clone(), long[..4000].to_owned()],
        &EmbedOptions::default(),
    );
    assert!(difference(&found[0], &found[1]) <= 1e-6);
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

#[test]
fn options_are_checked_with_the_fix_in_the_message() {
    let model = load("bert-sentence", &LoadOptions::default());
    let texts = ["a".to_owned()];
    let message = |options: EmbedOptions| {
        let error = try_embed(&model, &texts, options).unwrap_err();
        assert!(matches!(error, Error::InvalidInput(_)), "{error}");
        error.to_string()
    };
    let name = message(EmbedOptions {
        prompt_name: Some("nothing".into()),
        ..EmbedOptions::default()
    });
    assert!(
        name.contains("\"query\"") && name.contains("\"passage\""),
        "{name}"
    );
    for dimensions in [0, 33] {
        let text = message(EmbedOptions {
            dimensions: Some(dimensions),
            ..EmbedOptions::default()
        });
        assert!(text.contains("between 1 and the model's 32"), "{text}");
    }
    message(EmbedOptions {
        batch_tokens: Some(0),
        ..EmbedOptions::default()
    });
    assert!(engine::nn::Pooling::parse("median").is_err());
}

#[test]
fn fewer_dimensions_are_cut_and_normalized_again() {
    let model = load("bert-sentence", &LoadOptions::default());
    let texts = ["hello world".to_owned()];
    let whole = embed(&model, &texts, &EmbedOptions::default());
    let options = EmbedOptions {
        dimensions: Some(8),
        ..EmbedOptions::default()
    };
    let cut = embed(&model, &texts, &options);
    assert_eq!(cut[0].len(), 8);
    let norm = whole[0][..8]
        .iter()
        .map(|value| value * value)
        .sum::<f32>()
        .sqrt();
    let by_hand: Vec<f32> = whole[0][..8].iter().map(|value| value / norm).collect();
    assert!(difference(&cut[0], &by_hand) <= 1e-6);
}

#[test]
fn nothing_gives_nothing() {
    let model = load("bert", &LoadOptions::default());
    assert!(try_embed(&model, &[], EmbedOptions::default())
        .unwrap()
        .is_empty());
}

#[test]
fn threads_share_a_model() {
    let model = load("bert", &LoadOptions::default());
    let texts: Vec<String> = (0..40)
        .map(|number| "the dog ".repeat(number % 7 + 1))
        .collect();
    let alone = embed(&model, &texts, &EmbedOptions::default());
    std::thread::scope(|scope| {
        let run = || embed(&model, &texts, &EmbedOptions::default());
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        // Not bit for bit: other tests force instruction sets on the pool's threads meanwhile.
        for worker in workers {
            let rows = worker.join().unwrap();
            assert_eq!(rows.len(), alone.len());
            for (row, alone) in rows.iter().flatten().zip(alone.iter().flatten()) {
                assert!((row - alone).abs() < 1e-5, "{row} instead of {alone}");
            }
        }
    });
}
