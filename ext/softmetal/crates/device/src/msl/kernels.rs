//! Kernels and their instances.

use super::rewrite::Translator;
use super::tokens::Attribute;

pub struct Kernel {
    pub name: String,
    pub parameters: Vec<Parameter>,
    pub maximum: Option<String>,
    pub template: bool,
}

pub struct Parameter {
    /// What it is made from: the place in `POSITIONS`, and the index of a buffer or of threadgroup memory.
    pub code: u32,
    /// The function constant without which the parameter does not exist.
    pub guard: Option<String>,
}

/// An explicit instantiation of a kernel's template.
pub struct Instance {
    pub host_name: String,
    pub function: String,
    pub arguments: String,
}

/// The attributes a kernel's parameters may have; `host::Fetch` switches on the place in the list.
pub const POSITIONS: [&str; 14] = [
    "buffer",
    "threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threads_per_grid",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
];
const BUFFER: u32 = 0;
const THREADGROUP: u32 = 1;

const KERNEL_ATTRIBUTES: [&str; 3] = ["kernel", "host_name", "max_total_threads_per_threadgroup"];

pub fn maximum(attributes: &[Attribute]) -> Option<String> {
    let found = attributes
        .iter()
        .find(|(name, _)| name == "max_total_threads_per_threadgroup");
    found.map(|(_, value)| value.clone())
}

pub fn check(attributes: &[Attribute]) -> Result<(), String> {
    match attributes
        .iter()
        .find(|(name, _)| !KERNEL_ATTRIBUTES.contains(&name.as_str()))
    {
        Some((name, _)) => Err(format!("the attribute {name} of a kernel is not supported")),
        None => Ok(()),
    }
}

/// The next free index of each kind, for parameters that name none.
#[derive(Default)]
struct Free {
    buffer: u32,
    threadgroup: u32,
}

impl Translator<'_> {
    /// A template of a kernel, another template, or an explicit instantiation.
    pub fn template(&mut self, i: usize) -> Result<usize, String> {
        if self.tokens.text(i + 1) != "<" {
            return self.instantiation(i);
        }
        let close = self.tokens.close(i + 1)?;
        let (attributes, next) = self.tokens.attributes(close + 1)?;
        let is_kernel = attributes.iter().any(|(name, _)| name == "kernel");
        if is_kernel || self.tokens.text(next) == "kernel" {
            check(&attributes)?;
            let header = self.tokens.join(i..close + 1);
            let start = if is_kernel { next } else { next + 1 };
            return self.kernel(start, Some(header), maximum(&attributes));
        }
        for token in i..=close {
            self.emit(token);
        }
        Ok(close + 1)
    }

    /// `template [[host_name("x")]] … name<arguments>(parameters);`, or one without a name for the host.
    fn instantiation(&mut self, i: usize) -> Result<usize, String> {
        let end = self.tokens.after(";", i)? - 1;
        let (attributes, _) = self.tokens.attributes(i + 1)?;
        check(&attributes)?;
        let Some((_, host_name)) = attributes.iter().find(|(name, _)| name == "host_name") else {
            for token in i..=end {
                self.emit(token);
            }
            return Ok(end + 1);
        };
        let host_name: String = host_name.split('"').skip(1).step_by(2).collect();
        let mut last = end - 1;
        if self.tokens.text(last) == ")" {
            last = self.open_before(last, "(", ")")? - 1;
        }
        if self.tokens.text(last) != ">" {
            return Err(format!("{host_name} is an instance of no template"));
        }
        let open = self.open_before(last, "<", ">")?;
        self.instances.push(Instance {
            host_name,
            function: self.tokens.text(open - 1).to_string(),
            arguments: self.tokens.join(open + 1..last),
        });
        Ok(end + 1)
    }

    /// The bracket that the one at `close` closes.
    fn open_before(&self, close: usize, left: &str, right: &str) -> Result<usize, String> {
        let (mut depth, mut parentheses) = (0, 0);
        for i in (0..=close).rev() {
            match self.tokens.text(i) {
                text if text == right && parentheses == 0 => depth += 1,
                text if text == left && parentheses == 0 => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(i);
                    }
                }
                ")" => parentheses += 1,
                "(" => parentheses -= 1,
                _ => {}
            }
        }
        Err(format!("{right} without {left}"))
    }

    /// A kernel from its return type on.
    pub fn kernel(
        &mut self,
        i: usize,
        header: Option<String>,
        limit: Option<String>,
    ) -> Result<usize, String> {
        let (attributes, i) = self.tokens.attributes(i)?;
        check(&attributes)?;
        let limit = limit.or(maximum(&attributes));
        let name = self.tokens.text(i + 1).to_string();
        if self.tokens.text(i) != "void" || self.tokens.text(i + 2) != "(" {
            return Err(format!("{:?} is not a kernel", self.tokens.join(i..i + 3)));
        }
        let close = self.tokens.close(i + 2)?;
        let template = header.is_some();
        let header = header.unwrap_or_default();
        if let Some(limit) = &limit {
            let line =
                format!("\n{header} constexpr unsigned softmetal_maximum_{name} = {limit};\n");
            self.out.push_str(&line);
        }
        let (mut parameters, mut texts) = (Vec::new(), Vec::new());
        let mut free = Free::default();
        let mut at = i + 3;
        while at < close {
            let (parameter, text, next) = self.parameter(&name, at..close, &mut free)?;
            parameters.push(parameter);
            texts.push(text);
            at = next;
        }
        let line = format!("\n{header} static void {name}({})", texts.join(","));
        self.out.push_str(&line);
        self.kernels.retain(|kernel| kernel.name != name);
        self.kernels.push(Kernel {
            name,
            parameters,
            maximum: limit,
            template,
        });
        Ok(close + 1)
    }

    /// The parameter at the start of a range, what C++ declares for it, and where the next one begins.
    fn parameter(
        &self,
        kernel: &str,
        range: std::ops::Range<usize>,
        free: &mut Free,
    ) -> Result<(Parameter, String, usize), String> {
        let mut text = String::new();
        let (mut binding, mut guard, mut shared) = (None, None, false);
        let (mut depth, mut at) = (0, range.start);
        while at < range.end {
            if self.tokens.is_attribute(at) {
                let (attributes, next) = self.tokens.attributes(at)?;
                for (attribute, value) in attributes {
                    match POSITIONS.iter().position(|position| *position == attribute) {
                        Some(kind) => binding = Some((kind as u32, value)),
                        None if attribute == "function_constant" => guard = Some(value),
                        None => {
                            return Err(format!(
                                "{kernel}: the attribute {attribute} is not supported"
                            ))
                        }
                    }
                }
                at = next;
                continue;
            }
            match self.tokens.text(at) {
                "," if depth == 0 => break,
                "(" | "<" => depth += 1,
                ")" | ">" => depth -= 1,
                "threadgroup" => {
                    shared = true;
                    at += 1;
                    continue;
                }
                _ => {}
            }
            text.push_str(self.tokens.space(at));
            text.push_str(self.tokens.text(at));
            at += 1;
        }
        let (kind, index) = match binding {
            Some((kind, value)) if kind <= THREADGROUP => {
                let index = value
                    .parse::<u32>()
                    .map_err(|_| format!("{kernel}: {value} is no index"))?;
                (kind, index)
            }
            Some((kind, _)) => (kind, 0),
            None if shared => (THREADGROUP, free.threadgroup),
            None => (BUFFER, free.buffer),
        };
        match kind {
            BUFFER => free.buffer = free.buffer.max(index + 1),
            THREADGROUP => free.threadgroup = free.threadgroup.max(index + 1),
            _ => {}
        }
        let parameter = Parameter {
            code: kind << 8 | index,
            guard,
        };
        Ok((parameter, text, at + 1))
    }
}
