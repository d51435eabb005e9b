//! Why a template could not be read or rendered.

use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The template, or what it does, is wrong.
    Wrong(String),
    /// The template called `raise_exception`, with these words.
    Refused(String),
    /// The template went over its budget; completes "the chat template".
    Exhausted(&'static str),
    Interrupted,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub cause: Cause,
    pub line: Option<usize>,
}

pub type Outcome<T> = Result<T, Failure>;

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Self {
        Self { cause, line: None }
    }
}

impl Failure {
    /// The line of the innermost statement that failed.
    pub fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Wrong(message) | Cause::Refused(message) => formatter.write_str(message)?,
            Cause::Exhausted(what) => write!(formatter, "it {what}")?,
            Cause::Interrupted => formatter.write_str("it was interrupted")?,
        }
        match self.line {
            Some(line) => write!(formatter, " (line {line} of the template)"),
            None => Ok(()),
        }
    }
}

pub fn wrong<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Cause::Wrong(message.into()).into())
}
