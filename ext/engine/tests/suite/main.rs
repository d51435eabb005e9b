//! Integration tests of the engine in one binary, since linking is the slow part.

mod allocation;
mod attention;
mod constraint;
mod decoder;
mod encoder;
mod encoder_files;
mod encoder_tasks;
mod fuzz_readers;
mod hostile;
mod kernels;
mod tokenizer;
mod weight_files;
mod weights;
