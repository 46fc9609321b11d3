// SPDX-License-Identifier: Apache-2.0
//! The labels of a turn: which client sent its request, and what the request is for; and the classes of turns that an export trains.

use serde::{Deserialize, Serialize};

use super::Turn;
use crate::named_enum::named_enum;

/// The most bytes of a label. Clients choose the values, and a turn keeps them.
const LONGEST: usize = 256;

/// The labels of a turn. A member is absent if the request has no signal for it: nothing is guessed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labels {
    /// The API of the request.
    pub dialect: Option<Dialect>,
    /// The name and version of the client, such as `claude-cli/2.1.330`.
    pub client: Option<Box<str>>,
    /// The id or the name of the agent, if one client runs several.
    pub agent: Option<Box<str>>,
    /// The kind of the agent, such as `Explore`.
    pub agent_type: Option<Box<str>>,
    /// The id of the agent, thread or session of the client that started this one.
    pub parent_agent: Option<Box<str>>,
    /// The client's own id of the conversation.
    pub thread: Option<Box<str>>,
    /// What the request is for.
    pub request_class: Option<RequestClass>,
    /// It is the first request of the main conversation after a compaction.
    pub after_compaction: bool,
    /// The effort of the reasoning that the client asks for.
    pub effort: Option<Box<str>>,
    /// How Claude Code describes itself in its first system block, without the parts that change with each call.
    pub attribution: Option<Box<str>>,
}

impl Labels {
    /// The labels that are present, as a JSON object.
    ///
    /// # Panics
    /// Never: labels are strings and a flag.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut labels = serde_json::to_value(self).expect("labels have JSON");
        if let Some(labels) = labels.as_object_mut() {
            labels.retain(|_, label| !label.is_null() && *label != false);
        }
        labels
    }
}

named_enum! {
    /// The API of a request.
    pub enum Dialect {
        /// SGLang's `/generate`, over HTTP or gRPC.
        Generate = "generate",
        /// `OpenAI` chat completions.
        Chat = "chat",
        /// `OpenAI` completions.
        Completions = "completions",
        /// Anthropic Messages.
        Messages = "messages",
        /// `OpenAI` Responses.
        Responses = "responses",
    }
}

named_enum! {
    /// What a request is for.
    pub enum RequestClass {
        /// A turn of the main conversation.
        Main = "main",
        /// A turn of a sub-agent.
        Subagent = "subagent",
        /// A summary that replaces a conversation.
        Compaction = "compaction",
        /// A call beside the conversation, such as for its title.
        Auxiliary = "auxiliary",
    }
}

impl Labels {
    /// The labels that are text, by name.
    #[must_use]
    pub fn texts(&self) -> [(&'static str, Option<&str>); 9] {
        [
            ("dialect", self.dialect.map(Dialect::name)),
            ("client", self.client.as_deref()),
            ("agent", self.agent.as_deref()),
            ("agent_type", self.agent_type.as_deref()),
            ("parent_agent", self.parent_agent.as_deref()),
            ("thread", self.thread.as_deref()),
            ("request_class", self.request_class.map(RequestClass::name)),
            ("effort", self.effort.as_deref()),
            ("attribution", self.attribution.as_deref()),
        ]
    }

    /// The bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.texts().into_iter().filter_map(|(_, text)| Some(text?.len())).sum::<usize>()
    }
}

/// Sets a label that is absent. A longer text is cut to 256 bytes; an empty one is ignored.
pub fn fill_label(label: &mut Option<Box<str>>, text: &str) {
    let text = text.trim();
    if label.is_none() && !text.is_empty() {
        let end = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        *label = Some(text[..end.expect("0 is a boundary")].into());
    }
}

impl RequestClass {
    /// The class with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// The name of the turns without a class.
const UNLABELLED: &str = "unlabelled";

/// A set of classes. Turns of other classes are context in an export: their sampled tokens have loss mask 0, and no row ends in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes(u8);

impl Classes {
    /// Every turn.
    pub const ALL: Self = Self(0b1_1111);

    const fn bit(class: Option<RequestClass>) -> u8 {
        match class {
            None => 1,
            Some(class) => 2 << class as u8,
        }
    }

    /// The set with these names: those of [`RequestClass`], `unlabelled` for turns without a class, `all`. Without names it is the
    /// default.
    ///
    /// # Errors
    /// The message for the caller, if a name is unknown.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut bits = 0;
        for name in names {
            bits |= match (name, RequestClass::from_name(name)) {
                ("all", _) => Self::ALL.0,
                (UNLABELLED, _) => Self::bit(None),
                (_, Some(class)) => Self::bit(Some(class)),
                (_, None) => {
                    let names = RequestClass::ALL.map(RequestClass::name).join(", ");
                    return Err(format!("{name:?} is not one of {names}, {UNLABELLED}, all"));
                }
            };
        }
        Ok(if bits == 0 { Self::default() } else { Self(bits) })
    }

    /// Whether turns of a class are trained.
    #[must_use]
    pub fn contains(self, class: Option<RequestClass>) -> bool {
        self.0 & Self::bit(class) != 0
    }

    /// Whether the sampled tokens of a turn are trained: it has no fault, and its class is in the set.
    #[must_use]
    pub fn trains(self, turn: &Turn) -> bool {
        turn.is_trainable() && self.contains(turn.request_class())
    }
}

impl Default for Classes {
    /// The turns of conversations: main, sub-agents, and those without a class.
    fn default() -> Self {
        Self(Self::bit(None) | Self::bit(Some(RequestClass::Main)) | Self::bit(Some(RequestClass::Subagent)))
    }
}

/// Why a turn of a class that is not selected ends no row.
pub(in crate::session) fn exclusion(class: Option<RequestClass>) -> &'static str {
    match class {
        None => "class_unlabelled",
        Some(RequestClass::Main) => "class_main",
        Some(RequestClass::Subagent) => "class_subagent",
        Some(RequestClass::Compaction) => "class_compaction",
        Some(RequestClass::Auxiliary) => "class_auxiliary",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_labels_are_not_written() {
        assert_eq!(Labels::default().json().to_string(), "{}");
        let labels = Labels {
            dialect: Some(Dialect::Messages),
            request_class: Some(RequestClass::Subagent),
            after_compaction: true,
            ..Labels::default()
        };
        let written = serde_json::json!({"dialect": "messages", "request_class": "subagent", "after_compaction": true});
        assert_eq!(labels.json(), written);
    }

    #[test]
    fn label_is_trimmed_and_cut_at_a_character() {
        let filled = |text: &str| {
            let mut label = None;
            fill_label(&mut label, text);
            label.map(String::from)
        };
        assert_eq!(filled(" a b\t").as_deref(), Some("a b"));
        assert_eq!(filled("  "), None);
        assert_eq!(filled(&"x".repeat(300)).map(|label| label.len()), Some(256));
        assert_eq!(filled(&"\u{e4}\u{20ac}".repeat(60)).map(|label| label.len()), Some(255));
        let mut label = Some("first".into());
        fill_label(&mut label, "second");
        assert_eq!(label.as_deref(), Some("first"), "the first source counts");
    }

    #[test]
    fn default_has_the_turns_of_conversations() {
        let has = |classes: Classes| RequestClass::ALL.map(|class| classes.contains(Some(class)));
        assert_eq!(has(Classes::default()), [true, true, false, false]);
        assert!(Classes::default().contains(None));
        assert_eq!(Classes::parse([]), Ok(Classes::default()));
        assert_eq!(Classes::parse(["main", "subagent", "unlabelled"]), Ok(Classes::default()));
    }

    #[test]
    fn names_select_classes() {
        let classes = Classes::parse(["compaction"]).unwrap();
        assert!(classes.contains(Some(RequestClass::Compaction)) && !classes.contains(None));
        assert_eq!(Classes::parse(["all"]), Ok(Classes::ALL));
        assert_eq!(
            Classes::parse(["main", "Main"]),
            Err(r#""Main" is not one of main, subagent, compaction, auxiliary, unlabelled, all"#.to_owned())
        );
    }
}
