//! The classes of turns that an export trains.

use super::{RequestClass, Turn};

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
            Some(RequestClass::Main) => 1 << 1,
            Some(RequestClass::Subagent) => 1 << 2,
            Some(RequestClass::Compaction) => 1 << 3,
            Some(RequestClass::Auxiliary) => 1 << 4,
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
                    return Err(format!("{name:?} is none of {names}, {UNLABELLED}, all"));
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
pub(super) fn exclusion(class: Option<RequestClass>) -> &'static str {
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
            Err(r#""Main" is none of main, subagent, compaction, auxiliary, unlabelled, all"#.to_owned())
        );
    }
}
