//! Integration tests of the engine in one binary, since linking is the slow part.

mod decoder;
mod encoder;
mod encoder_files;
mod encoder_tasks;
