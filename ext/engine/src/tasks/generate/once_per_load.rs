//! A scheduler is built once per load, and not again by what calls do.

use std::path::Path;
use std::sync::Arc;

use crate::generation::{GenerationConfig, TokenRules};
use crate::serving::leader::TABLES;
use crate::serving::ContextOverflow;
use crate::tasks::{
    Extras, Generation, LanguageModel, LoadOptions, Request, Seq2SeqGeneration, Seq2SeqModel,
    Seq2SeqSettings,
};
use crate::CancelToken;
use formats::files::model_files::ModelFiles;

fn files(name: &str) -> ModelFiles {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/fixtures/tiny");
    let path = root.join(name);
    ModelFiles::open(path.to_str().unwrap(), None, &CancelToken::new()).unwrap()
}

fn load(draft: Option<&Arc<LanguageModel>>) -> Arc<LanguageModel> {
    let extras = Extras {
        draft,
        ..Extras::default()
    };
    let (options, cancel) = (LoadOptions::default(), CancelToken::new());
    let model = LanguageModel::load_with(&files("decoders/llama"), &options, &extras, &cancel);
    Arc::new(model.unwrap())
}

fn config() -> GenerationConfig {
    GenerationConfig {
        max_new_tokens: 3,
        ..Default::default()
    }
}

fn generate(model: &Arc<LanguageModel>) {
    let request = Request {
        prompt: vec![5, 6, 7],
        instructions: 0,
        config: config(),
        overflow: ContextOverflow::Error,
        adapter: None,
        constraint: None,
        afresh: true,
    };
    let generation = Generation::new(model.clone(), request).unwrap();
    generation.finish(&CancelToken::new()).unwrap();
}

#[test]
fn a_language_model_has_one_scheduler() {
    let before = TABLES.get();
    let model = load(None);
    assert_eq!(TABLES.get(), before + 1);
    generate(&model);
    model.forget_idle().unwrap();
    generate(&model);
    assert_eq!(TABLES.get(), before + 1);
    let with_draft = load(Some(&model));
    generate(&with_draft);
    assert_eq!(TABLES.get(), before + 2);
}

#[test]
fn an_encoder_decoder_has_one_scheduler() {
    let (before, cancel) = (TABLES.get(), CancelToken::new());
    let model = Seq2SeqModel::load(&files("seq2seq/t5"), &LoadOptions::default(), &cancel);
    let model = Arc::new(model.unwrap());
    for _ in 0..2 {
        let settings = Seq2SeqSettings {
            config: config(),
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: Default::default(),
            rules: TokenRules::default(),
        };
        let call = Seq2SeqGeneration::new(model.clone(), vec![vec![5, 6, 1]], settings, None);
        call.unwrap().finish(&cancel).unwrap();
    }
    assert_eq!(TABLES.get(), before + 1);
}
