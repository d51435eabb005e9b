//! Vectors of tokens beside PyLate's, and the files that must be refused.

use base::runtime::threads;
use candle_core::Tensor;
use engine::tasks::{LateInteractionModel, LateOptions, LateSettings, LoadOptions, TextTask};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;
use kernels::tensor::max_sim::max_sim;

use crate::encoder::{difference, files, Expected};
use crate::sparse::changed_folder;

const TOLERANCE: f32 = 1e-4;
const MODELS: [&str; 7] = [
    "colbert",
    "colbert-attend",
    "colbert-plain",
    "colbert-modernbert",
    "colbert-mpnet",
    "colbert-stanford",
    "multi-vector",
];

fn load(files: &ModelFiles) -> Result<LateInteractionModel> {
    let options = LoadOptions::default();
    LateInteractionModel::load(
        files,
        &options,
        LateSettings::default(),
        &CancelToken::new(),
    )
}

fn embed(model: &LateInteractionModel, texts: &[String], task: TextTask) -> Vec<Tensor> {
    let options = LateOptions::default();
    let found = threads::install(|| model.embed(texts, task, &options, &CancelToken::new()));
    found.unwrap().unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn strings(expected: &Expected, key: &str) -> Vec<String> {
    serde_json::from_value(expected.record[key].clone()).unwrap()
}

fn lengths(expected: &Expected, key: &str) -> Vec<usize> {
    serde_json::from_value(expected.record[key].clone()).unwrap()
}

#[test]
fn vectors_and_scores_are_those_of_pylate() {
    for name in MODELS {
        let expected = Expected::of(name);
        let model = load(&files(name)).unwrap();
        let queries = embed(&model, &strings(&expected, "queries"), TextTask::Query);
        let documents = embed(&model, &strings(&expected, "texts"), TextTask::Document);
        for (found, key) in [(&queries, "query"), (&documents, "document")] {
            let counts: Vec<usize> = found.iter().map(|t| t.dims()[0]).collect();
            assert_eq!(
                counts,
                lengths(&expected, &format!("{key}_lengths")),
                "{name}"
            );
            let rows = expected.rows(if key == "query" {
                "queries"
            } else {
                "documents"
            });
            let all: Vec<f32> = found.iter().flat_map(values).collect();
            let most = difference(&all, &rows.concat());
            println!("{name}, {key}: within {most:e}");
            assert!(most <= TOLERANCE, "{name}, {key}: {most}");
        }
        for (query, row) in queries.iter().zip(expected.rows("scores")) {
            let found = max_sim(query, &documents, &CancelToken::new()).unwrap();
            let most = difference(&found, &row);
            assert!(most <= 10.0 * TOLERANCE, "{name}: {most}");
        }
    }
}

#[test]
fn a_text_does_not_depend_on_its_neighbours() {
    for name in ["colbert", "colbert-modernbert"] {
        let model = load(&files(name)).unwrap();
        let texts: Vec<String> = (0..60)
            .map(|index| "the quick brown fox, ".repeat(1 + index % 5))
            .collect();
        for task in [TextTask::Query, TextTask::Document] {
            let together = embed(&model, &texts, task);
            for (text, vectors) in texts.iter().zip(&together) {
                let alone = embed(&model, std::slice::from_ref(text), task);
                assert_eq!(values(&alone[0]), values(vectors), "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn lengths_can_be_asked_for() {
    let settings = LateSettings {
        query_length: Some(6),
        document_length: Some(5),
    };
    let options = LoadOptions::default();
    let cancel = CancelToken::new();
    let load =
        |settings| LateInteractionModel::load(&files("colbert"), &options, settings, &cancel);
    let model = load(settings).unwrap();
    let texts = ["the quick brown fox jumps over the lazy dog".to_owned()];
    assert_eq!(embed(&model, &texts, TextTask::Query)[0].dims(), [6, 16]);
    assert_eq!(embed(&model, &texts, TextTask::Document)[0].dims(), [5, 16]);
    let far = LateSettings {
        query_length: Some(usize::MAX),
        ..settings
    };
    assert_eq!(load(far).unwrap().length(TextTask::Query), 40);
    let none = LateSettings {
        document_length: Some(3),
        ..settings
    };
    assert!(load(none).is_err());
}

#[track_caller]
fn refused(result: Result<LateInteractionModel>, words: &str) {
    match result.map(|_| ()) {
        Err(
            error @ (Error::UnsupportedModel(_)
            | Error::CorruptModel(_)
            | Error::ModelNotFound(_)
            | Error::InvalidInput(_)),
        ) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn files_that_make_no_sense_are_refused_with_their_reason() {
    let changed = |name: &str, file: &str, from: &str, to: &str| {
        let folder = changed_folder(name, file, |text| text.replace(from, to));
        load(&folder.files())
    };
    let settings = "config_sentence_transformers.json";
    refused(changed("colbert", settings, "\"[Q] \"", "\"[X]\""), "[X]");
    refused(
        changed(
            "colbert",
            settings,
            "\"query_length\": 12",
            "\"query_length\": 0",
        ),
        "query_length",
    );
    refused(
        changed(
            "colbert",
            settings,
            "\"query_length\": 12",
            "\"query_length\": 2",
        ),
        "at least 4",
    );
    refused(
        changed(
            "colbert",
            settings,
            "\"query_length\": 12",
            "\"query_length\": \"x\"",
        ),
        "query_length",
    );
    refused(
        changed("colbert", settings, "\"!\",", "7,"),
        "skiplist_words",
    );
    refused(
        changed("colbert", "modules.json", "Dense.Dense", "Other"),
        "Other",
    );
    refused(
        changed(
            "colbert",
            "modules.json",
            "pylate.models.Dense.Dense",
            "x.Pooling",
        ),
        "late-interaction",
    );
    refused(
        changed(
            "colbert-attend",
            "modules.json",
            "\"path\": \"1_Dense\"",
            "\"path\": \"2_Dense\"",
        ),
        "takes vectors of 16",
    );
    refused(
        changed("colbert", "modules.json", "\"1_Dense\"", "\"../bert\""),
        "..",
    );
    refused(
        changed("colbert-stanford", "config.json", "HF_ColBERT", "BertModel"),
        "late-interaction",
    );
    refused(
        changed(
            "colbert-stanford",
            "artifact.metadata",
            "[unused0]",
            "[none]",
        ),
        "[none]",
    );
    refused(
        changed("colbert-stanford", "artifact.metadata", "18", "\"many\""),
        "doc_maxlen",
    );
    refused(load(&files("bert")), "late-interaction");
}
