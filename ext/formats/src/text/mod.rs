//! Texts: tokenizers, chat templates, and terms and patterns found in them.

pub mod chat_template;
pub mod compression;
mod jinja;
pub mod recognizers;
pub mod tokenizer;
pub mod words;
