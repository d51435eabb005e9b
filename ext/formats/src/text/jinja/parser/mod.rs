//! Tokens made a tree. How deep it gets is limited, so that whatever walks it has stack enough.

mod expressions;

use std::sync::Arc;

use super::failure::{wrong, Failure, Outcome};
use super::lexer::{tokenize, Token};
use super::syntax::{
    Arguments, Expression, ExpressionKind, Filter, For, Macro, Statement, StatementKind, Target,
    Template,
};

/// The longest real templates have some ten thousands.
const MOST_BYTES: usize = 1 << 20;
/// Statements and brackets within each other.
const DEEPEST_NESTING: usize = 100;
/// Levels of one expression, of which `1 + 1 + 1` has three.
const DEEPEST_EXPRESSION: usize = 250;

pub fn parse(source: &str) -> Outcome<Template> {
    if source.len() > MOST_BYTES {
        return wrong(format!(
            "it has {} bytes; at most {MOST_BYTES} are taken",
            source.len()
        ));
    }
    let mut parser = Parser {
        tokens: tokenize(source)?,
        at: 0,
        depth: 0,
        macros: Vec::new(),
    };
    let body = parser
        .body(&[])
        .map_err(|failure| parser.located(failure))?;
    Ok(Template {
        body,
        macros: parser.macros,
    })
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
    macros: Vec<Macro>,
}

impl Parser {
    fn line(&self) -> usize {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn located(&self, failure: Failure) -> Failure {
        failure.at(self.line())
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += usize::from(token.is_some());
        token
    }

    fn is_operator(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Operator(found)) if *found == name)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if **found == *name)
    }

    /// Passes over the operator, if it comes next.
    fn skip_operator(&mut self, name: &str) -> bool {
        let found = self.is_operator(name);
        self.at += usize::from(found);
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &Token, what: &str) -> Outcome<()> {
        if self.peek() == Some(token) {
            self.at += 1;
            return Ok(());
        }
        wrong(format!("expected {what}, found {}", self.described()))
    }

    fn expect_operator(&mut self, name: &'static str) -> Outcome<()> {
        self.expect(&Token::Operator(name), name)
    }

    fn expect_name(&mut self) -> Outcome<Arc<str>> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => wrong(format!("expected a name, found {}", self.described())),
        }
    }

    fn block_end(&mut self) -> Outcome<()> {
        self.expect(&Token::BlockEnd, "%}")
    }

    fn described(&self) -> String {
        match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Token::Text(_)) => "text".to_owned(),
            Some(Token::BlockBegin) => "{%".to_owned(),
            Some(Token::BlockEnd) => "%}".to_owned(),
            Some(Token::PrintBegin) => "{{".to_owned(),
            Some(Token::PrintEnd) => "}}".to_owned(),
            Some(Token::Name(name)) => name.to_string(),
            Some(Token::Str(_)) => "a string".to_owned(),
            Some(Token::Int(number)) => number.to_string(),
            Some(Token::Float(number)) => number.to_string(),
            Some(Token::Operator(name)) => (*name).to_owned(),
        }
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth >= DEEPEST_NESTING {
            return wrong("it is nested too deeply");
        }
        self.depth += 1;
        let result = work(self);
        self.depth -= 1;
        result
    }

    /// Statements up to a block with one of the names, which is left to the caller, or to the end.
    fn body(&mut self, ends: &[&str]) -> Outcome<Vec<Statement>> {
        self.deeper(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&str]) -> Outcome<Vec<Statement>> {
        let mut statements = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.next() {
                None if ends.is_empty() => return Ok(statements),
                None => {
                    self.at = self.tokens.len();
                    return wrong(format!("{{% {} %}} is missing", ends.join(" %} or {% ")));
                }
                Some(Token::Text(text)) => StatementKind::Text(text),
                Some(Token::PrintBegin) => {
                    let value = self.tuple(true)?;
                    self.expect(&Token::PrintEnd, "}}")?;
                    StatementKind::Print(value)
                }
                Some(Token::BlockBegin) => {
                    if matches!(self.peek(), Some(Token::Name(name)) if ends.contains(&&**name)) {
                        return Ok(statements);
                    }
                    let name = self.expect_name()?;
                    self.block(&name)?
                }
                Some(_) => return wrong(format!("unexpected {}", self.described())),
            };
            statements.push(Statement { line, kind });
        }
    }

    fn block(&mut self, name: &str) -> Outcome<StatementKind> {
        match name {
            "for" => self.for_loop(),
            "if" => self.condition(),
            "set" => self.set(),
            "with" => self.with(),
            "macro" => {
                let name = self.expect_name()?;
                let place = self.macro_body(name, "endmacro")?;
                Ok(StatementKind::Macro(place))
            }
            "call" => self.call_block(),
            "filter" => {
                let filters = self.filter_chain(true)?;
                self.block_end()?;
                let body = self.closed_body("endfilter")?;
                Ok(StatementKind::FilterBlock(filters, body))
            }
            "generation" => {
                self.block_end()?;
                Ok(StatementKind::Body(self.closed_body("endgeneration")?))
            }
            "block" => {
                self.expect_name()?;
                self.block_end()?;
                Ok(StatementKind::Body(self.closed_body("endblock")?))
            }
            "break" | "continue" => {
                self.block_end()?;
                Ok(match name {
                    "break" => StatementKind::Break,
                    _ => StatementKind::Continue,
                })
            }
            other => wrong(format!("{{% {other} %}} is not known here")),
        }
    }

    /// A body up to the block that closes it, which may repeat a name.
    fn closed_body(&mut self, end: &str) -> Outcome<Vec<Statement>> {
        let body = self.body(&[end])?;
        self.at += 1;
        if matches!(self.peek(), Some(Token::Name(_))) {
            self.at += 1;
        }
        self.block_end()?;
        Ok(body)
    }

    fn for_loop(&mut self) -> Outcome<StatementKind> {
        let target = self.targets()?;
        if !self.skip_name("in") {
            return wrong(format!("expected in, found {}", self.described()));
        }
        let items = self.tuple(false)?;
        let condition = if self.skip_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        let body = self.body(&["endfor", "else"])?;
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.body(&["endfor"])?;
        }
        self.at += 1;
        self.block_end()?;
        Ok(StatementKind::For(Box::new(For {
            target,
            items,
            condition,
            recursive,
            body,
            otherwise,
        })))
    }

    fn condition(&mut self) -> Outcome<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(true)?;
            self.block_end()?;
            branches.push((condition, self.body(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            let mut otherwise = Vec::new();
            if self.skip_name("else") {
                self.block_end()?;
                otherwise = self.body(&["endif"])?;
            }
            self.at += 1;
            self.block_end()?;
            return Ok(StatementKind::If(branches, otherwise));
        }
    }

    fn set(&mut self) -> Outcome<StatementKind> {
        let target = self.targets()?;
        if self.skip_operator("=") {
            let value = self.tuple(true)?;
            self.block_end()?;
            return Ok(StatementKind::Set(target, value));
        }
        let filters = self.filter_chain(false)?;
        self.block_end()?;
        let body = self.closed_body("endset")?;
        Ok(StatementKind::SetBlock(target, filters, body))
    }

    fn with(&mut self) -> Outcome<StatementKind> {
        let mut values = Vec::new();
        while self.peek() != Some(&Token::BlockEnd) {
            if !values.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target()?;
            self.expect_operator("=")?;
            values.push((target, self.expression()?));
        }
        self.block_end()?;
        Ok(StatementKind::With(values, self.closed_body("endwith")?))
    }

    fn call_block(&mut self) -> Outcome<StatementKind> {
        let parameters = if self.is_operator("(") {
            self.parameters()?
        } else {
            Vec::new()
        };
        let call = self.expression()?;
        if !matches!(*call.kind, ExpressionKind::Call(..)) {
            return wrong("{% call %} takes a call");
        }
        self.block_end()?;
        let body = self.closed_body("endcall")?;
        self.macros.push(Macro {
            name: "caller".into(),
            parameters,
            body,
        });
        Ok(StatementKind::Call(self.macros.len() - 1, call))
    }

    fn macro_body(&mut self, name: Arc<str>, end: &str) -> Outcome<usize> {
        let parameters = self.parameters()?;
        self.block_end()?;
        let body = self.closed_body(end)?;
        self.macros.push(Macro {
            name,
            parameters,
            body,
        });
        Ok(self.macros.len() - 1)
    }

    fn parameters(&mut self) -> Outcome<Vec<(Arc<str>, Option<Expression>)>> {
        self.expect_operator("(")?;
        let mut parameters = Vec::new();
        while !self.skip_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_name()?;
            let default = if self.skip_operator("=") {
                Some(self.expression()?)
            } else {
                None
            };
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    /// What is assigned to: a name, an attribute of a namespace, or several.
    fn targets(&mut self) -> Outcome<Target> {
        let mut targets = vec![self.target()?];
        let mut is_tuple = false;
        while self.skip_operator(",") {
            is_tuple = true;
            if matches!(self.peek(), Some(Token::Name(name)) if &**name != "in")
                || self.is_operator("(")
            {
                targets.push(self.target()?);
            }
        }
        match targets.pop() {
            Some(only) if !is_tuple => Ok(only),
            Some(last) => {
                targets.push(last);
                Ok(Target::Tuple(targets))
            }
            None => wrong("expected a name"),
        }
    }

    fn target(&mut self) -> Outcome<Target> {
        if self.skip_operator("(") {
            let target = self.deeper(Self::targets)?;
            self.expect_operator(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if self.skip_operator(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        Ok(Target::Name(name))
    }
}
