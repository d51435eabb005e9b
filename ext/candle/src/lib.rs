//! The Ruby face of the engine: one file per Ruby class, registered here in order.

mod audio;
mod audio_classifier;
mod audio_embedding_model;
mod build_info;
mod classifier;
mod clip;
mod convert;
mod depth_estimator;
mod device;
mod document_reader;
mod dtype;
mod embedding_model;
mod error;
mod gc;
mod gliclass;
mod gliner;
mod gvl;
mod hub;
mod image;
mod image_classifier;
mod image_embedding_model;
mod image_segmenter;
mod index;
mod late_interaction_model;
mod llm;
mod masked_lm;
mod model;
mod models_lock;
mod ner;
mod object_detector;
mod question_answerer;
mod recognizers;
mod reranker;
mod self_test;
mod seq2seq;
mod sparse_embedding_model;
mod supported_models;
mod tensor;
mod term_index;
mod token_ids;
mod tokenizer;
mod transcriber;
mod utils;
mod vlm;
mod voice_activity_detector;
mod weights;

use magnus::{Error, Ruby, TypedData};

#[global_allocator]
static ALLOCATOR: base::runtime::allocator::Reusing = base::runtime::allocator::Reusing::new();

#[magnus::init(name = "candle")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let candle = ruby.define_module("Candle")?;
    base::runtime::allocator::init();
    base::runtime::memory::on_trim(|| ALLOCATOR.clear());
    base::runtime::huge_pages::init();
    kernels::cuda_graphs::init();
    kernels::f32_tiles::init();
    kernels::fp8::init();
    base::runtime::threads::init();
    gvl::init();
    build_info::init(candle)?;
    supported_models::init(candle)?;
    utils::init(candle)?;
    dtype::init(ruby, candle)?;
    device::init(ruby, candle)?;
    tensor::init(ruby, candle)?;
    tokenizer::init(ruby, candle)?;
    hub::init(ruby, candle)?;
    models_lock::init(ruby, candle)?;
    weights::init(ruby, candle)?;
    llm::init(ruby, candle)?;
    seq2seq::init(ruby, candle)?;
    embedding_model::init(ruby, candle)?;
    sparse_embedding_model::init(ruby, candle)?;
    late_interaction_model::init(ruby, candle)?;
    reranker::init(ruby, candle)?;
    ner::init(ruby, candle)?;
    classifier::init(ruby, candle)?;
    masked_lm::init(ruby, candle)?;
    question_answerer::init(ruby, candle)?;
    gliner::init(ruby, candle)?;
    gliclass::init(ruby, candle)?;
    image::init(ruby, candle)?;
    audio::init(ruby, candle)?;
    transcriber::init(ruby, candle)?;
    voice_activity_detector::init(ruby, candle)?;
    audio_classifier::init(ruby, candle)?;
    audio_embedding_model::init(ruby, candle)?;
    clip::init(ruby, candle)?;
    image_embedding_model::init(ruby, candle)?;
    image_classifier::init(ruby, candle)?;
    object_detector::init(ruby, candle)?;
    image_segmenter::init(ruby, candle)?;
    depth_estimator::init(ruby, candle)?;
    vlm::init(ruby, candle)?;
    document_reader::init(ruby, candle)?;
    recognizers::init(ruby, candle)?;
    index::init(ruby, candle)?;
    term_index::init(ruby, candle)?;
    self_test::init(candle)?;
    resolve_classes(ruby);
    Ok(())
}

/// magnus looks a class up when it first wraps a value of it, and panics when a signal's exception
/// arrives just then. Here nothing does.
fn resolve_classes(ruby: &Ruby) {
    let lookups = [
        <audio::RbAudio as TypedData>::class,
        <audio_classifier::RbAudioClassifier as TypedData>::class,
        <audio_embedding_model::RbAudioEmbeddingModel as TypedData>::class,
        <classifier::RbClassifier as TypedData>::class,
        <clip::RbClip as TypedData>::class,
        <device::RbDevice as TypedData>::class,
        <document_reader::RbImageToText as TypedData>::class,
        <dtype::RbDType as TypedData>::class,
        <embedding_model::RbEmbeddingModel as TypedData>::class,
        <gliclass::RbGliclass as TypedData>::class,
        <gliner::RbGliner as TypedData>::class,
        <index::RbIndex as TypedData>::class,
        <late_interaction_model::RbLateInteractionModel as TypedData>::class,
        <image::RbImage as TypedData>::class,
        <image_classifier::RbImageClassifier as TypedData>::class,
        <image_embedding_model::RbImageEmbeddingModel as TypedData>::class,
        <llm::RbLlm as TypedData>::class,
        <llm::RbRun as TypedData>::class,
        <masked_lm::RbMaskedLm as TypedData>::class,
        <ner::RbNer as TypedData>::class,
        <object_detector::RbObjectDetector as TypedData>::class,
        <image_segmenter::RbImageSegmenter as TypedData>::class,
        <depth_estimator::RbDepthEstimator as TypedData>::class,
        <question_answerer::RbQuestionAnswerer as TypedData>::class,
        <reranker::RbReranker as TypedData>::class,
        <recognizers::RbGazetteer as TypedData>::class,
        <recognizers::RbTextPattern as TypedData>::class,
        <seq2seq::RbSeq2Seq as TypedData>::class,
        <seq2seq::RbRun as TypedData>::class,
        <sparse_embedding_model::RbSparseEmbeddingModel as TypedData>::class,
        <vlm::RbEncoded as TypedData>::class,
        <vlm::RbImageEncoder as TypedData>::class,
        <tensor::RbTensor as TypedData>::class,
        <term_index::RbTermIndex as TypedData>::class,
        <token_ids::RbIds as TypedData>::class,
        <tokenizer::RbTokenizer as TypedData>::class,
        <transcriber::RbTranscriber as TypedData>::class,
        <transcriber::RbTranscribing as TypedData>::class,
        <voice_activity_detector::RbVoiceActivityDetector as TypedData>::class,
        <weights::RbWeights as TypedData>::class,
    ];
    for class in lookups {
        class(ruby);
    }
}
