//! Expressions, by precedence.

use std::sync::Arc;

use super::{
    wrong, Arguments, Expression, ExpressionKind as Kind, Filter, Outcome, Parser, Token,
    DEEPEST_EXPRESSION,
};
use crate::text::jinja::syntax::{Comparator, Literal, Operator};

/// A node above others of these depths, unless that makes the tree too deep.
fn above(kind: Kind, depths: &[usize]) -> Outcome<Expression> {
    let depth = 1 + depths.iter().max().copied().unwrap_or(0);
    if depth > DEEPEST_EXPRESSION {
        return wrong("an expression is too long or too deep");
    }
    Ok(Expression {
        kind: Box::new(kind),
        depth,
    })
}

fn deepest(expressions: &[Expression]) -> usize {
    let depths = expressions.iter().map(|expression| expression.depth);
    depths.max().unwrap_or(0)
}

fn literal(literal: Literal) -> Outcome<Expression> {
    above(Kind::Literal(literal), &[])
}

const ARITHMETIC: [&[(&str, Operator)]; 3] = [
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[
        ("*", Operator::Multiply),
        ("/", Operator::Divide),
        ("//", Operator::FloorDivide),
        ("%", Operator::Modulo),
    ],
    &[("**", Operator::Power)],
];

impl Parser {
    pub(super) fn expression(&mut self) -> Outcome<Expression> {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Outcome<Expression> {
        let mut value = self.disjunction()?;
        while self.skip_name("if") {
            let condition = self.disjunction()?;
            let otherwise = if self.skip_name("else") {
                Some(self.expression()?)
            } else {
                None
            };
            let depths = [
                value.depth,
                condition.depth,
                otherwise.as_ref().map_or(0, |expression| expression.depth),
            ];
            value = above(Kind::Condition(condition, value, otherwise), &depths)?;
        }
        Ok(value)
    }

    fn disjunction(&mut self) -> Outcome<Expression> {
        let mut left = self.conjunction()?;
        while self.skip_name("or") {
            let right = self.conjunction()?;
            let depths = [left.depth, right.depth];
            left = above(Kind::Or(left, right), &depths)?;
        }
        Ok(left)
    }

    fn conjunction(&mut self) -> Outcome<Expression> {
        let mut left = self.negation()?;
        while self.skip_name("and") {
            let right = self.negation()?;
            let depths = [left.depth, right.depth];
            left = above(Kind::And(left, right), &depths)?;
        }
        Ok(left)
    }

    fn negation(&mut self) -> Outcome<Expression> {
        let mut count = 0;
        while self.skip_name("not") {
            count += 1;
        }
        let mut value = self.comparison()?;
        for _ in 0..count {
            let depths = [value.depth];
            value = above(Kind::Not(value), &depths)?;
        }
        Ok(value)
    }

    fn comparison(&mut self) -> Outcome<Expression> {
        let left = self.arithmetic(0)?;
        let mut others = Vec::new();
        let mut depth = left.depth;
        while let Some(comparator) = self.comparator() {
            let right = self.arithmetic(0)?;
            depth = depth.max(right.depth);
            others.push((comparator, right));
        }
        if others.is_empty() {
            Ok(left)
        } else {
            above(Kind::Comparison(left, others), &[depth])
        }
    }

    fn comparator(&mut self) -> Option<Comparator> {
        let (comparator, length) = match self.peek()? {
            Token::Operator("==") => (Comparator::Equal, 1),
            Token::Operator("!=") => (Comparator::NotEqual, 1),
            Token::Operator("<") => (Comparator::Less, 1),
            Token::Operator("<=") => (Comparator::LessOrEqual, 1),
            Token::Operator(">") => (Comparator::Greater, 1),
            Token::Operator(">=") => (Comparator::GreaterOrEqual, 1),
            Token::Name(name) if &**name == "in" => (Comparator::In, 1),
            Token::Name(name) if &**name == "not" => {
                let next = self.tokens.get(self.at + 1).map(|(token, _)| token);
                match next {
                    Some(Token::Name(name)) if &**name == "in" => (Comparator::NotIn, 2),
                    _ => return None,
                }
            }
            _ => return None,
        };
        self.at += length;
        Some(comparator)
    }

    /// Sums, then products, then powers; concatenation stands between the first two.
    fn arithmetic(&mut self, level: usize) -> Outcome<Expression> {
        let mut left = self.operand(level)?;
        loop {
            let found = ARITHMETIC[level]
                .iter()
                .find(|(name, _)| self.is_operator(name));
            let Some(&(_, operator)) = found else {
                return Ok(left);
            };
            self.at += 1;
            let right = self.operand(level)?;
            let depths = [left.depth, right.depth];
            left = above(Kind::Arithmetic(operator, left, right), &depths)?;
        }
    }

    fn operand(&mut self, level: usize) -> Outcome<Expression> {
        match level {
            0 => self.concatenation(),
            1 => self.arithmetic(2),
            _ => self.unary(),
        }
    }

    fn concatenation(&mut self) -> Outcome<Expression> {
        let first = self.arithmetic(1)?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.arithmetic(1)?);
        }
        let depth = deepest(&parts);
        above(Kind::Concatenation(parts), &[depth])
    }

    fn unary(&mut self) -> Outcome<Expression> {
        let mut signs = Vec::new();
        loop {
            if self.skip_operator("-") {
                signs.push(true);
            } else if self.skip_operator("+") {
                signs.push(false);
            } else {
                break;
            }
        }
        let mut value = self.primary()?;
        value = self.postfix(value)?;
        for negative in signs.into_iter().rev() {
            let depths = [value.depth];
            let kind = if negative {
                Kind::Negative(value)
            } else {
                Kind::Positive(value)
            };
            value = above(kind, &depths)?;
        }
        self.filters_and_tests(value)
    }

    fn primary(&mut self) -> Outcome<Expression> {
        match self.next() {
            Some(Token::Name(name)) => match &*name {
                "true" | "True" => literal(Literal::Bool(true)),
                "false" | "False" => literal(Literal::Bool(false)),
                "none" | "None" => literal(Literal::None),
                _ => above(Kind::Name(name), &[]),
            },
            Some(Token::Str(text)) => {
                if !matches!(self.peek(), Some(Token::Str(_))) {
                    return literal(Literal::Text(text));
                }
                let mut joined = text.to_string();
                while let Some(Token::Str(more)) = self.peek() {
                    joined.push_str(more);
                    self.at += 1;
                }
                literal(Literal::Text(joined.into()))
            }
            Some(Token::Int(number)) => literal(Literal::Int(number)),
            Some(Token::Float(number)) => literal(Literal::Float(number)),
            Some(Token::Operator("(")) => self.deeper(Self::parenthesis),
            Some(Token::Operator("[")) => self.deeper(Self::list),
            Some(Token::Operator("{")) => self.deeper(Self::dict),
            _ => {
                self.at = self.at.saturating_sub(1);
                wrong(format!("expected a value, found {}", self.described()))
            }
        }
    }

    fn parenthesis(&mut self) -> Outcome<Expression> {
        if self.skip_operator(")") {
            return above(Kind::Tuple(Vec::new()), &[]);
        }
        let value = self.tuple(true)?;
        self.expect_operator(")")?;
        Ok(value)
    }

    /// One expression, or several with commas between them.
    pub(super) fn tuple(&mut self, with_conditions: bool) -> Outcome<Expression> {
        let item = |parser: &mut Self| {
            if with_conditions {
                parser.expression()
            } else {
                parser.deeper(Self::disjunction)
            }
        };
        let first = item(self)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_operator(",") {
            let is_over = matches!(
                self.peek(),
                None | Some(Token::BlockEnd | Token::PrintEnd | Token::Operator(")"))
            );
            if is_over {
                break;
            }
            items.push(item(self)?);
        }
        let depth = deepest(&items);
        above(Kind::Tuple(items), &[depth])
    }

    fn list(&mut self) -> Outcome<Expression> {
        let mut items = Vec::new();
        while !self.skip_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        let depth = deepest(&items);
        above(Kind::List(items), &[depth])
    }

    fn dict(&mut self) -> Outcome<Expression> {
        let (mut entries, mut depth) = (Vec::new(), 0);
        while !self.skip_operator("}") {
            if !entries.is_empty() {
                self.expect_operator(",")?;
                if self.skip_operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_operator(":")?;
            let value = self.expression()?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push((key, value));
        }
        above(Kind::Dict(entries), &[depth])
    }

    fn postfix(&mut self, mut value: Expression) -> Outcome<Expression> {
        loop {
            if self.skip_operator(".") {
                value = self.member(value)?;
            } else if self.skip_operator("[") {
                value = self.deeper(|parser| parser.subscript(value))?;
            } else if self.is_operator("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn member(&mut self, value: Expression) -> Outcome<Expression> {
        let depths = [value.depth];
        match self.next() {
            Some(Token::Name(name)) => above(Kind::Attribute(value, name), &depths),
            Some(Token::Int(number)) => {
                let index = literal(Literal::Int(number))?;
                above(Kind::Item(value, index), &depths)
            }
            _ => {
                self.at = self.at.saturating_sub(1);
                wrong(format!("expected a name, found {}", self.described()))
            }
        }
    }

    fn subscript(&mut self, value: Expression) -> Outcome<Expression> {
        let mut parts: [Option<Expression>; 3] = [None, None, None];
        let (mut place, mut depth) = (0, value.depth);
        loop {
            if self.skip_operator(":") {
                place += 1;
                if place > 2 {
                    return wrong("a slice has three parts at most");
                }
            } else if self.skip_operator("]") {
                break;
            } else if parts[place].is_none() {
                let part = self.tuple(true)?;
                depth = depth.max(part.depth);
                parts[place] = Some(part);
            } else {
                return wrong(format!("expected ], found {}", self.described()));
            }
        }
        if place > 0 {
            return above(Kind::Slice(value, parts), &[depth]);
        }
        match parts {
            [Some(index), _, _] => above(Kind::Item(value, index), &[depth]),
            _ => wrong("expected a value, found ]"),
        }
    }

    fn call(&mut self, value: Expression) -> Outcome<Expression> {
        let (arguments, depth) = self.deeper(Self::arguments)?;
        let depths = [value.depth, depth];
        above(Kind::Call(value, arguments), &depths)
    }

    fn arguments(&mut self) -> Outcome<(Arguments, usize)> {
        self.expect_operator("(")?;
        let (mut arguments, mut depth, mut first) = (Arguments::default(), 0, true);
        while !self.skip_operator(")") {
            if !first {
                self.expect_operator(",")?;
                if self.skip_operator(")") {
                    break;
                }
            }
            first = false;
            if self.is_operator("*") || self.is_operator("**") {
                return wrong("* and ** are not supported in calls");
            }
            let named = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(name)), Some((Token::Operator("="), _))) => Some(name.clone()),
                _ => None,
            };
            if named.is_some() {
                self.at += 2;
            }
            let value = self.expression()?;
            depth = depth.max(value.depth);
            match named {
                Some(name) => arguments.named.push((name, value)),
                None if arguments.named.is_empty() => arguments.positional.push(value),
                None => return wrong("an argument follows one with a name"),
            }
        }
        Ok((arguments, depth))
    }

    fn filters_and_tests(&mut self, mut value: Expression) -> Outcome<Expression> {
        loop {
            if self.skip_operator("|") {
                let (filter, depth) = self.filter()?;
                let depths = [value.depth, depth];
                value = above(Kind::Filter(value, filter), &depths)?;
            } else if self.skip_name("is") {
                value = self.test(value)?;
            } else if self.is_operator("(") {
                value = self.call(value)?;
            } else {
                return Ok(value);
            }
        }
    }

    /// Filters one after the other; the first without its bar in a filter block.
    pub(super) fn filter_chain(&mut self, begun: bool) -> Outcome<Vec<Filter>> {
        let mut filters = Vec::new();
        if begun {
            filters.push(self.filter()?.0);
        }
        while self.skip_operator("|") {
            filters.push(self.filter()?.0);
        }
        Ok(filters)
    }

    fn filter(&mut self) -> Outcome<(Filter, usize)> {
        let name = self.dotted_name()?;
        let (arguments, depth) = if self.is_operator("(") {
            self.deeper(Self::arguments)?
        } else {
            (Arguments::default(), 0)
        };
        Ok((Filter { name, arguments }, depth))
    }

    fn dotted_name(&mut self) -> Outcome<Arc<str>> {
        let mut name = self.expect_name()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_name()?).into();
        }
        Ok(name)
    }

    fn test(&mut self, value: Expression) -> Outcome<Expression> {
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let (arguments, depth) = if self.is_operator("(") {
            self.deeper(Self::arguments)?
        } else if self.begins_argument() {
            let argument = self.deeper(|parser| {
                let argument = parser.primary()?;
                parser.postfix(argument)
            })?;
            let depth = argument.depth;
            let arguments = Arguments {
                positional: vec![argument],
                named: Vec::new(),
            };
            (arguments, depth)
        } else {
            (Arguments::default(), 0)
        };
        let depths = [value.depth, depth];
        let test = above(Kind::Test(value, Filter { name, arguments }), &depths)?;
        if negated {
            let depths = [test.depth];
            above(Kind::Not(test), &depths)
        } else {
            Ok(test)
        }
    }

    /// Whether the argument of a test follows without parentheses.
    fn begins_argument(&self) -> bool {
        match self.peek() {
            Some(Token::Name(name)) => {
                !["else", "or", "and", "is", "if", "in", "not", "recursive"].contains(&&**name)
            }
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(Token::Operator(name)) => ["[", "{"].contains(name),
            _ => false,
        }
    }
}
