//! Expressions at work.

use std::rc::Rc;
use std::sync::Arc;

use super::checks;
use super::failure::{wrong, Outcome};
use super::filters;
use super::functions::{self, Given};
use super::interpreter::Interpreter;
use super::methods;
use super::operators;
use super::print;
use super::syntax::{Arguments, Comparator, Expression, ExpressionKind as Kind, Literal};
use super::value::{Loop, Value};

impl<'t> Interpreter<'t> {
    pub(super) fn evaluate(&mut self, expression: &'t Expression) -> Outcome<Value> {
        let budget = self.budget;
        budget.deeper(|| self.expression(&expression.kind))
    }

    fn expression(&mut self, kind: &'t Kind) -> Outcome<Value> {
        match kind {
            Kind::Literal(literal) => Ok(constant(literal)),
            Kind::Name(name) => self.lookup(name),
            Kind::List(items) => {
                let items = self.all(items)?;
                Value::list(items, self.budget)
            }
            Kind::Tuple(items) => {
                let items = self.all(items)?;
                Value::tuple(items, self.budget)
            }
            Kind::Dict(entries) => self.dict(entries),
            Kind::Not(value) => Ok(Value::Bool(!self.evaluate(value)?.is_true())),
            Kind::Negative(value) => operators::negative(&self.evaluate(value)?),
            Kind::Positive(value) => {
                let value = self.evaluate(value)?;
                match value.as_float() {
                    Some(_) => Ok(value),
                    None => wrong(format!("+ does not take '{}'", value.type_name())),
                }
            }
            Kind::And(left, right) => {
                let left = self.evaluate(left)?;
                if left.is_true() {
                    self.evaluate(right)
                } else {
                    Ok(left)
                }
            }
            Kind::Or(left, right) => {
                let left = self.evaluate(left)?;
                if left.is_true() {
                    Ok(left)
                } else {
                    self.evaluate(right)
                }
            }
            Kind::Arithmetic(operator, left, right) => {
                let left = self.evaluate(left)?;
                let right = self.evaluate(right)?;
                operators::arithmetic(*operator, &left, &right, self.budget)
            }
            Kind::Concatenation(parts) => self.concatenation(parts),
            Kind::Comparison(first, others) => self.comparison(first, others),
            Kind::Condition(condition, value, otherwise) => {
                if self.evaluate(condition)?.is_true() {
                    return self.evaluate(value);
                }
                match otherwise {
                    Some(otherwise) => self.evaluate(otherwise),
                    None => Ok(Value::Undefined("the inline if without else".into())),
                }
            }
            Kind::Attribute(value, name) => {
                let value = self.evaluate(value)?;
                self.attribute(&value, name)
            }
            Kind::Item(value, key) => {
                let value = self.evaluate(value)?;
                let key = self.evaluate(key)?;
                self.item(&value, &key)
            }
            Kind::Slice(value, parts) => self.slice(value, parts),
            Kind::Call(called, arguments) => {
                let called = self.evaluate(called)?;
                let given = self.arguments(arguments)?;
                self.call(called, given)
            }
            Kind::Filter(value, filter) => {
                let value = self.evaluate(value)?;
                let given = self.arguments(&filter.arguments)?;
                filters::apply(&filter.name, &value, &given, self.budget)
            }
            Kind::Test(value, test) => {
                let value = self.evaluate(value)?;
                let given = self.arguments(&test.arguments)?;
                checks::holds(&test.name, &value, &given.positional, self.budget).map(Value::Bool)
            }
        }
    }

    fn all(&mut self, expressions: &'t [Expression]) -> Outcome<Vec<Value>> {
        let values = expressions.iter();
        values.map(|expression| self.evaluate(expression)).collect()
    }

    pub(super) fn arguments(&mut self, arguments: &'t Arguments) -> Outcome<Given> {
        let positional = self.all(&arguments.positional)?;
        let named: Outcome<Vec<(Arc<str>, Value)>> = arguments
            .named
            .iter()
            .map(|(name, expression)| Ok((name.clone(), self.evaluate(expression)?)))
            .collect();
        Ok(Given {
            positional,
            named: named?,
        })
    }

    fn dict(&mut self, entries: &'t [(Expression, Expression)]) -> Outcome<Value> {
        let mut values = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.evaluate(key)?;
            let value = self.evaluate(value)?;
            functions::insert(&mut values, key, value, self.budget)?;
        }
        Value::dict(values, self.budget)
    }

    fn concatenation(&mut self, parts: &'t [Expression]) -> Outcome<Value> {
        let mut text = String::new();
        for part in parts {
            let value = self.evaluate(part)?;
            print::print(&value, &mut text, self.budget)?;
        }
        Ok(Value::counted(text))
    }

    fn comparison(
        &mut self,
        first: &'t Expression,
        others: &'t [(Comparator, Expression)],
    ) -> Outcome<Value> {
        let mut left = self.evaluate(first)?;
        for (comparator, right) in others {
            let right = self.evaluate(right)?;
            if !operators::compare(*comparator, &left, &right, self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn slice(
        &mut self,
        value: &'t Expression,
        parts: &'t [Option<Expression>; 3],
    ) -> Outcome<Value> {
        let value = self.evaluate(value)?;
        let mut bounds = [const { Value::None }; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                *bound = self.evaluate(part)?;
            }
        }
        operators::slice(&value, bounds, self.budget)
    }

    /// `value.name`: an attribute of the object, else an item.
    fn attribute(&self, value: &Value, name: &Arc<str>) -> Outcome<Value> {
        operators::defined(value)?;
        if methods::exists(value, name) {
            return Ok(Value::Method(Rc::new(value.clone()), name.clone()));
        }
        let found = match value {
            Value::Dict(dict) => dict.get_text(name, self.budget)?.cloned(),
            Value::Namespace(namespace) => namespace.get(name),
            Value::Loop(turn) => loop_attribute(turn, name),
            _ => None,
        };
        Ok(found.unwrap_or_else(|| Value::Undefined(name.clone())))
    }

    /// `value[key]`: an item, else an attribute of the object.
    fn item(&self, value: &Value, key: &Value) -> Outcome<Value> {
        operators::defined(value)?;
        match (operators::item(value, key, self.budget)?, key) {
            (Some(found), _) => Ok(found),
            (None, Value::Text(name)) => self.attribute(value, name),
            (None, _) => Ok(Value::Undefined("an item".into())),
        }
    }

    fn call(&mut self, called: Value, given: Given) -> Outcome<Value> {
        match called {
            Value::Function(name) => functions::call(name, &given, self.budget),
            Value::Method(value, name) => methods::call(&value, &name, &given, self.budget),
            Value::Macro(called) => self.call_macro(called, given, None),
            Value::Loop(turn) => self.call_loop(&turn, &given),
            other => {
                operators::defined(&other)?;
                wrong(format!("'{}' object is not callable", other.type_name()))
            }
        }
    }
}

fn constant(literal: &Literal) -> Value {
    match literal {
        Literal::None => Value::None,
        Literal::Bool(flag) => Value::Bool(*flag),
        Literal::Int(number) => Value::Int(*number),
        Literal::Float(number) => Value::Float(*number),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

fn loop_attribute(turn: &Loop, name: &str) -> Option<Value> {
    let (index, length) = (turn.index, turn.items.items.len());
    let number = |number: usize| Some(Value::Int(i64::try_from(number).unwrap_or(i64::MAX)));
    let neighbour = |index: Option<usize>| {
        let found = index.and_then(|index| turn.items.items.get(index));
        Some(
            found
                .cloned()
                .unwrap_or_else(|| Value::Undefined(name.into())),
        )
    };
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(length - index),
        "revindex0" => number(length - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == length)),
        "length" => number(length),
        "depth" => number(turn.depth),
        "depth0" => number(turn.depth - 1),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(index.checked_add(1)),
        _ => None,
    }
}
