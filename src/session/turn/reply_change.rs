//! What a client changed in a reply of the session before it returned the reply.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::named_enum::named_enum;

named_enum! {
    /// A change after which the message of the client still counts as the reply.
    pub enum ReplyChange {
        /// The client added a `name`, which the template does not show.
        NameAdded = "name_added",
        /// White space around the text differs.
        WhiteSpace = "white_space",
        /// The text beside tool calls was left out.
        TextLeftOut = "text_left_out",
        /// A tool call has another notation, for example default values, or what the client writes for a call that it could not parse.
        CallRewritten = "call_rewritten",
        /// The reasoning was repeated as text.
        ReasoningAsText = "reasoning_as_text",
    }
}

/// A set of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyChanges(u8);

impl ReplyChanges {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The names of the changes.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        ReplyChange::ALL.into_iter().filter(move |change| self.0 & 1 << *change as u8 != 0).map(ReplyChange::name)
    }
}

impl Extend<ReplyChange> for ReplyChanges {
    fn extend<T: IntoIterator<Item = ReplyChange>>(&mut self, changes: T) {
        changes.into_iter().for_each(|change| self.0 |= 1 << change as u8);
    }
}

impl std::ops::BitOr for ReplyChanges {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Serialize for ReplyChanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for ReplyChanges {
    /// Reads the names. A name of a later version is ignored.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let mut changes = Self::default();
        changes.extend(ReplyChange::ALL.into_iter().filter(|change| names.iter().any(|name| name == change.name())));
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_encoding_and_unknown_ones_are_ignored() {
        let mut changes = ReplyChanges::default();
        assert!(changes.is_empty());
        changes.extend([ReplyChange::CallRewritten, ReplyChange::NameAdded]);
        let written = serde_json::to_string(&changes).unwrap();
        assert_eq!(written, r#"["name_added","call_rewritten"]"#);
        assert_eq!(serde_json::from_str::<ReplyChanges>(&written).unwrap(), changes);
        let later = r#"["name_added","of_a_later_version","call_rewritten"]"#;
        assert_eq!(serde_json::from_str::<ReplyChanges>(later).unwrap(), changes);
    }
}
