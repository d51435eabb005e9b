//! Integration tests of the engine in one binary, since linking is the slow part.

mod adapters;
mod allocation;
mod attention;
mod constraint;
mod decoder;
mod decoder_gguf;
mod embedders;
mod encoder;
mod encoder_files;
mod encoder_tasks;
mod families;
mod fuzz_readers;
mod hostile;
mod hostile_tokenizers;
mod image;
mod kernels;
mod layers;
mod row_independence;
mod second_opinion;
mod sentence_piece;
mod seq2seq;
mod tokenizer;
mod vector_index;
mod verification;
mod weight_files;
mod weights;
