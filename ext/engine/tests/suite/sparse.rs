//! Weights of tokens beside those of sentence-transformers, and the files that must be refused.

use base::runtime::threads;
use engine::tasks::{
    LoadOptions, SparseModel, SparseOptions, SparseSimilarity, SparseVector, TextTask,
};
use engine::{CancelToken, Error, Result};
use formats::files::model_files::ModelFiles;

use crate::encoder::{difference, files, Expected};
use crate::tiny_folder::tiny;
use crate::weight_files::Folder;

const TOLERANCE: f32 = 1e-4;

fn load(files: &ModelFiles) -> Result<SparseModel> {
    SparseModel::load(files, &LoadOptions::default(), &CancelToken::new())
}

fn embed(model: &SparseModel, texts: &[String], options: &SparseOptions) -> Vec<SparseVector> {
    let found = threads::install(|| model.embed(texts, options, &CancelToken::new()));
    found.unwrap().unwrap()
}

/// The whole vocabulary's weights.
fn dense(vector: &SparseVector, width: usize) -> Vec<f32> {
    let mut weights = vec![0.0; width];
    for (&id, &weight) in vector.ids.iter().zip(&vector.weights) {
        weights[id as usize] = weight;
    }
    weights
}

fn check(name: &str, key: &str, model: &SparseModel, options: &SparseOptions) {
    let expected = Expected::of(name);
    let found = embed(model, &expected.texts(), options);
    for (index, (vector, row)) in found.iter().zip(expected.rows(key)).enumerate() {
        assert!(vector.ids.is_sorted(), "{name}, {key}");
        assert!(vector.weights.iter().all(|&weight| weight != 0.0));
        let most = difference(&dense(vector, row.len()), &row);
        assert!(most <= TOLERANCE, "{name}, {key}, text {index}: {most}");
    }
}

const MODELS: [&str; 8] = [
    "splade",
    "splade-log",
    "splade-sum",
    "splade-sum-log",
    "splade-euclidean",
    "splade-manhattan",
    "sparse-static",
    "sparse-router",
];

#[test]
fn weights_are_those_of_sentence_transformers() {
    for name in MODELS {
        let model = load(&files(name)).unwrap();
        let options = SparseOptions::default();
        check(name, "default", &model, &options);
        if name != "sparse-router" {
            let top_k = Some(5);
            check(name, "top_k", &model, &SparseOptions { top_k, ..options });
        }
    }
}

#[test]
fn prompts_and_tasks_choose_what_is_read_and_how() {
    let splade = load(&files("splade")).unwrap();
    let named = SparseOptions {
        prompt_name: Some("query".into()),
        ..SparseOptions::default()
    };
    check("splade", "query", &splade, &named);
    let given = SparseOptions {
        prompt: Some("so: ".into()),
        ..SparseOptions::default()
    };
    check("splade", "prompt", &splade, &given);
    let router = load(&files("sparse-router")).unwrap();
    assert_eq!(router.routes(), ["query", "document"]);
    assert_eq!(router.top_k(), Some(12));
    for (key, task, prompt) in [
        ("query", TextTask::Query, None),
        ("document", TextTask::Document, None),
        ("query_task", TextTask::Query, Some(String::new())),
        ("bare_document", TextTask::Document, Some(String::new())),
    ] {
        let options = SparseOptions {
            task: Some(task),
            prompt,
            ..SparseOptions::default()
        };
        check("sparse-router", key, &router, &options);
    }
}

#[test]
fn similarities_are_those_of_sentence_transformers() {
    for name in MODELS {
        let expected = Expected::of(name);
        let model = load(&files(name)).unwrap();
        let vectors = embed(&model, &expected.texts(), &SparseOptions::default());
        for (one, row) in vectors.iter().zip(expected.rows("similarity")) {
            let found: Vec<f32> = vectors
                .iter()
                .map(|other| model.similarity().of(one, other))
                .collect();
            // PyTorch takes a distance from the difference of large products, so that of a text to itself
            // is not quite 0 there.
            let tolerance = match model.similarity() {
                SparseSimilarity::Euclidean => 1e-2,
                _ => 20.0 * TOLERANCE,
            };
            let most = difference(&found, &row);
            assert!(most <= tolerance, "{name}: {most}");
        }
    }
    let similarity = |name| load(&files(name)).unwrap().similarity();
    assert_eq!(similarity("splade"), SparseSimilarity::Dot);
    assert_eq!(similarity("sparse-static"), SparseSimilarity::Cosine);
}

#[test]
fn a_text_does_not_depend_on_its_neighbours() {
    let model = load(&files("splade")).unwrap();
    let texts: Vec<String> = (0..80)
        .map(|index| "the quick brown fox ".repeat(index % 5))
        .collect();
    let together = embed(&model, &texts, &SparseOptions::default());
    for (text, vector) in texts.iter().zip(&together) {
        let alone = embed(
            &model,
            std::slice::from_ref(text),
            &SparseOptions::default(),
        );
        assert_eq!(&alone[0], vector, "{text:?}");
    }
    let few = SparseOptions {
        batch_tokens: Some(1),
        ..SparseOptions::default()
    };
    assert_eq!(embed(&model, &texts, &few), together);
}

#[test]
fn long_texts_are_refused_where_that_is_asked_for() {
    for name in ["splade", "sparse-static"] {
        let options = LoadOptions {
            max_length: Some(4),
            ..LoadOptions::default()
        };
        let model = SparseModel::load(&files(name), &options, &CancelToken::new()).unwrap();
        let options = SparseOptions {
            truncate: false,
            first_index: 10,
            ..SparseOptions::default()
        };
        let texts = ["fox", "the quick brown fox jumps"];
        let error = model.embed(&texts, &options, &CancelToken::new());
        let message = error.unwrap_err().to_string();
        assert!(message.contains("index 11"), "{message}");
    }
}

/// A copy of a tiny checkpoint in which one file says something else.
pub struct Changed(Folder);

impl Changed {
    pub fn files(&self) -> ModelFiles {
        let path = self.0.path("");
        ModelFiles::open(&path.to_string_lossy(), None, &CancelToken::new()).unwrap()
    }
}

pub fn changed_folder(name: &str, file: &str, change: impl Fn(&str) -> String) -> Changed {
    let folder = Folder::new();
    copy(&tiny(name), &folder.path(""));
    let path = folder.path(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let other = change(&text);
    assert_ne!(text, other, "{file}");
    std::fs::write(&path, other).unwrap();
    Changed(folder)
}

fn changed(name: &str, file: &str, change: impl Fn(&str) -> String) -> Result<SparseModel> {
    load(&changed_folder(name, file, change).files())
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[track_caller]
fn refused(result: Result<SparseModel>, words: &str) {
    match result.map(|_| ()) {
        Err(
            error @ (Error::UnsupportedModel(_)
            | Error::CorruptModel(_)
            | Error::ModelNotFound(_)
            | Error::Device(_)
            | Error::InvalidInput(_)),
        ) => assert!(error.to_string().contains(words), "{error}"),
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn files_that_make_no_sense_are_refused_with_their_reason() {
    let router = "router_config.json";
    let swap = |from: &'static str, to: &'static str| move |text: &str| text.replace(from, to);
    refused(
        changed(
            "sparse-router",
            router,
            swap("\"document_0_Transformer\",\n", "\"..\",\n"),
        ),
        "types",
    );
    refused(
        changed(
            "sparse-router",
            router,
            swap(
                "\"default_route\": \"document\"",
                "\"default_route\": \"x\"",
            ),
        ),
        "\"x\"",
    );
    refused(
        changed(
            "sparse-router",
            router,
            swap(
                "\"route_mappings\": {}",
                "\"route_mappings\": {\"(None)\": \"query\"}",
            ),
        ),
        "route_mappings",
    );
    refused(
        changed(
            "sparse-router",
            router,
            swap("document_1_SpladePooling\"\n", "document_0_Transformer\"\n"),
        ),
        "SpladePooling",
    );
    refused(
        changed("sparse-router", router, |_| {
            "{\"types\": {}, \"structure\": {}}".into()
        }),
        "no routes",
    );
    refused(
        changed("sparse-router", router, |_| "[]".into()),
        "router_config.json",
    );
    let pooling = "1_SpladePooling/config.json";
    refused(
        changed("splade", pooling, swap("\"max\"", "\"mean\"")),
        "mean",
    );
    refused(
        changed("splade", pooling, swap("\"relu\"", "\"gelu\"")),
        "gelu",
    );
    refused(
        changed("splade", pooling, swap("\"max\"", "7")),
        "pooling_strategy",
    );
    refused(
        changed(
            "splade",
            "modules.json",
            swap("SpladePooling\"", "SparseAutoEncoder\""),
        ),
        "SparseAutoEncoder",
    );
    refused(
        changed("splade", "modules.json", |_| "[]".into()),
        "modules",
    );
    refused(
        changed(
            "splade",
            "config_sentence_transformers.json",
            swap(
                "\"similarity_fn_name\": null",
                "\"similarity_fn_name\": \"hamming\"",
            ),
        ),
        "hamming",
    );
    refused(load(&files("bert")), "masked language model head");
    refused(load(&files("bert-sentence")), "not a sparse model");
}

#[test]
fn a_plain_masked_language_model_is_a_splade_model() {
    let model = load(&files("bert-masked")).unwrap();
    let splade = load(&files("splade")).unwrap();
    let texts = ["the lazy dog".to_owned()];
    let options = SparseOptions::default();
    assert_eq!(
        embed(&model, &texts, &options),
        embed(&splade, &texts, &options)
    );
}
