//! Integration tests of the engine in one binary, since linking is the slow part.

mod adapters;
mod allocation;
mod attention;
mod constraint;
mod decoder;
mod decoder_gguf;
mod draft;
mod embedders;
mod encoder;
mod encoder_files;
mod encoder_tasks;
mod families;
mod fuzz_readers;
mod gathering;
mod hostile;
mod hostile_tokenizers;
mod image;
mod kernels;
mod late_interaction;
mod layers;
#[path = "../../../fuzz/src/lib.rs"]
mod readers;
mod row_independence;
mod same_answer;
mod scheduling;
mod second_opinion;
mod sentence_piece;
mod seq2seq;
mod sparse;
mod tokenizer;
mod vector_index;
mod verification;
mod vision;
mod weight_files;
mod weights;
