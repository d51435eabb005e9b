//! The walk over the words.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::kernels::{self, Instance, Kernel};
use super::tokens::{is_vector, is_word, Attribute, Tokens};

/// A constant whose value the host gives, or which follows from one of those.
pub struct FunctionConstant {
    pub name: String,
    pub index: String,
}

pub struct Translator<'a> {
    pub tokens: Tokens<'a>,
    pub out: String,
    pub kernels: Vec<Kernel>,
    pub instances: Vec<Instance>,
    pub constants: Vec<FunctionConstant>,
    /// Names and expressions.
    pub derived: Vec<(String, String)>,
    dynamic: HashSet<String>,
    variables: usize,
    depth: i32,
    /// Functions of the file without their address spaces, and their bodies.
    definitions: HashMap<String, String>,
}

const ADDRESS_SPACES: [&str; 4] = ["constant", "device", "thread", "threadgroup"];

/// Attributes that change nothing here. candle also has those of a kernel's parameters on ordinary functions'.
const HARMLESS: [&str; 3] = ["maybe_unused", "unused", "always_inline"];

/// Words of the language for which there is nothing in the standard library here.
const UNKNOWN: [&str; 9] = [
    "object_data",
    "ray_data",
    "threadgroup_imageblock",
    "imageblock",
    "sampler",
    "visible_function_table",
    "intersection_function_table",
    "asm",
    "goto",
];

impl<'a> Translator<'a> {
    pub fn new(tokens: Tokens<'a>) -> Self {
        Self {
            tokens,
            out: String::from("#include \"metal_stdlib.hpp\"\n"),
            kernels: Vec::new(),
            instances: Vec::new(),
            constants: Vec::new(),
            derived: Vec::new(),
            dynamic: HashSet::new(),
            variables: 0,
            depth: 0,
            definitions: HashMap::new(),
        }
    }

    pub fn run(&mut self) -> Result<(), String> {
        let mut i = 0;
        while i < self.tokens.len() {
            i = self.step(i)?;
        }
        Ok(())
    }

    pub fn emit(&mut self, i: usize) {
        self.out.push_str(self.tokens.space(i));
        self.out.push_str(self.tokens.text(i));
    }

    fn emit_instead(&mut self, i: usize, text: &str) {
        self.out.push_str(self.tokens.space(i));
        self.out.push_str(text);
    }

    /// Translates what begins at `i` and returns where the next thing does.
    fn step(&mut self, i: usize) -> Result<usize, String> {
        let previous = if i == 0 { "" } else { self.tokens.text(i - 1) };
        let text = self.tokens.text(i);
        if UNKNOWN.contains(&text) || text.starts_with("texture") {
            return Err(format!("{text} is not supported"));
        }
        if self.depth == 0 && matches!(previous, "" | ";" | "}") {
            if let Some(next) = self.duplicate(i)? {
                return Ok(next);
            }
        }
        match text {
            "{" => self.depth += 1,
            "}" => self.depth -= 1,
            _ => {}
        }
        if text == "template" && !matches!(previous, "." | "->" | "::") {
            return self.template(i);
        }
        if text == "kernel" && is_word(self.tokens.text(i + 1)) {
            return self.kernel(i + 1, None, None);
        }
        if self.tokens.is_attribute(i) {
            return self.attribute(i);
        }
        match text {
            "constant" => return self.constant(i),
            "threadgroup" => return self.threadgroup(i),
            "(" if self.is_vector_cast(i, previous) => {
                let cast = format!("metal::cast<{}>{{}}->*", self.tokens.text(i + 1));
                self.emit_instead(i, &cast);
                return Ok(i + 3);
            }
            _ => {}
        }
        if let Some(next) = self.defaulted_constructor(i) {
            return Ok(next);
        }
        if let Some(literal) = literal(text) {
            self.emit_instead(i, &literal);
            return Ok(i + 1);
        }
        self.conversion(i)
    }

    fn attribute(&mut self, i: usize) -> Result<usize, String> {
        let (attributes, next) = self.tokens.attributes(i)?;
        self.out.push_str(self.tokens.space(i));
        if attributes.iter().any(|(name, _)| name == "kernel") {
            kernels::check(&attributes)?;
            return self.kernel(next, None, kernels::maximum(&attributes));
        }
        let harmless = |name: &str| HARMLESS.contains(&name) || kernels::POSITIONS.contains(&name);
        match attributes.iter().find(|(name, _)| !harmless(name)) {
            Some((name, _)) => Err(format!("the attribute {name} is not supported here")),
            None => Ok(next),
        }
    }

    /// Constructors and casts that C++ does not have.
    fn conversion(&mut self, i: usize) -> Result<usize, String> {
        let text = self.tokens.text(i);
        if text == "static_cast" {
            self.emit_instead(i, "metal::convert");
            return Ok(i + 1);
        }
        if text == "vec" && self.tokens.text(i + 1) == "<" {
            let close = self.tokens.close(i + 1)?;
            if self.tokens.text(close + 1) == "(" {
                let make = format!(
                    "metal::make<{}>",
                    self.tokens.join(i..close + 1).trim_start()
                );
                self.emit_instead(i, &make);
                return Ok(close + 1);
            }
        }
        if is_vector(text) && self.tokens.text(i + 1) == "(" {
            self.emit_instead(i, &format!("metal::make<{text}>"));
            return Ok(i + 1);
        }
        self.emit(i);
        Ok(i + 1)
    }

    /// `(float4)x`.
    fn is_vector_cast(&self, i: usize, previous: &str) -> bool {
        let operand = self.tokens.text(i + 3);
        let starts_one = is_word(operand)
            || operand.starts_with(|c: char| c.is_ascii_digit() || "(*-".contains(c));
        is_vector(self.tokens.text(i + 1))
            && self.tokens.text(i + 2) == ")"
            && (!is_word(previous) || previous == "return")
            && !matches!(previous, ")" | "]" | ">")
            && starts_one
    }

    /// Overloads and specializations for several address spaces are one here: all but the first go, and must have
    /// its body.
    fn duplicate(&mut self, i: usize) -> Result<Option<usize>, String> {
        let mut at = i;
        let mut signature = String::new();
        while at < self.tokens.len() && !matches!(self.tokens.text(at), "{" | ";" | "=") {
            if self.tokens.is_attribute(at)
                || matches!(self.tokens.text(at), "namespace" | "kernel")
            {
                return Ok(None);
            }
            let end = if self.tokens.text(at) == "(" {
                self.tokens.close(at)?
            } else {
                at
            };
            signature.push_str(&self.without_address_spaces(at..end + 1));
            at = end + 1;
        }
        let may_be = signature.starts_with("template") || signature.contains('(');
        if self.tokens.text(at) != "{" || !may_be {
            return Ok(None);
        }
        let end = self.tokens.close(at)? + 1;
        let body = self.without_address_spaces(at..end);
        match self.definitions.get(&signature) {
            None => {
                self.definitions.insert(signature, body);
                Ok(None)
            }
            Some(first) if *first == body => {
                let semicolon = self.tokens.text(end) == ";";
                Ok(Some(if semicolon { end + 1 } else { end }))
            }
            Some(_) => Err(format!(
                "two bodies for {signature}, whose address spaces differ"
            )),
        }
    }

    fn without_address_spaces(&self, range: std::ops::Range<usize>) -> String {
        let ignored = |text: &str| {
            ADDRESS_SPACES.contains(&text) || matches!(text, "const" | "static" | "inline")
        };
        let words = range
            .map(|i| self.tokens.text(i))
            .filter(|text| !ignored(text));
        words.flat_map(|word| [word, " "]).collect()
    }

    /// `constexpr name<T>() threadgroup = default;`: one for every address space but thread, which stays.
    fn defaulted_constructor(&self, i: usize) -> Option<usize> {
        let mut at = if self.tokens.text(i) == "constexpr" {
            i + 1
        } else {
            i
        };
        if !is_word(self.tokens.text(at)) {
            return None;
        }
        at += 1;
        if self.tokens.text(at) == "<" {
            at = self.tokens.close(at).ok()? + 1;
        }
        let rest = ["(", ")", "", "=", "default", ";"];
        let matches =
            (0..rest.len()).all(|k| rest[k].is_empty() || self.tokens.text(at + k) == rest[k]);
        let elsewhere = matches!(
            self.tokens.text(at + 2),
            "threadgroup" | "device" | "constant"
        );
        (matches && elsewhere).then_some(at + rest.len())
    }

    fn constant(&mut self, i: usize) -> Result<usize, String> {
        let mut end = i;
        while end < self.tokens.len()
            && !matches!(
                self.tokens.text(end),
                ";" | "(" | ")" | "{" | "=" | "," | "*" | "&"
            )
        {
            if self.tokens.is_attribute(end) {
                let (attributes, next) = self.tokens.attributes(end)?;
                return self.function_constant(i, end, &attributes, next);
            }
            end += 1;
        }
        if self.tokens.text(end) == "=" {
            let last = self.tokens.after(";", end)? - 1;
            if (end..last).any(|token| self.dynamic.contains(self.tokens.text(token))) {
                let name = self.declare_variable(i, end - 1);
                self.derived.push((name, self.tokens.join(end + 1..last)));
                return Ok(last + 1);
            }
        }
        self.emit(i);
        Ok(i + 1)
    }

    fn function_constant(
        &mut self,
        i: usize,
        end: usize,
        attributes: &[Attribute],
        next: usize,
    ) -> Result<usize, String> {
        let [(attribute, index)] = attributes else {
            return Err("a constant with several attributes".to_string());
        };
        if attribute != "function_constant" {
            return Err(format!(
                "the attribute {attribute} of a constant is not supported"
            ));
        }
        let name = self.declare_variable(i, end - 1);
        self.constants.push(FunctionConstant {
            name,
            index: index.clone(),
        });
        Ok(next + 1)
    }

    /// Writes a variable for the constant that is declared from `i` to its name.
    fn declare_variable(&mut self, i: usize, name: usize) -> String {
        let kind = self.tokens.join(i + 1..name).replace("const", "");
        let name = self.tokens.text(name).to_string();
        self.emit_instead(i, &format!("static {} {name};", kind.trim()));
        self.dynamic.insert(name.clone());
        name
    }

    /// A variable in threadgroup memory, or the address space of something else.
    fn threadgroup(&mut self, i: usize) -> Result<usize, String> {
        let mut end = i + 1;
        let mut name = None;
        while end < self.tokens.len() {
            match self.tokens.text(end) {
                "[" => {
                    name.get_or_insert(end - 1);
                    end = self.tokens.close(end)? + 1;
                }
                "<" => end = self.tokens.close(end)? + 1,
                ";" => {
                    name.get_or_insert(end - 1);
                    break;
                }
                word if is_word(word) || word == "::" => end += 1,
                _ => {
                    name = None;
                    break;
                }
            }
        }
        let Some(name) = name.filter(|name| self.tokens.text(end) == ";" && *name > i + 1) else {
            self.out.push_str(self.tokens.space(i));
            return Ok(i + 1);
        };
        let (kind, dimensions) = (
            self.tokens.join(i + 1..name),
            self.tokens.join(name + 1..end),
        );
        let (name, id) = (self.tokens.text(name), self.variables);
        self.variables += 1;
        let mut text = format!("typedef {kind} softmetal_type_{id}{dimensions}; ");
        let _ = write!(
            text,
            "auto &{name} = host::threadgroup_variable<softmetal_type_{id}>({id});"
        );
        self.emit_instead(i, &text);
        Ok(end + 1)
    }
}

/// A number as C++ has to write it: Metal's 2.0 is a float, and there is no literal of a half.
fn literal(text: &str) -> Option<String> {
    let first = text.chars().next()?;
    let hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    if !(first.is_ascii_digit() || first == '.') || hexadecimal || text.len() < 2 {
        return None;
    }
    let last = text.chars().last()?;
    if matches!(last, 'h' | 'H') {
        return Some(format!("((half){}f)", &text[..text.len() - 1]));
    }
    let floating = text.contains(['.', 'e', 'E']);
    (floating && (last.is_ascii_digit() || last == '.')).then(|| format!("{text}f"))
}
