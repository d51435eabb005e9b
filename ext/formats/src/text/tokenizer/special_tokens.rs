//! The tokens with a role: where a text begins and ends, what fills a batch.

use serde_json::Value;

/// The roles that Hugging Face's files name, in their order.
pub const ROLES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    pub content: String,
    pub id: u32,
}

/// Tokens by role, and every token that ends a generated text.
#[derive(Clone, Debug, Default)]
pub struct SpecialTokens {
    by_role: Vec<(&'static str, SpecialToken)>,
    additional: Vec<SpecialToken>,
    end_ids: Vec<u32>,
}

/// Tokens that end a turn in the chat formats at large, whatever the file says of them.
const TURN_ENDS: [&str; 11] = [
    "<|return|>",
    "<|call|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|EOT|>",
    "<｜end▁of▁sentence｜>",
];

impl SpecialTokens {
    /// The token of a role such as `"eos_token"`.
    pub fn get(&self, role: &str) -> Option<&SpecialToken> {
        self.by_role
            .iter()
            .find(|(name, _)| *name == role)
            .map(|(_, token)| token)
    }

    pub fn id(&self, role: &str) -> Option<u32> {
        self.get(role).map(|token| token.id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &SpecialToken)> {
        self.by_role.iter().map(|(role, token)| (*role, token))
    }

    pub fn additional(&self) -> &[SpecialToken] {
        &self.additional
    }

    /// The ids that end a generated text: the declared ones and known turn ends.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    pub(super) fn set(&mut self, role: &str, content: &str, id: u32) {
        let Some(role) = ROLES.iter().find(|known| **known == role) else {
            return;
        };
        let token = SpecialToken {
            content: content.to_owned(),
            id,
        };
        match self.by_role.iter_mut().find(|(name, _)| name == role) {
            Some((_, slot)) => *slot = token,
            None => self.by_role.push((role, token)),
        }
        if *role == "eos_token" {
            self.add_end(id);
        }
    }

    pub(super) fn add_additional(&mut self, content: &str, id: u32) {
        if self.additional.iter().all(|token| token.id != id) {
            self.additional.push(SpecialToken {
                content: content.to_owned(),
                id,
            });
        }
    }

    pub(super) fn add_end(&mut self, id: u32) {
        if !self.end_ids.contains(&id) {
            self.end_ids.push(id);
        }
    }

    /// Adds the known turn ends that `special_id` finds among the special tokens.
    pub(super) fn add_turn_ends(&mut self, special_id: impl Fn(&str) -> Option<u32>) {
        // In this format a turn of several messages ends with `<|return|>`, a message with `<|end|>`.
        let harmony = special_id("<|return|>").is_some();
        for content in TURN_ENDS {
            if harmony && content == "<|end|>" {
                continue;
            }
            if let Some(id) = special_id(content) {
                self.add_end(id);
            }
        }
    }
}

/// The text of a token as the configuration files write it: a string, or an object with `content`.
pub(super) fn content_of(value: &Value) -> Option<&str> {
    match value {
        Value::String(text) => Some(text),
        Value::Object(fields) => fields.get("content").and_then(Value::as_str),
        _ => None,
    }
}
