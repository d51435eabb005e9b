//! Python's ways to put values into a text: `%` and `str.format`.

use super::budget::Budget;
use super::failure::{wrong, Outcome};
use super::print::{append, print, represent};
use super::value::Value;

/// Wider fields and more digits than any prompt has.
const WIDEST: usize = 1000;
const MOST_DIGITS: usize = 100;

/// How one value is to be written.
#[derive(Default)]
struct Field {
    fill: Option<char>,
    align: Option<char>,
    sign: bool,
    zero: bool,
    width: usize,
    digits: Option<usize>,
    kind: Option<char>,
}

/// `pattern % values`
pub fn percent(pattern: &str, values: &[Value], budget: &Budget<'_>) -> Outcome<Value> {
    let mut text = String::new();
    let mut values = values.iter();
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            append(letter.encode_utf8(&mut [0; 4]), &mut text, budget)?;
            continue;
        }
        let mut field = Field::default();
        let mut specification = String::new();
        let kind = loop {
            match letters.next() {
                Some(letter) if "-+ #0123456789.".contains(letter) && specification.len() < 16 => {
                    specification.push(letter);
                }
                Some(letter) => break letter,
                None => return wrong("a % has no kind of value after it"),
            }
        };
        if kind == '%' {
            append("%", &mut text, budget)?;
            continue;
        }
        let flags = specification.trim_start_matches(['-', '+', ' ', '#', '0']);
        for flag in specification[..specification.len() - flags.len()].chars() {
            match flag {
                '-' => field.align = Some('<'),
                '0' => field.zero = true,
                '+' => field.sign = true,
                _ => {}
            }
        }
        width_and_digits(flags, &mut field)?;
        field.align = field.align.or(Some('>'));
        field.kind = Some(kind);
        let Some(value) = values.next() else {
            return wrong("there are fewer values than % in the text");
        };
        write(value, &field, &mut text, budget)?;
    }
    if values.next().is_some() {
        return wrong("there are more values than % in the text");
    }
    Ok(Value::counted(text))
}

/// `pattern.format(*values, **named)`
pub fn braces(
    pattern: &str,
    values: &[Value],
    named: &[(std::sync::Arc<str>, Value)],
    budget: &Budget<'_>,
) -> Outcome<Value> {
    let (mut text, mut rest, mut next) = (String::new(), pattern, 0);
    while let Some(place) = rest.find(['{', '}']) {
        append(&rest[..place], &mut text, budget)?;
        let brace = &rest[place..place + 1];
        rest = &rest[place + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            append(brace, &mut text, budget)?;
            rest = after;
            continue;
        }
        let Some((inside, after)) = rest.split_once('}').filter(|_| brace == "{") else {
            return wrong("a brace in a format is not closed, or not opened");
        };
        rest = after;
        let (name, specification) = inside.split_once(':').unwrap_or((inside, ""));
        let (name, conversion) = name.split_once('!').unwrap_or((name, ""));
        let value = if name.is_empty() {
            next += 1;
            values.get(next - 1)
        } else if let Ok(index) = name.parse::<usize>() {
            values.get(index)
        } else {
            named
                .iter()
                .find(|(key, _)| **key == *name)
                .map(|(_, value)| value)
        };
        let Some(value) = value else {
            return wrong(format!("the format has no value for {{{name}}}"));
        };
        let mut field = parsed(specification)?;
        if conversion == "r" {
            field.kind = Some('r');
        }
        write(value, &field, &mut text, budget)?;
    }
    append(rest, &mut text, budget)?;
    Ok(Value::counted(text))
}

/// `[[fill]align][sign][0][width][.digits][kind]`
fn parsed(specification: &str) -> Outcome<Field> {
    let mut field = Field::default();
    let mut letters = specification.chars();
    let (first, second) = (letters.next(), letters.next());
    let is_align = |letter: Option<char>| letter.filter(|letter| "<>^".contains(*letter));
    let mut rest = specification;
    if let Some(align) = is_align(second) {
        field.fill = first;
        field.align = Some(align);
        rest = letters.as_str();
    } else if let Some(align) = is_align(first) {
        field.align = Some(align);
        rest = &specification[1..];
    }
    if let Some(after) = rest.strip_prefix('+') {
        field.sign = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0') {
        field.zero = true;
        rest = after;
    }
    if let Some(kind) = rest
        .chars()
        .next_back()
        .filter(|kind| kind.is_ascii_alphabetic())
    {
        field.kind = Some(kind);
        rest = &rest[..rest.len() - 1];
    }
    width_and_digits(rest, &mut field)?;
    Ok(field)
}

fn width_and_digits(text: &str, field: &mut Field) -> Outcome<()> {
    let (width, digits) = match text.split_once('.') {
        Some((width, digits)) => (width, Some(digits)),
        None => (text, None),
    };
    let number = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<usize>().ok(),
    };
    match (number(width), digits.map(number)) {
        (Some(width @ 0..=WIDEST), None) => field.width = width,
        (Some(width @ 0..=WIDEST), Some(Some(digits @ 0..=MOST_DIGITS))) => {
            field.width = width;
            field.digits = Some(digits);
        }
        _ => {
            return wrong(format!(
                "a format is wrong, wider than {WIDEST}, or has more than {MOST_DIGITS} digits"
            ))
        }
    }
    Ok(())
}

fn write(value: &Value, field: &Field, text: &mut String, budget: &Budget<'_>) -> Outcome<()> {
    let mut content = String::new();
    match (field.kind, value.as_int(), value.as_float()) {
        (Some('d' | 'i' | 'u'), Some(number), _) => content = number.to_string(),
        (Some('d' | 'i' | 'u'), None, Some(number)) => content = format!("{}", number.trunc()),
        (Some('x'), Some(number), _) => content = format!("{number:x}"),
        (Some('X'), Some(number), _) => content = format!("{number:X}"),
        (Some('f' | 'F'), _, Some(number)) => {
            content = format!("{number:.*}", field.digits.unwrap_or(6));
        }
        (Some('s') | None, ..) => print(value, &mut content, budget)?,
        (Some('r'), ..) => represent(value, &mut content, budget)?,
        (Some(kind), ..) => {
            return wrong(format!(
                "a format {kind} does not take '{}'",
                value.type_name()
            ))
        }
    }
    let is_number = value.as_float().is_some() && !matches!(field.kind, Some('s' | 'r'));
    if !is_number {
        if let Some(digits) = field.digits {
            content = content.chars().take(digits).collect();
        }
    }
    if field.sign && is_number && !content.starts_with('-') {
        content.insert(0, '+');
    }
    let missing = field.width.saturating_sub(content.chars().count());
    let fill = field.fill.unwrap_or(' ').to_string();
    let default = if is_number { '>' } else { '<' };
    let (before, after) = match field.align.unwrap_or(default) {
        _ if field.zero && is_number && field.align != Some('<') => {
            let sign = usize::from(content.starts_with(['-', '+']));
            content.insert_str(sign, &"0".repeat(missing));
            (0, 0)
        }
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    append(&fill.repeat(before), text, budget)?;
    append(&content, text, budget)?;
    append(&fill.repeat(after), text, budget)
}
