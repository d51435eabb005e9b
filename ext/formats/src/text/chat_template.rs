//! Chat templates: a checkpoint's own Jinja program that turns messages into a prompt.
//!
//! Rendering follows what transformers' `apply_chat_template` does, since templates are written
//! against it: the same whitespace rules, the same extra functions, Python's spelling of values.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use super::jinja::{self, Cause, Failure};
use crate::text::tokenizer::SpecialTokens;
use crate::{Error, Result};
use base::runtime::cancel::CancelToken;
use base::runtime::stack;

/// What a conversation is rendered from.
pub struct Conversation<'a> {
    /// A list of objects with `role` and `content`.
    pub messages: &'a Value,
    pub tools: Option<&'a Value>,
    pub documents: Option<&'a Value>,
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: &'a Map<String, Value>,
}

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate(jinja::Template);

impl ChatTemplate {
    pub fn compile(source: &str) -> Result<Self> {
        let template = stack::roomy(|| jinja::parse(source))?.map_err(|failure| {
            Error::UnsupportedModel(format!("the chat template cannot be read: {failure}"))
        })?;
        Ok(Self(template))
    }

    pub fn render(
        &self,
        conversation: &Conversation<'_>,
        special_tokens: &SpecialTokens,
        cancel: &CancelToken,
    ) -> Result<String> {
        let mut variables = Map::new();
        for (role, token) in special_tokens.iter() {
            variables.insert(role.to_owned(), Value::from(token.content.as_str()));
        }
        variables.insert("messages".to_owned(), conversation.messages.clone());
        let optional = |value: Option<&Value>| value.cloned().unwrap_or(Value::Null);
        variables.insert("tools".to_owned(), optional(conversation.tools));
        variables.insert("documents".to_owned(), optional(conversation.documents));
        variables.insert(
            "add_generation_prompt".to_owned(),
            Value::Bool(conversation.add_generation_prompt),
        );
        variables.extend(conversation.variables.clone());
        stack::roomy(|| jinja::render(&self.0, &variables, cancel))?.map_err(rendering_failed)
    }
}

fn rendering_failed(failure: Failure) -> Error {
    match &failure.cause {
        Cause::Refused(message) => Error::InvalidInput(format!(
            "the chat template refuses these messages: {message}"
        )),
        Cause::Exhausted(what) => {
            Error::InvalidInput(format!("the chat template {what}: it was stopped"))
        }
        Cause::Interrupted => Error::Interrupted,
        Cause::Wrong(_) => Error::InvalidInput(format!(
            "the chat template fails on these messages: {failure}"
        )),
    }
}

/// The templates of a checkpoint by name; most have just `default`.
#[derive(Debug, Default)]
pub struct ChatTemplates(Vec<Named>);

#[derive(Debug)]
struct Named {
    name: String,
    source: String,
    compiled: OnceLock<ChatTemplate>,
}

impl ChatTemplates {
    /// `chat_template` of a configuration file: a string, or a list of `{name, template}`.
    pub fn from_config(value: &Value) -> Self {
        let mut templates = Self::default();
        match value {
            Value::String(source) => templates.insert("default", source.clone()),
            Value::Array(list) => {
                for entry in list {
                    if let (Some(name), Some(source)) =
                        (entry["name"].as_str(), entry["template"].as_str())
                    {
                        templates.insert(name, source.to_owned());
                    }
                }
            }
            Value::Object(map) => {
                for (name, source) in map {
                    if let Some(source) = source.as_str() {
                        templates.insert(name, source.to_owned());
                    }
                }
            }
            _ => {}
        }
        templates
    }

    /// Adds a template; one of the same name is replaced.
    pub fn insert(&mut self, name: &str, source: String) {
        self.0.retain(|template| template.name != name);
        self.0.push(Named {
            name: name.to_owned(),
            source,
            compiled: OnceLock::new(),
        });
    }

    pub fn merge(&mut self, other: Self) {
        for template in other.0 {
            self.insert(&template.name, template.source);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|template| template.name.as_str())
    }

    pub fn source(&self, name: &str) -> Option<&str> {
        self.find(name).map(|template| template.source.as_str())
    }

    /// The template called `name`; without one, `tool_use` for tools, else `default`.
    pub fn select(&self, name: Option<&str>, with_tools: bool) -> Result<&ChatTemplate> {
        let found = match name {
            Some(name) => self.find(name),
            None => {
                let for_tools = with_tools.then(|| self.find("tool_use")).flatten();
                let only = match self.0.as_slice() {
                    [only] => Some(only),
                    _ => None,
                };
                for_tools.or_else(|| self.find("default")).or(only)
            }
        };
        let Some(template) = found else {
            let known: Vec<&str> = self.names().collect();
            return Err(Error::InvalidInput(format!(
                "there is no chat template named {:?}: this tokenizer has {}",
                name.unwrap_or("default"),
                known.join(", ")
            )));
        };
        if let Some(compiled) = template.compiled.get() {
            return Ok(compiled);
        }
        let compiled = ChatTemplate::compile(&template.source)?;
        Ok(template.compiled.get_or_init(|| compiled))
    }

    fn find(&self, name: &str) -> Option<&Named> {
        self.0.iter().find(|template| template.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: Value) -> Result<String> {
        ChatTemplate::compile(source)?.render(
            &Conversation {
                messages: &messages,
                tools: None,
                documents: None,
                add_generation_prompt: true,
                variables: &Map::new(),
            },
            &SpecialTokens::default(),
            &CancelToken::new(),
        )
    }

    #[test]
    fn blocks_leave_no_blank_lines_as_in_transformers() {
        let source = "{% for m in messages %}\n  {% if true %}\n{{ m.role }}:{{ m['content'] }}\n  {% endif %}\n{% endfor %}\n";
        let messages = json!([{"role": "user", "content": "hi"}, {"role": "b", "content": "é"}]);
        assert_eq!(render(source, messages).unwrap(), "user:hi\nb:é\n");
    }

    #[test]
    fn values_print_as_python_prints_them() {
        let source =
            "{{ true }} {{ none }} {{ 1.0 }} {{ messages }} {{ tools is none }}{{ nothing }}";
        let messages = json!([{"role": "it's", "n": null}]);
        assert_eq!(
            render(source, messages).unwrap(),
            "True None 1.0 [{'role': \"it's\", 'n': None}] True"
        );
    }

    #[test]
    fn a_template_that_refuses_says_why() {
        let source = "{{ raise_exception('Roles must alternate') }}";
        let error = render(source, json!([])).unwrap_err();
        assert!(
            matches!(&error, Error::InvalidInput(text) if text.contains("Roles must alternate"))
        );
    }

    #[test]
    fn generation_tags_are_transparent() {
        let source = "a{% generation %}b{%- endgeneration -%} c";
        assert_eq!(render(source, json!([])).unwrap(), "abc");
    }

    #[test]
    fn an_endless_template_is_stopped() {
        let source =
            "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}";
        let error = render(source, json!([])).unwrap_err();
        assert!(error.to_string().contains("takes too long"));
        let source = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
        assert!(render(source, json!([])).is_err());
    }

    #[test]
    fn a_broken_template_names_the_line() {
        let error = render("a\n{% if %}", json!([])).unwrap_err();
        assert!(matches!(&error, Error::UnsupportedModel(text) if text.contains("line 2")));
    }

    #[test]
    fn tools_choose_their_own_template() {
        let templates = ChatTemplates::from_config(&json!([
            {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}
        ]));
        let text = |name, tools| {
            templates.select(name, tools).and_then(|template| {
                template.render(
                    &Conversation {
                        messages: &json!([]),
                        tools: None,
                        documents: None,
                        add_generation_prompt: false,
                        variables: &Map::new(),
                    },
                    &SpecialTokens::default(),
                    &CancelToken::new(),
                )
            })
        };
        assert_eq!(text(None, false).unwrap(), "d");
        assert_eq!(text(None, true).unwrap(), "t");
        assert!(text(Some("rag"), false)
            .unwrap_err()
            .to_string()
            .contains("default, tool_use"));
    }
}
