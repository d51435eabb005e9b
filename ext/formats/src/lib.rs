//! Files and what they hold: the hub and its cache, weights, tokenizers and chat templates, images, audio.

/// Some sources of tests are those of programs too.
#[cfg(test)]
extern crate self as formats;

pub mod audio;
pub mod files;
pub mod image;
pub mod text;
pub mod weights;

pub use base::{CancelToken, Device, Error, Result, VERSION};
pub use text::tokenizer::Tokenizer;
