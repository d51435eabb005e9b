//! The merges of a BPE model, which the `tokenizers` crate shows in its JSON alone.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::merging::key;
use super::table::Pairs;

/// Two tokens, and their rank above the token that they become; `None` for tokens that are not in the vocabulary.
/// Merges are taken over one by one: a list of their texts would take more memory than all that stays.
pub(super) fn read(json: &[u8], vocabulary: &HashMap<String, u32>) -> Option<Pairs> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let visitor = Model { vocabulary };
    reader.deserialize_map(visitor).ok()
}

#[derive(Clone, Copy)]
struct Model<'a> {
    vocabulary: &'a HashMap<String, u32>,
}

impl<'de> Visitor<'de> for Model<'_> {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BPE model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
        let mut pairs = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "merges" {
                pairs = Some(map.next_value_seed(Merges(self))?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        pairs.ok_or_else(|| A::Error::missing_field("merges"))
    }
}

struct Merges<'a>(Model<'a>);

impl<'de> DeserializeSeed<'de> for Merges<'_> {
    type Value = Pairs;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Pairs, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Merges<'_> {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pairs of tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut merges: A) -> Result<Pairs, A::Error> {
        let vocabulary = self.0.vocabulary;
        let id = |token: &str| {
            let found = vocabulary.get(token).copied();
            found.ok_or_else(|| A::Error::custom("a merge of unknown tokens"))
        };
        let mut pairs = Pairs::with_capacity(vocabulary.len());
        let mut rank = 0u64;
        while let Some((left, right)) = merges.next_element::<(String, String)>()? {
            let merged = u64::from(id(&format!("{left}{right}"))?);
            pairs.set(key(id(&left)?, id(&right)?), rank << 32 | merged);
            rank += 1;
        }
        Ok(pairs)
    }
}
