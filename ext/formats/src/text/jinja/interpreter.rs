//! Statements at work: scopes, loops, macros and the text they print.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::filters;
use super::functions::{self, Given};
use super::print;
use super::syntax::{
    Expression, ExpressionKind, Filter, For, Statement, StatementKind, Target, Template,
};
use super::value::{List, Loop, MacroValue, Value};

pub struct Interpreter<'t> {
    pub(super) template: &'t Template,
    pub(super) budget: &'t Budget<'t>,
    /// All scopes in force; a macro's has the one as its parent that it was defined in.
    scopes: Vec<Scope>,
    current: usize,
    made_scopes: u64,
    output: String,
    /// The loops in force with the scopes around them, outermost first.
    loops: Vec<(&'t For, usize)>,
}

struct Scope {
    variables: Vec<(Arc<str>, Value)>,
    parent: Option<usize>,
    id: u64,
}

/// How a statement ended.
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interpreter<'t> {
    pub fn new(
        template: &'t Template,
        variables: Vec<(Arc<str>, Value)>,
        budget: &'t Budget<'t>,
    ) -> Self {
        let global = Scope {
            variables,
            parent: None,
            id: 0,
        };
        Self {
            template,
            budget,
            scopes: vec![global],
            current: 0,
            made_scopes: 0,
            output: String::new(),
            loops: Vec::new(),
        }
    }

    pub fn run(mut self) -> Outcome<String> {
        let template = self.template;
        self.statements(&template.body)?;
        Ok(self.output)
    }

    fn statements(&mut self, statements: &'t [Statement]) -> Outcome<Flow> {
        let budget = self.budget;
        for statement in statements {
            let flow = budget
                .deeper(|| self.statement(&statement.kind))
                .map_err(|failure| failure.at(statement.line))?;
            if !matches!(flow, Flow::Next) {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, kind: &'t StatementKind) -> Outcome<Flow> {
        match kind {
            StatementKind::Text(text) => print::append(text, &mut self.output, self.budget)?,
            StatementKind::Print(expression) => {
                let value = self.evaluate(expression)?;
                print::print(&value, &mut self.output, self.budget)?;
            }
            StatementKind::If(branches, otherwise) => return self.branch(branches, otherwise),
            StatementKind::For(statement) => return self.for_loop(statement),
            StatementKind::Set(target, expression) => {
                let value = self.evaluate(expression)?;
                self.assign(target, value)?;
            }
            StatementKind::SetBlock(target, filters, body) => {
                let value = self.filtered_body(filters, body)?;
                self.assign(target, value)?;
            }
            StatementKind::FilterBlock(filters, body) => {
                let value = self.filtered_body(filters, body)?;
                print::print(&value, &mut self.output, self.budget)?;
            }
            StatementKind::With(values, body) => return self.with(values, body),
            StatementKind::Macro(place) => {
                let defined = self.macro_value(*place);
                let name = self.template.macros[*place].name.clone();
                self.set(name, defined)?;
            }
            StatementKind::Call(place, call) => self.call_block(*place, call)?,
            StatementKind::Body(body) => {
                return self.in_scope(Some(self.current), |this| this.statements(body))
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn branch(
        &mut self,
        branches: &'t [(Expression, Vec<Statement>)],
        otherwise: &'t [Statement],
    ) -> Outcome<Flow> {
        for (condition, body) in branches {
            if self.evaluate(condition)?.is_true() {
                return self.statements(body);
            }
        }
        self.statements(otherwise)
    }

    fn with(&mut self, values: &'t [(Target, Expression)], body: &'t [Statement]) -> Outcome<Flow> {
        self.in_scope(Some(self.current), |this| {
            for (target, expression) in values {
                let value = this.evaluate(expression)?;
                this.assign(target, value)?;
            }
            this.statements(body)
        })
    }

    fn for_loop(&mut self, statement: &'t For) -> Outcome<Flow> {
        let items = self.evaluate(&statement.items)?;
        self.turns(statement, &items)
    }

    /// `loop(items)`: what the loop prints with these.
    pub(super) fn call_loop(&mut self, turn: &Loop, given: &Given) -> Outcome<Value> {
        let [items] = given.bind("loop", ["items"])?;
        let Some(&(statement, scope)) = self.loops.get(turn.depth - 1) else {
            return wrong("the loop is over");
        };
        if !statement.recursive {
            return wrong("the loop is not recursive");
        }
        let items = items.unwrap_or(Value::None);
        let text = self.captured(Some(scope), |this| this.turns(statement, &items).map(drop))?;
        Ok(Value::counted(text))
    }

    fn turns(&mut self, statement: &'t For, items: &Value) -> Outcome<Flow> {
        let items = items.iterate(self.budget)?;
        let items = match &statement.condition {
            Some(condition) => self.selected(statement, condition, &items)?,
            None => items,
        };
        if items.items.is_empty() {
            return self.statements(&statement.otherwise);
        }
        self.loops.push((statement, self.current));
        let last = Rc::new(RefCell::new(None));
        for index in 0..items.items.len() {
            let turn = Loop {
                items: items.clone(),
                index,
                depth: self.loops.len(),
                last: last.clone(),
            };
            let flow = self.in_scope(Some(self.current), |this| {
                this.set("loop".into(), Value::Loop(Rc::new(turn)))?;
                this.assign(&statement.target, items.items[index].clone())?;
                this.statements(&statement.body)
            })?;
            if matches!(flow, Flow::Break) {
                break;
            }
        }
        self.loops.pop();
        Ok(Flow::Next)
    }

    /// The items that a loop's own condition lets through.
    fn selected(
        &mut self,
        statement: &'t For,
        condition: &'t Expression,
        items: &List,
    ) -> Outcome<Rc<List>> {
        let mut selected = Vec::new();
        for item in &items.items {
            let is_taken = self.in_scope(Some(self.current), |this| {
                this.assign(&statement.target, item.clone())?;
                Ok(this.evaluate(condition)?.is_true())
            })?;
            if is_taken {
                selected.push(item.clone());
            }
        }
        Value::list(selected, self.budget)?.iterate(self.budget)
    }

    fn filtered_body(&mut self, filters: &'t [Filter], body: &'t [Statement]) -> Outcome<Value> {
        let scope = Some(self.current);
        let text = self.captured(scope, |this| this.statements(body).map(drop))?;
        let mut value = Value::counted(text);
        for filter in filters {
            let given = self.arguments(&filter.arguments)?;
            value = filters::apply(&filter.name, &value, &given, self.budget)?;
        }
        Ok(value)
    }

    fn macro_value(&self, place: usize) -> Value {
        Value::Macro(MacroValue {
            place,
            scope: self.current,
            scope_id: self.scopes[self.current].id,
        })
    }

    fn call_block(&mut self, place: usize, call: &'t Expression) -> Outcome<()> {
        let ExpressionKind::Call(called, arguments) = &*call.kind else {
            return wrong("{% call %} takes a call");
        };
        let called = self.evaluate(called)?;
        let given = self.arguments(arguments)?;
        let Value::Macro(called) = called else {
            return wrong("{% call %} takes a macro");
        };
        let caller = self.macro_value(place);
        let text = self.call_macro(called, given, Some(caller))?;
        print::print(&text, &mut self.output, self.budget)
    }

    pub(super) fn call_macro(
        &mut self,
        called: MacroValue,
        given: Given,
        caller: Option<Value>,
    ) -> Outcome<Value> {
        let definition = &self.template.macros[called.place];
        if given.positional.len() > definition.parameters.len() {
            return wrong(format!(
                "macro {} takes {} arguments, not {}",
                definition.name,
                definition.parameters.len(),
                given.positional.len()
            ));
        }
        let is_alive = self.scopes.get(called.scope).map(|scope| scope.id) == Some(called.scope_id);
        let scope = Some(if is_alive { called.scope } else { 0 });
        let text = self.captured(scope, |this| {
            let mut positional = given.positional.into_iter();
            let mut named = given.named;
            for (name, default) in &definition.parameters {
                let place = named.iter().position(|(given, _)| given == name);
                let value = match (positional.next(), place, default) {
                    (Some(value), ..) => value,
                    (None, Some(place), _) => named.swap_remove(place).1,
                    (None, None, Some(default)) => this.evaluate(default)?,
                    (None, None, None) => Value::Undefined(name.clone()),
                };
                this.set(name.clone(), value)?;
            }
            if let Some((name, _)) = named.first() {
                return wrong(format!("macro {} has no argument {name}", definition.name));
            }
            if let Some(caller) = caller {
                this.set("caller".into(), caller)?;
            }
            this.statements(&definition.body).map(drop)
        })?;
        Ok(Value::counted(text))
    }

    /// What `work` prints, in a scope of its own.
    fn captured(
        &mut self,
        parent: Option<usize>,
        work: impl FnOnce(&mut Self) -> Outcome<()>,
    ) -> Outcome<String> {
        let outside = std::mem::take(&mut self.output);
        let result = self.in_scope(parent, work);
        let text = std::mem::replace(&mut self.output, outside);
        result.map(|()| text)
    }

    fn in_scope<T>(
        &mut self,
        parent: Option<usize>,
        work: impl FnOnce(&mut Self) -> Outcome<T>,
    ) -> Outcome<T> {
        self.made_scopes += 1;
        let (before, length) = (self.current, self.scopes.len());
        self.scopes.push(Scope {
            variables: Vec::new(),
            parent,
            id: self.made_scopes,
        });
        self.current = length;
        let result = work(self);
        self.scopes.truncate(length);
        self.current = before;
        result
    }

    fn assign(&mut self, target: &Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => self.set(name.clone(), value),
            Target::Attribute(name, attribute) => match self.lookup(name)? {
                Value::Namespace(namespace) => namespace.set(attribute, value, self.budget),
                _ => wrong(format!("{name} is not a namespace")),
            },
            Target::Tuple(targets) => {
                let items = value.iterate(self.budget)?;
                if items.items.len() != targets.len() {
                    return wrong(format!(
                        "{} values can't be given to {} names",
                        items.items.len(),
                        targets.len()
                    ));
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
                Ok(())
            }
        }
    }

    fn set(&mut self, name: Arc<str>, value: Value) -> Outcome<()> {
        let variables = &mut self.scopes[self.current].variables;
        self.budget.steps(1 + variables.len() / 16)?;
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => variables.push((name, value)),
        }
        Ok(())
    }

    pub(super) fn lookup(&self, name: &Arc<str>) -> Outcome<Value> {
        let mut place = Some(self.current);
        while let Some(scope) = place.and_then(|place| self.scopes.get(place)) {
            self.budget.steps(1 + scope.variables.len() / 16)?;
            let found = scope.variables.iter().find(|(known, _)| known == name);
            if let Some((_, value)) = found {
                return Ok(value.clone());
            }
            place = scope.parent;
        }
        Ok(match functions::named(name) {
            Some(function) => Value::Function(function),
            None => Value::Undefined(name.clone()),
        })
    }
}
