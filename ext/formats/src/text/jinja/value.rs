//! What templates compute with: Python's values, none of which changes once it is made, but for
//! namespaces. So no value contains itself, and how deep one is is known from the start.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::budget::Budget;
use super::failure::{wrong, Outcome};

/// Lists and dicts within each other.
const DEEPEST_VALUE: usize = 150;

/// What a text takes besides its bytes.
const TEXT_OVERHEAD: usize = 32;

#[derive(Clone, Debug)]
pub enum Value {
    /// A name or attribute that does not exist, with what it was called.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    List(Rc<List>),
    Dict(Rc<Dict>),
    Namespace(Rc<Namespace>),
    Macro(MacroValue),
    Loop(Rc<Loop>),
    Function(&'static str),
    Method(Rc<Value>, Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    List,
    Tuple,
    /// What a lazy filter gives: true even if it is empty.
    Generator,
}

#[derive(Debug)]
pub struct List {
    pub kind: ListKind,
    pub items: Vec<Value>,
    depth: usize,
    changeable: bool,
}

#[derive(Debug)]
pub struct Dict {
    pub entries: Vec<(Value, Value)>,
    depth: usize,
    changeable: bool,
}

#[derive(Debug, Default)]
pub struct Namespace(RefCell<Vec<(Arc<str>, Value)>>);

/// A macro, with the scope that it was defined in.
#[derive(Clone, Copy, Debug)]
pub struct MacroValue {
    pub place: usize,
    pub scope: usize,
    pub scope_id: u64,
}

#[derive(Debug)]
pub struct Loop {
    pub items: Rc<List>,
    pub index: usize,
    pub depth: usize,
    /// What `changed` was called with last; the same for all turns.
    pub last: Rc<RefCell<Option<Value>>>,
}

impl Value {
    pub fn text(text: &str, budget: &Budget<'_>) -> Outcome<Self> {
        budget.memory(text.len() + TEXT_OVERHEAD)?;
        Ok(Self::Text(text.into()))
    }

    /// A text whose bytes are counted already.
    pub fn counted(text: String) -> Self {
        Self::Text(text.into())
    }

    pub fn list(items: Vec<Self>, budget: &Budget<'_>) -> Outcome<Self> {
        List::make(ListKind::List, items, budget)
    }

    pub fn generator(items: Vec<Self>, budget: &Budget<'_>) -> Outcome<Self> {
        List::make(ListKind::Generator, items, budget)
    }

    pub fn tuple(items: Vec<Self>, budget: &Budget<'_>) -> Outcome<Self> {
        List::make(ListKind::Tuple, items, budget)
    }

    pub fn dict(entries: Vec<(Self, Self)>, budget: &Budget<'_>) -> Outcome<Self> {
        budget.memory(entries.len() * size_of::<(Self, Self)>())?;
        let values = entries.iter().flat_map(|(key, value)| [key, value]);
        let (depth, changeable) = measured(values)?;
        Ok(Self::Dict(Rc::new(Dict {
            entries,
            depth,
            changeable,
        })))
    }

    /// What the caller passed, which took its memory before.
    pub fn from_json(json: &Json, budget: &Budget<'_>) -> Outcome<Self> {
        budget.steps(1)?;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(number), _) => Self::Int(number),
                (None, Some(number)) => Self::Float(number),
                (None, None) => Self::None,
            },
            Json::String(text) => Self::Text(text.as_str().into()),
            Json::Array(items) => {
                let items: Outcome<Vec<Self>> = items
                    .iter()
                    .map(|item| Self::from_json(item, budget))
                    .collect();
                Self::list(items?, budget)?
            }
            Json::Object(map) => {
                let entries: Outcome<Vec<(Self, Self)>> = map
                    .iter()
                    .map(|(key, item)| {
                        let key = Self::Text(key.as_str().into());
                        Ok((key, Self::from_json(item, budget)?))
                    })
                    .collect();
                Self::dict(entries?, budget)?
            }
        })
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple => "tuple",
                ListKind::Generator => "generator",
            },
            Self::Dict(_) => "dict",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Function(_) | Self::Method(..) => "function",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => list.kind == ListKind::Generator || !list.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    pub fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A whole number; Python counts booleans among them.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(flag) => Some(i64::from(*flag)),
            _ => None,
        }
    }

    pub fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            _ => self.as_int().map(|number| number as f64),
        }
    }

    pub fn is_defined(&self) -> bool {
        !matches!(self, Self::Undefined(_))
    }

    /// The items that a loop over the value takes: a text's characters, a dict's keys.
    pub fn iterate(&self, budget: &Budget<'_>) -> Outcome<Rc<List>> {
        let items = match self {
            Self::List(list) => return Ok(list.clone()),
            Self::Undefined(_) => Vec::new(),
            Self::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Self::Text(text) => {
                budget.memory(text.len() * (size_of::<Self>() + TEXT_OVERHEAD))?;
                let mut buffer = [0; 4];
                let letters = text.chars();
                letters
                    .map(|letter| Self::Text((&*letter.encode_utf8(&mut buffer)).into()))
                    .collect()
            }
            other => return wrong(format!("'{}' object is not iterable", other.type_name())),
        };
        match Self::list(items, budget)? {
            Self::List(list) => Ok(list),
            _ => wrong("a value is not iterable"),
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Dict(dict) => dict.depth,
            Self::Loop(turn) => 1 + turn.items.depth,
            Self::Method(value, _) => 1 + value.depth(),
            Self::Namespace(_) => 1,
            _ => 0,
        }
    }

    /// Whether the value is or has a namespace, whose contents change.
    pub fn is_changeable(&self) -> bool {
        match self {
            Self::List(list) => list.changeable,
            Self::Dict(dict) => dict.changeable,
            Self::Method(value, _) => value.is_changeable(),
            Self::Namespace(_) | Self::Loop(_) => true,
            _ => false,
        }
    }
}

/// How deep a container of these is, and whether anything in it may change.
fn measured<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<(usize, bool)> {
    let (mut depth, mut changeable) = (1, false);
    for value in values {
        depth = depth.max(1 + value.depth());
        changeable |= value.is_changeable();
    }
    if depth > DEEPEST_VALUE {
        return wrong("a value is nested too deeply");
    }
    Ok((depth, changeable))
}

impl List {
    fn make(kind: ListKind, items: Vec<Value>, budget: &Budget<'_>) -> Outcome<Value> {
        budget.memory(items.len() * size_of::<Value>())?;
        let (depth, changeable) = measured(items.iter())?;
        Ok(Value::List(Rc::new(Self {
            kind,
            items,
            depth,
            changeable,
        })))
    }
}

impl Dict {
    pub fn get(&self, key: &Value, budget: &Budget<'_>) -> Outcome<Option<&Value>> {
        budget.steps(1 + self.entries.len() / 16)?;
        let found = self.entries.iter().find(|(name, _)| is_same_key(name, key));
        Ok(found.map(|(_, value)| value))
    }

    pub fn get_text(&self, key: &str, budget: &Budget<'_>) -> Outcome<Option<&Value>> {
        budget.steps(1 + self.entries.len() / 16)?;
        let is_key = |name: &Value| matches!(name, Value::Text(name) if **name == *key);
        let found = self.entries.iter().find(|(name, _)| is_key(name));
        Ok(found.map(|(_, value)| value))
    }
}

/// Whether a dict takes both for the same key.
pub fn is_same_key(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Text(one), Value::Text(other)) => one == other,
        (Value::None, Value::None) => true,
        _ => match (one.as_int(), other.as_int()) {
            (Some(left), Some(right)) => left == right,
            _ => {
                matches!((one.as_float(), other.as_float()), (Some(left), Some(right)) if left == right)
            }
        },
    }
}

impl Namespace {
    pub fn get(&self, name: &str) -> Option<Value> {
        let entries = self.0.borrow();
        let found = entries.iter().find(|(key, _)| **key == *name);
        found.map(|(_, value)| value.clone())
    }

    pub fn set(&self, name: &Arc<str>, value: Value, budget: &Budget<'_>) -> Outcome<()> {
        if value.is_changeable() {
            return wrong("a namespace can't hold a namespace or a loop");
        }
        let mut entries = self.0.borrow_mut();
        budget.steps(1 + entries.len() / 16)?;
        match entries.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = value,
            None => {
                budget.memory(size_of::<(Arc<str>, Value)>())?;
                entries.push((name.clone(), value));
            }
        }
        Ok(())
    }

    pub fn entries(&self) -> Vec<(Arc<str>, Value)> {
        self.0.borrow().clone()
    }
}
