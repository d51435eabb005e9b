//! Joining tagged tokens into entities.

use crate::{Error, Result};

use super::tag::{best, TaggedToken};

/// How the tokens of a word and of an entity come to one label; the names are Hugging Face's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Each token for itself.
    None,
    /// Neighbours of one kind are joined.
    #[default]
    Simple,
    /// A word has the label of its first token.
    First,
    /// A word has the label of the highest mean.
    Average,
    /// A word has the label of its surest token.
    Max,
}

impl Aggregation {
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "simple" => Ok(Self::Simple),
            "first" => Ok(Self::First),
            "average" => Ok(Self::Average),
            "max" => Ok(Self::Max),
            other => Err(Error::InvalidInput(format!(
                "unknown aggregation {other:?}: use none, simple, first, average or max"
            ))),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    pub text: String,
    /// Without its B- or I-, unless nothing is aggregated.
    pub label: String,
    /// Characters of the text, end excluded: `text` is exactly these.
    pub start: usize,
    pub end: usize,
    pub confidence: f32,
    /// From the first to past the last of the tokens given.
    pub token_start: usize,
    pub token_end: usize,
}

/// A word, or a token, with its label.
struct Unit {
    label: usize,
    score: f32,
    tokens: std::ops::Range<usize>,
}

/// How a label stands in its entity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Begin,
    Inside,
    /// Nothing can follow it (E-, L-).
    End,
    /// Nothing can follow or precede it (S-, U-).
    Single,
}

/// The entities of one text, in its order. Tokens labelled `O` are outside entities.
pub fn aggregate(
    text: &str,
    tokens: &[TaggedToken],
    labels: &[String],
    aggregation: Aggregation,
) -> Vec<Entity> {
    let units = match aggregation {
        Aggregation::None | Aggregation::Simple => single_units(tokens),
        _ => word_units(tokens, aggregation),
    };
    let characters: Vec<char> = text.chars().collect();
    let name = |label: usize| labels.get(label).map_or("", String::as_str);
    let mut entities = Vec::new();
    let mut group: Vec<&Unit> = Vec::new();
    let mut close = |group: &mut Vec<&Unit>| {
        if let (Some(first), Some(last)) = (group.first(), group.last()) {
            let (_, kind) = split_label(name(first.label));
            let shown = if aggregation == Aggregation::None {
                name(first.label)
            } else {
                kind
            };
            let sum: f64 = group.iter().map(|unit| f64::from(unit.score)).sum();
            let span = first.tokens.start..last.tokens.end;
            let confidence = (sum / group.len() as f64) as f32;
            entities.extend(make_entity(&characters, tokens, shown, confidence, span));
        }
        group.clear();
    };
    for unit in &units {
        let (place, kind) = split_label(name(unit.label));
        let joins = aggregation != Aggregation::None
            && matches!(place, Place::Inside | Place::End)
            && group.last().is_some_and(|last| {
                let (last_place, last_kind) = split_label(name(last.label));
                last_kind == kind && matches!(last_place, Place::Begin | Place::Inside)
            });
        if !joins {
            close(&mut group);
        }
        group.push(unit);
    }
    close(&mut group);
    entities
}

fn single_units(tokens: &[TaggedToken]) -> Vec<Unit> {
    let unit = |(at, token): (usize, &TaggedToken)| {
        let (label, score) = token.best();
        Unit {
            label,
            score,
            tokens: at..at + 1,
        }
    };
    tokens.iter().enumerate().map(unit).collect()
}

fn word_units(tokens: &[TaggedToken], aggregation: Aggregation) -> Vec<Unit> {
    let mut words: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match words.last_mut() {
            Some(word) if token.continues => word.end = at + 1,
            _ => words.push(at..at + 1),
        }
    }
    let unit = |word: std::ops::Range<usize>| {
        let (label, score) = word_label(&tokens[word.clone()], aggregation);
        Unit {
            label,
            score,
            tokens: word,
        }
    };
    words.into_iter().map(unit).collect()
}

fn word_label(word: &[TaggedToken], aggregation: Aggregation) -> (usize, f32) {
    match aggregation {
        Aggregation::Average => {
            let width = word.first().map_or(0, |token| token.probabilities.len());
            let mean = |label: usize| {
                let sum: f64 = word
                    .iter()
                    .map(|token| f64::from(token.probabilities[label]))
                    .sum();
                (sum / word.len() as f64) as f32
            };
            best(&(0..width).map(mean).collect::<Vec<_>>())
        }
        Aggregation::Max => {
            let mut surest = (0, f32::NEG_INFINITY);
            for token in word {
                let found = token.best();
                if found.1 > surest.1 {
                    surest = found;
                }
            }
            surest
        }
        _ => word.first().map_or((0, 0.0), TaggedToken::best),
    }
}

/// A label's place and kind: `B-PER` begins a PER; a plain `PER` is inside one.
fn split_label(label: &str) -> (Place, &str) {
    let Some((prefix, kind)) = label.split_once(['-', '_']) else {
        return (Place::Inside, label);
    };
    match prefix {
        "B" => (Place::Begin, kind),
        "I" | "M" => (Place::Inside, kind),
        "E" | "L" => (Place::End, kind),
        "S" | "U" => (Place::Single, kind),
        _ => (Place::Inside, label),
    }
}

/// `None` for what is outside of every entity. Some tokenizers count the space before a word as its
/// own; an entity's text does not.
fn make_entity(
    characters: &[char],
    tokens: &[TaggedToken],
    label: &str,
    confidence: f32,
    span: std::ops::Range<usize>,
) -> Option<Entity> {
    if label.is_empty() || label == "O" {
        return None;
    }
    let mut start = tokens.get(span.start)?.start;
    let mut end = tokens
        .get(span.end.checked_sub(1)?)?
        .end
        .min(characters.len());
    while start < end && characters[start].is_whitespace() {
        start += 1;
    }
    while end > start && characters[end - 1].is_whitespace() {
        end -= 1;
    }
    Some(Entity {
        text: characters.get(start..end)?.iter().collect(),
        label: label.to_owned(),
        start,
        end,
        confidence,
        token_start: span.start,
        token_end: span.end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [&str; 9] = [
        "O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "I-LOC", "PER", "LOC",
    ];

    fn token(start: usize, end: usize, label: &str, score: f32, continues: bool) -> TaggedToken {
        let mut probabilities = vec![0.0; LABELS.len()];
        probabilities[LABELS.iter().position(|known| *known == label).unwrap()] = score;
        TaggedToken {
            token: String::new(),
            id: 0,
            index: 0,
            start,
            end,
            word: None,
            continues,
            probabilities,
        }
    }

    fn found(
        text: &str,
        tokens: &[TaggedToken],
        aggregation: Aggregation,
    ) -> Vec<(String, String)> {
        let labels: Vec<String> = LABELS.iter().map(|label| label.to_string()).collect();
        let entities = aggregate(text, tokens, &labels, aggregation);
        for entity in &entities {
            let exact: String = text
                .chars()
                .skip(entity.start)
                .take(entity.end - entity.start)
                .collect();
            assert_eq!(exact, entity.text);
        }
        entities
            .into_iter()
            .map(|entity| (entity.text, entity.label))
            .collect()
    }

    fn pair(text: &str, label: &str) -> (String, String) {
        (text.to_owned(), label.to_owned())
    }

    #[test]
    fn a_begin_starts_anew_and_kinds_do_not_mix() {
        let tokens = [
            token(0, 2, "B-PER", 0.9, false),
            token(3, 5, "I-PER", 0.8, false),
            token(6, 8, "B-PER", 0.7, false),
            token(9, 11, "I-LOC", 0.6, false),
            token(12, 14, "O", 0.9, false),
        ];
        let text = "éa bb cc dd ee";
        let entities = found(text, &tokens, Aggregation::Simple);
        assert_eq!(
            entities,
            [pair("éa bb", "PER"), pair("cc", "PER"), pair("dd", "LOC")]
        );
        let single = found(text, &tokens, Aggregation::None);
        assert_eq!(single[1], pair("bb", "I-PER"));
    }

    #[test]
    fn ends_and_singles_close_an_entity() {
        let tokens = [
            token(0, 2, "B-PER", 0.9, false),
            token(3, 5, "E-PER", 0.9, false),
            token(6, 8, "I-PER", 0.9, false),
            token(9, 11, "S-PER", 0.9, false),
            token(12, 14, "S-PER", 0.9, false),
        ];
        let entities = found("aa bb cc dd ee", &tokens, Aggregation::Simple);
        let texts: Vec<_> = entities.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["aa bb", "cc", "dd", "ee"]);
    }

    #[test]
    fn plain_tags_join_their_like() {
        let tokens = [
            token(0, 2, "PER", 0.9, false),
            token(2, 5, "PER", 0.9, false),
            token(5, 8, "LOC", 0.9, false),
        ];
        let entities = found("aa bb cc", &tokens, Aggregation::Simple);
        assert_eq!(entities, [pair("aa bb", "PER"), pair("cc", "LOC")]);
    }

    #[test]
    fn words_agree_on_one_label() {
        let tokens = [
            token(0, 2, "B-PER", 0.6, false),
            token(2, 4, "B-LOC", 0.9, true),
        ];
        assert_eq!(
            found("aabb", &tokens, Aggregation::First),
            [pair("aabb", "PER")]
        );
        assert_eq!(
            found("aabb", &tokens, Aggregation::Max),
            [pair("aabb", "LOC")]
        );
        assert_eq!(
            found("aabb", &tokens, Aggregation::Average),
            [pair("aabb", "LOC")]
        );
        assert_eq!(found("aabb", &tokens, Aggregation::Simple).len(), 2);
    }
}
