//! Python's pickle format, as far as a state dict of tensors needs it.
//!
//! A pickle is a program. This machine knows the handful of names that `torch.save` writes for
//! tensors and treats each as data; any other name ends the reading. Nothing is ever called.

use std::collections::HashMap;
use std::ops::Range;

use super::Element;

/// More than the largest checkpoint needs; every bound is on what one file can make us hold.
const MOST_OBJECTS: usize = 1 << 20;
const MOST_DIMENSIONS: usize = 16;

/// A tensor as the pickle describes it; nothing is checked against the storage yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub storage: Storage,
    /// In elements.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    pub element: Element,
    pub key: String,
    pub elements: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The bytes are not a pickle that `torch.save` writes.
    Damaged(String),
    /// A name outside of the known ones: code, or an object that only code can build.
    Code(String),
    Unsupported(String),
}

type Parsed<T> = Result<T, Fault>;

/// What a checkpoint holds.
pub(super) struct StateDict {
    /// In the dict's order.
    pub tensors: Vec<(String, View)>,
    /// The sizes that OpenAI's checkpoints of Whisper keep beside it.
    pub sizes: Vec<(String, i64)>,
}

pub(super) fn state_dict(program: &[u8]) -> Parsed<StateDict> {
    let mut machine = Machine::new(program);
    let root = machine.run()?;
    let mut tensors = machine.tensors(root)?;
    if tensors.is_empty() {
        if let Some(inner) = machine.inner_dict(root) {
            tensors = machine.tensors(inner)?;
        }
    }
    let sizes = machine.sizes(root);
    Ok(StateDict { tensors, sizes })
}

/// Checkpoints of trainers keep the state dict under one of these keys.
const INNER_DICTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// Where OpenAI's checkpoints of Whisper keep the model's sizes.
const SIZES: &str = "dims";

/// Index into the machine's objects.
type Id = usize;

enum Object {
    None,
    Integer(i64),
    /// A part of the program.
    Text(Range<usize>),
    /// A value that no tensor depends on: floats, flags, bytes.
    Other,
    List,
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Name(Name),
    Storage(Box<Storage>),
    Tensor(Box<View>),
}

#[derive(Clone, Copy)]
enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(Element),
}

fn known_name(module: &str, name: &str) -> Parsed<Name> {
    let element = match (module, name) {
        ("collections", "OrderedDict") => return Ok(Name::OrderedDict),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => {
            return Ok(Name::RebuildTensor)
        }
        ("torch._utils", "_rebuild_parameter") => return Ok(Name::RebuildParameter),
        ("torch", "Size") => return Ok(Name::Size),
        ("torch", "DoubleStorage") => Element::F64,
        ("torch", "FloatStorage") => Element::F32,
        ("torch", "HalfStorage") => Element::F16,
        ("torch", "BFloat16Storage") => Element::Bf16,
        ("torch", "LongStorage") => Element::I64,
        ("torch", "IntStorage") => Element::I32,
        ("torch", "ShortStorage") => Element::I16,
        ("torch", "CharStorage") => Element::I8,
        ("torch", "ByteStorage") => Element::U8,
        ("torch", "BoolStorage") => Element::Bool,
        ("torch" | "torch.storage", storage) if storage.ends_with("Storage") => {
            return Err(Fault::Unsupported(format!(
                "it has tensors of the type {storage}, which is not supported"
            )))
        }
        _ => return Err(Fault::Code(format!("{module}.{name}"))),
    };
    Ok(Name::Storage(element))
}

fn damaged<T>(reason: impl Into<String>) -> Parsed<T> {
    Err(Fault::Damaged(reason.into()))
}

struct Machine<'a> {
    program: &'a [u8],
    position: usize,
    objects: Vec<Object>,
    stack: Vec<Id>,
    /// Heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

const NONE: Id = 0;
const OTHER: Id = 1;

impl<'a> Machine<'a> {
    fn new(program: &'a [u8]) -> Self {
        Self {
            program,
            position: 0,
            objects: vec![Object::None, Object::Other],
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        }
    }

    /// Reads up to the end of the program and gives its value.
    fn run(&mut self) -> Parsed<Id> {
        loop {
            let [operation] = self.array()?;
            if operation == b'.' {
                return self.pop();
            }
            self.step(operation)?;
        }
    }

    fn step(&mut self, operation: u8) -> Parsed<()> {
        match operation {
            // Protocol and frame say nothing that the reading depends on.
            0x80 => self.take(1).map(drop),
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push_id(NONE),
            0x88 | 0x89 => self.push_id(OTHER),
            b'G' => self.take(8).and_then(|_| self.push_id(OTHER)),
            b'K' | b'M' | b'J' | 0x8a => self.integer(operation),
            b'X' | 0x8c | 0x8d | b'U' | b'T' => self.text(operation),
            b'B' | b'C' | 0x8e => self.binary(operation),
            b'}' => self.push(Object::Dict(Vec::new())),
            b']' => self.push(Object::List),
            b')' => self.push(Object::Tuple(Vec::new())),
            b't' => self
                .pop_mark()
                .and_then(|items| self.push(Object::Tuple(items))),
            0x85..=0x87 => self.tuple(usize::from(operation - 0x84)),
            b'q' | b'r' | 0x94 => self.memoize(operation),
            b'h' | b'j' => self.recall(operation),
            b's' | b'u' => self.set_items(operation),
            b'a' => self.pop().and_then(|_| self.expect_list()),
            b'e' => self.pop_mark().and_then(|_| self.expect_list()),
            b'c' | 0x93 => self.name(operation),
            b'Q' => self.storage(),
            b'R' => self.reduce(),
            b'b' => self.build(),
            b'i' | b'o' | 0x81 | 0x92 => Err(Fault::Code("an object of its own".to_owned())),
            other => damaged(format!(
                "its pickle has the operation {other:#04x} at byte {}, which no state dict needs",
                self.position - 1
            )),
        }
    }

    fn take(&mut self, count: usize) -> Parsed<Range<usize>> {
        match self.position.checked_add(count) {
            Some(end) if end <= self.program.len() => {
                let start = std::mem::replace(&mut self.position, end);
                Ok(start..end)
            }
            _ => damaged("its pickle ends too early"),
        }
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let range = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(self.program.get(range).unwrap_or_default());
        Ok(array)
    }

    fn push(&mut self, object: Object) -> Parsed<()> {
        if self.objects.len() >= MOST_OBJECTS {
            return damaged(format!(
                "its pickle builds more than {MOST_OBJECTS} objects"
            ));
        }
        self.objects.push(object);
        self.push_id(self.objects.len() - 1)
    }

    fn push_id(&mut self, id: Id) -> Parsed<()> {
        if self.stack.len() >= MOST_OBJECTS {
            return damaged(format!(
                "its pickle stacks more than {MOST_OBJECTS} objects"
            ));
        }
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Parsed<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => damaged("its pickle takes more than it has"),
        }
    }

    fn pop_mark(&mut self) -> Parsed<Vec<Id>> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => Ok(self.stack.split_off(height)),
            _ => damaged("its pickle closes what it did not open"),
        }
    }

    fn object(&self, id: Id) -> &Object {
        self.objects.get(id).unwrap_or(&Object::None)
    }

    fn integer(&mut self, operation: u8) -> Parsed<()> {
        let value = match operation {
            b'K' => u8::from_le_bytes(self.array()?).into(),
            b'M' => u16::from_le_bytes(self.array()?).into(),
            b'J' => i32::from_le_bytes(self.array()?).into(),
            _ => {
                let [length] = self.array()?;
                let range = self.take(length.into())?;
                let bytes = self.program.get(range).unwrap_or_default();
                if bytes.len() > 8 {
                    return damaged("its pickle has an integer beyond 64 bits");
                }
                let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
                let mut wide = [if negative { 0xff } else { 0 }; 8];
                wide.iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = *from);
                i64::from_le_bytes(wide)
            }
        };
        self.push(Object::Integer(value))
    }

    fn length(&mut self, bytes: usize) -> Parsed<usize> {
        let length = match bytes {
            1 => u8::from_le_bytes(self.array()?).into(),
            4 => u32::from_le_bytes(self.array()?).into(),
            _ => u64::from_le_bytes(self.array()?),
        };
        usize::try_from(length).or_else(|_| damaged("its pickle has an absurd length"))
    }

    fn text(&mut self, operation: u8) -> Parsed<()> {
        let length = self.length(match operation {
            0x8c | b'U' => 1,
            0x8d => 8,
            _ => 4,
        })?;
        let range = self.take(length)?;
        self.push(Object::Text(range))
    }

    fn binary(&mut self, operation: u8) -> Parsed<()> {
        let length = self.length(match operation {
            b'C' => 1,
            0x8e => 8,
            _ => 4,
        })?;
        self.take(length)?;
        self.push_id(OTHER)
    }

    fn tuple(&mut self, length: usize) -> Parsed<()> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Object::Tuple(items))
    }

    fn memoize(&mut self, operation: u8) -> Parsed<()> {
        let index = match operation {
            b'q' => u8::from_le_bytes(self.array()?).into(),
            b'r' => u32::from_le_bytes(self.array()?),
            _ => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
        };
        let Some(&id) = self.stack.last() else {
            return damaged("its pickle remembers nothing");
        };
        if self.memo.len() >= MOST_OBJECTS {
            return damaged(format!(
                "its pickle remembers more than {MOST_OBJECTS} objects"
            ));
        }
        self.memo.insert(index, id);
        Ok(())
    }

    fn recall(&mut self, operation: u8) -> Parsed<()> {
        let index = match operation {
            b'h' => u8::from_le_bytes(self.array()?).into(),
            _ => u32::from_le_bytes(self.array()?),
        };
        match self.memo.get(&index) {
            Some(&id) => self.push_id(id),
            None => damaged("its pickle recalls what it did not remember"),
        }
    }

    fn set_items(&mut self, operation: u8) -> Parsed<()> {
        let items = match operation {
            b'u' => self.pop_mark()?,
            _ => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
        };
        let target = self.stack.last().copied().unwrap_or(NONE);
        match self.objects.get_mut(target) {
            Some(Object::Dict(entries)) if items.len() % 2 == 0 => {
                entries.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => damaged("its pickle sets items of what is not a dict"),
        }
    }

    fn expect_list(&self) -> Parsed<()> {
        match self.stack.last().map(|&id| self.object(id)) {
            Some(Object::List) => Ok(()),
            _ => damaged("its pickle appends to what is not a list"),
        }
    }

    fn name(&mut self, operation: u8) -> Parsed<()> {
        let name = if operation == b'c' {
            let (module, name) = (self.line()?, self.line()?);
            known_name(module, name)?
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            known_name(self.text_of(module)?, self.text_of(name)?)?
        };
        self.push(Object::Name(name))
    }

    fn line(&mut self) -> Parsed<&'a str> {
        let rest = self.program.get(self.position..).unwrap_or_default();
        let Some(length) = rest.iter().position(|&byte| byte == b'\n') else {
            return damaged("its pickle ends too early");
        };
        let range = self.take(length + 1)?;
        let line = self.program.get(range.start..range.end - 1);
        std::str::from_utf8(line.unwrap_or_default())
            .or_else(|_| damaged("its pickle has a name that is not UTF-8"))
    }

    fn text_of(&self, id: Id) -> Parsed<&'a str> {
        let Object::Text(range) = self.object(id) else {
            return damaged("its pickle has something other than a string");
        };
        std::str::from_utf8(self.program.get(range.clone()).unwrap_or_default())
            .or_else(|_| damaged("its pickle has a string that is not UTF-8"))
    }

    fn size_of(&self, id: Id) -> Parsed<usize> {
        match self.object(id) {
            Object::Integer(value) => usize::try_from(*value)
                .or_else(|_| damaged(format!("its pickle has the size {value}"))),
            _ => damaged("its pickle has something other than a size"),
        }
    }

    fn sizes_of(&self, id: Id) -> Parsed<Vec<usize>> {
        match self.object(id) {
            Object::Tuple(items) if items.len() <= MOST_DIMENSIONS => {
                items.iter().map(|&item| self.size_of(item)).collect()
            }
            Object::Tuple(items) => {
                damaged(format!("it has a tensor of {} dimensions", items.len()))
            }
            _ => damaged("its pickle has something other than a shape"),
        }
    }

    /// The persistent id of a storage: `("storage", type, key, location, elements)`.
    fn storage(&mut self) -> Parsed<()> {
        let id = self.pop()?;
        let storage = match self.object(id) {
            Object::Tuple(items) => match items[..] {
                [_, kind, key, _, elements] => match self.object(kind) {
                    Object::Name(Name::Storage(element)) => Some(Storage {
                        element: *element,
                        key: self.text_of(key)?.to_owned(),
                        elements: self.size_of(elements)?,
                    }),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        match storage {
            Some(storage) => self.push(Object::Storage(Box::new(storage))),
            None => damaged("its pickle refers to something that is not a storage"),
        }
    }

    fn reduce(&mut self) -> Parsed<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Object::Tuple(arguments) = self.object(arguments) else {
            return damaged("its pickle calls without arguments");
        };
        let made = match (self.object(callee), &arguments[..]) {
            (Object::Name(Name::OrderedDict), []) => Object::Dict(Vec::new()),
            (Object::Name(Name::RebuildParameter), &[tensor, ..]) => return self.push_id(tensor),
            (Object::Name(Name::Size), &[sizes]) => return self.push_id(sizes),
            (Object::Name(Name::RebuildTensor), &[storage, offset, shape, strides, ..]) => {
                let Object::Storage(storage) = self.object(storage) else {
                    return damaged("its pickle has a tensor without a storage");
                };
                Object::Tensor(Box::new(View {
                    storage: Storage::clone(storage),
                    offset: self.size_of(offset)?,
                    shape: self.sizes_of(shape)?,
                    strides: self.sizes_of(strides)?,
                }))
            }
            _ => return damaged("its pickle calls what cannot be called"),
        };
        self.push(made)
    }

    /// Attributes, such as the version numbers that modules leave on a state dict, are dropped.
    fn build(&mut self) -> Parsed<()> {
        self.pop()?;
        match self.stack.last().map(|&id| self.object(id)) {
            Some(Object::Dict(_) | Object::Tensor(_)) => Ok(()),
            _ => damaged("its pickle sets attributes of what has none"),
        }
    }

    fn tensors(&self, root: Id) -> Parsed<Vec<(String, View)>> {
        let Object::Dict(entries) = self.object(root) else {
            return Err(Fault::Unsupported(
                "it holds something other than a state dict. Save model.state_dict() instead"
                    .to_owned(),
            ));
        };
        entries
            .iter()
            .filter_map(|&(key, value)| match self.object(value) {
                Object::Tensor(view) => Some((key, view)),
                _ => None,
            })
            .map(|(key, view)| Ok((self.text_of(key)?.to_owned(), View::clone(view))))
            .collect()
    }

    fn inner_dict(&self, root: Id) -> Option<Id> {
        let (found, _) = self.dict_under(root, &INNER_DICTS)?;
        Some(found)
    }

    /// The integers of the dict of sizes, if there is one.
    fn sizes(&self, root: Id) -> Vec<(String, i64)> {
        let Some((_, entries)) = self.dict_under(root, &[SIZES]) else {
            return Vec::new();
        };
        let size = |&(key, value): &(Id, Id)| match self.object(value) {
            Object::Integer(size) => Some((self.text_of(key).ok()?.to_owned(), *size)),
            _ => None,
        };
        entries.iter().filter_map(size).collect()
    }

    /// The first dict under one of these keys.
    fn dict_under(&self, root: Id, keys: &[&str]) -> Option<(Id, &[(Id, Id)])> {
        let Object::Dict(entries) = self.object(root) else {
            return None;
        };
        entries.iter().find_map(|&(key, value)| {
            let known = self.text_of(key).is_ok_and(|key| keys.contains(&key));
            match self.object(value) {
                Object::Dict(inner) if known => Some((value, inner.as_slice())),
                _ => None,
            }
        })
    }
}
