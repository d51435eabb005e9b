//! Answers that are parts of a text, against the algorithm of transformers' pipeline.

use base::runtime::threads;
use engine::tasks::{Answer, AnswerModel, AnswerOptions, LoadOptions};
use engine::{CancelToken, Error};
use serde_json::Value;

use super::encoder::files;
use super::tiny_folder::tiny;

const TOLERANCE: f64 = 1e-5;

fn model() -> AnswerModel {
    let (files, options) = (files("bert-question"), LoadOptions::default());
    AnswerModel::load(&files, &options, &CancelToken::new()).unwrap()
}

fn answered(
    model: &AnswerModel,
    question: &str,
    context: &str,
    options: &AnswerOptions,
) -> Result<Vec<Answer>, Error> {
    let cancel = CancelToken::new();
    threads::install(|| model.answer(question, context, options, &cancel)).unwrap()
}

#[test]
fn answers_are_those_of_the_pipeline() {
    let text = std::fs::read_to_string(tiny("bert-question").join("answers.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let model = model();
    for case in &cases {
        let number = |key: &str| case.get(key).and_then(Value::as_u64).map(|it| it as usize);
        let options = AnswerOptions {
            top_k: number("top_k").unwrap_or(1),
            longest: number("max_answer_length").unwrap_or(15),
            may_be_none: case.get("no_answer").is_some(),
            stride: number("stride"),
        };
        let (question, context) = (&case["question"], case["context"].as_str().unwrap());
        let found = answered(&model, question.as_str().unwrap(), context, &options).unwrap();
        let expected = case["answers"].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{question}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.text, expected["text"], "{question}");
            assert_eq!(found.start as u64, expected["start"].as_u64().unwrap());
            assert_eq!(found.end as u64, expected["end"].as_u64().unwrap());
            let off = (found.score - expected["score"].as_f64().unwrap()).abs();
            assert!(off <= TOLERANCE, "{question}: off by {off}");
        }
    }
}

#[test]
fn questions_leave_room_for_contexts() {
    let options = AnswerOptions::default();
    let long = "what is it ".repeat(20);
    match answered(&model(), &long, "the dog", &options) {
        Err(Error::InvalidInput(message)) => assert!(message.contains("question"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(answered(&model(), "who?", "", &options).unwrap(), []);
}

#[test]
fn a_model_without_the_head_is_refused() {
    let loaded = AnswerModel::load(
        &files("bert-token"),
        &LoadOptions::default(),
        &CancelToken::new(),
    );
    match loaded.map(drop) {
        Err(Error::UnsupportedModel(message)) => {
            assert!(message.contains("no question answering head"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
