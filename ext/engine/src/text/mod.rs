//! Between text and token ids: tokenizers and chat templates.

pub mod chat_template;
mod jinja;
pub mod tokenizer;
