//! Constraints from JSON schemas, regular expressions and grammars.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};

use super::constraint::Constraint;
use super::schema::{self, WhiteSpace};
use crate::{CancelToken, Error, Result};
use base::runtime::stack;
use formats::text::tokenizer::{TokenBytes, Tokenizer};

const MOST_SOURCE_BYTES: usize = 1 << 20;
/// How long the compiler may take.
const MOST_TIME: Duration = Duration::from_secs(10);
/// The compiler follows rules into rules and brackets into brackets on the stack.
const MOST_LARK_LINES: usize = 10_000;
const DEEPEST_BRACKETS: usize = 200;
/// A state of the lexer takes one or two kilobytes.
const MOST_LEXER_STATES: usize = 100_000;
/// Longer tokens are runs of white space or rulers, which no constrained text needs.
const LONGEST_TOKEN: usize = 1024;

/// What a text must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A JSON schema, as JSON.
    Schema(String, WhiteSpace),
    /// A regular expression in the syntax of Rust's `regex` crate, for the text as a whole.
    Regex(String),
    /// A grammar in Lark's notation.
    Lark(String),
}

/// When a text ends that may end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// As soon as it matches, even if more could follow.
    Match,
    /// When it matches and nothing more could follow, or when the model ends it.
    #[default]
    Complete,
    /// When the model ends it.
    Model,
}

/// A vocabulary, arranged for looking up which tokens a grammar allows. Made once per model.
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    environment: Arc<Environment>,
}

struct Environment {
    trie: TokTrie,
    /// A token of our own behind the vocabulary: where it is allowed, the text may end.
    end: TokenId,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    /// A pattern that a model's text shall follow, by its vocabulary, which the first one makes. `ends`
    /// says whether the model has a token to end a text with.
    pub fn constraint(
        (made, tokenizer): (&OnceLock<Self>, &Tokenizer),
        (pattern, ending): (&Pattern, Ending),
        ends: bool,
        cancel: &CancelToken,
    ) -> Result<Box<dyn Constraint>> {
        let vocabulary = match made.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let new = Self::new(tokenizer)?;
                made.get_or_init(|| new)
            }
        };
        // A text that only the model may end needs a token to end it with.
        let ending = match ending {
            Ending::Model if !ends => Ending::Complete,
            ending => ending,
        };
        Ok(Box::new(vocabulary.compile(pattern, ending, cancel)?))
    }

    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let mut words: Vec<Vec<u8>> = tokenizer.token_bytes()?.into_iter().map(word).collect();
        let end = words.len() as TokenId;
        words.push(marked(b"<end of text>"));
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
            let environment = Arc::new(Environment { trie, end });
            let shared: TokEnv = environment.clone();
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            let mut factory =
                ParserFactory::new(&shared, InferenceCapabilities::default(), &slices)
                    .map_err(|error| format!("{error:#}"))?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            factory.limits_mut().max_lexer_states = MOST_LEXER_STATES;
            Ok(Self {
                factory: Arc::new(factory),
                environment,
            })
        };
        guarded(build).map_err(|reason| {
            Error::Tokenizer(format!(
                "the vocabulary of {} can't be used for constrained generation: {reason}",
                tokenizer.source().display()
            ))
        })
    }

    /// Compiles a pattern; an `InvalidInput` error says what is wrong with it, or that it is too much.
    pub fn compile(
        &self,
        pattern: &Pattern,
        ending: Ending,
        cancel: &CancelToken,
    ) -> Result<GrammarConstraint> {
        let (name, source) = match pattern {
            Pattern::Schema(source, _) => ("schema", source),
            Pattern::Regex(source) => ("pattern", source),
            Pattern::Lark(source) => ("grammar", source),
        };
        if source.len() > MOST_SOURCE_BYTES {
            return Err(Error::InvalidInput(format!(
                "the {name} has {} bytes; at most {MOST_SOURCE_BYTES} are taken",
                source.len()
            )));
        }
        let refused =
            |reason: &str| Error::InvalidInput(format!("the {name} can't be used: {reason}"));
        let grammar = match pattern {
            Pattern::Schema(source, white_space) => {
                TopLevelGrammar::from_json_schema(schema::prepare(source, *white_space)?)
            }
            Pattern::Regex(source) => TopLevelGrammar::from_regex(source),
            Pattern::Lark(source) => {
                shallow(source).map_err(|reason| refused(&reason))?;
                TopLevelGrammar::from_lark(source.clone())
            }
        };
        let (factory, environment) = (self.factory.clone(), self.environment.clone());
        let compiled = stack::apart(stack::DEEP, Some(MOST_TIME), cancel, move || {
            guarded(|| first_mask(&factory, environment, grammar, ending))
        })?;
        match compiled {
            Some(compiled) => compiled.map_err(|reason| refused(&reason)),
            None => Err(refused(&format!(
                "compiling it takes more than {} seconds; make it smaller",
                MOST_TIME.as_secs()
            ))),
        }
    }
}

/// A compiled grammar, with the tokens that may come first.
fn first_mask(
    factory: &ParserFactory,
    environment: Arc<Environment>,
    grammar: TopLevelGrammar,
    ending: Ending,
) -> std::result::Result<GrammarConstraint, String> {
    let matcher = Matcher::new(factory.create_parser(grammar));
    if let Some(error) = matcher.get_error() {
        return Err(error);
    }
    let mut constraint = GrammarConstraint {
        matcher,
        environment,
        ending,
        next: None,
    };
    constraint.next = Some(constraint.mask().map_err(|error| error.to_string())?);
    Ok(constraint)
}

/// Whether the compiler has stack enough for a Lark grammar.
fn shallow(source: &str) -> std::result::Result<(), String> {
    if source.lines().count() > MOST_LARK_LINES {
        return Err(format!("it has more than {MOST_LARK_LINES} lines"));
    }
    let (mut open, mut deepest) = (0usize, 0);
    for letter in source.bytes() {
        match letter {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    if deepest <= DEEPEST_BRACKETS {
        Ok(())
    } else {
        Err("its brackets are nested too deeply".to_owned())
    }
}

/// Runs what may fail or panic on hostile input; the reason is one line.
fn guarded<T>(
    work: impl FnOnce() -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|reason| explained(&reason)),
        Err(_) => Err("it is too complex".to_owned()),
    }
}

/// The compiler's own words on one line, but for those that name its settings.
fn explained(reason: &str) -> String {
    if reason.contains("coerce_one_of") {
        return "oneOf is supported where its alternatives exclude each other; use anyOf"
            .to_owned();
    }
    if reason.contains("NoExtensionBias") {
        return "no token of this vocabulary may come next".to_owned();
    }
    if reason.starts_with("panic:") {
        return "it is too large or too complex".to_owned();
    }
    let reason = reason.replace("<non-verbose/>", "");
    let line = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(400) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// How the trie knows a token: control tokens begin with a byte that no text has.
fn word(token: TokenBytes) -> Vec<u8> {
    if token.special {
        marked(&token.bytes)
    } else if token.bytes.len() > LONGEST_TOKEN
        || token.bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
    {
        Vec::new()
    } else {
        token.bytes
    }
}

fn marked(name: &[u8]) -> Vec<u8> {
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend(name.iter().take(LONGEST_TOKEN));
    word
}

/// A compiled pattern at some place of a text.
pub struct GrammarConstraint {
    matcher: Matcher,
    environment: Arc<Environment>,
    ending: Ending,
    /// The mask of this place, where it is known already.
    next: Option<SimpleVob>,
}

impl GrammarConstraint {
    fn mask(&mut self) -> Result<SimpleVob> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(self
                .environment
                .trie
                .singleton_token_set(self.environment.end));
        }
        self.matcher.compute_mask().map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Generation(format!(
        "the constraint can't be followed: {}",
        explained(&error.to_string())
    ))
}

impl Constraint for GrammarConstraint {
    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            matcher: self.matcher.deep_clone(),
            environment: self.environment.clone(),
            ending: self.ending,
            next: self.next.clone(),
        })
    }

    fn allowed(&mut self, end_ids: &[u32]) -> Result<Vec<u32>> {
        let mut mask = match self.next.take() {
            Some(mask) => mask,
            None => self.mask()?,
        };
        let may_end = mask.is_allowed(self.environment.end);
        mask.disallow_token(self.environment.end);
        for &id in end_ids.iter().filter(|&&id| id < self.environment.end) {
            if may_end {
                mask.allow_token(id);
            } else {
                mask.disallow_token(id);
            }
        }
        Ok(mask.as_slice().to_vec())
    }

    fn forced(&mut self) -> Vec<u32> {
        if self.matcher.is_stopped() {
            return Vec::new();
        }
        // Asking moves the parser on.
        let bytes = self.matcher.deep_clone().compute_ff_bytes();
        self.environment.trie.greedy_tokenize(&bytes)
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.next = None;
        self.matcher.consume_token(token).map_err(failed)
    }

    fn is_satisfied(&mut self) -> bool {
        match self.ending {
            Ending::Match => self.may_end(),
            Ending::Complete => self.matcher.is_stopped(),
            Ending::Model => false,
        }
    }

    fn may_end(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }

    fn bytes(&self, token: u32) -> &[u8] {
        let trie = &self.environment.trie;
        if (token as usize) < trie.vocab_size() && !trie.is_special_token(token) {
            trie.token(token)
        } else {
            &[]
        }
    }
}
