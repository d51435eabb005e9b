//! Jinja for chat templates, which are programs by strangers: what one may take of time, memory
//! and stack is counted at every step, and an interrupt is looked for.

mod budget;
mod checks;
mod evaluate;
mod failure;
mod filters;
mod format;
mod functions;
mod interpreter;
mod json;
mod lexer;
mod methods;
mod operators;
mod parser;
mod print;
mod sequences;
mod syntax;
mod text;
mod value;

use std::sync::Arc;

use serde_json::{Map, Value as Json};

pub use failure::{Cause, Failure, Outcome};
pub use syntax::Template;

use base::runtime::cancel::CancelToken;
use budget::Budget;
use interpreter::Interpreter;
use value::Value;

pub use parser::parse;

/// What the template prints with these variables.
pub fn render(
    template: &Template,
    variables: &Map<String, Json>,
    cancel: &CancelToken,
) -> Outcome<String> {
    let budget = Budget::new(cancel);
    let variables: Outcome<Vec<(Arc<str>, Value)>> = variables
        .iter()
        .map(|(name, json)| Ok((name.as_str().into(), Value::from_json(json, &budget)?)))
        .collect();
    Interpreter::new(template, variables?, &budget).run()
}

#[cfg(test)]
mod tests;
