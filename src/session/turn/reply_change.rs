// SPDX-License-Identifier: Apache-2.0
//! What a client changed in a reply of the session before it returned the reply.

use serde::{Deserialize, Serialize};

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_has_the_names_of_its_changes() {
        let mut changes = ReplyChanges::default();
        assert!(changes.is_empty());
        changes.extend([ReplyChange::CallRewritten, ReplyChange::NameAdded]);
        assert_eq!(changes.names().collect::<Vec<_>>(), ["name_added", "call_rewritten"]);
    }
}
