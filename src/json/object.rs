// SPDX-License-Identifier: Apache-2.0
//! The members of a JSON object: read, written, and edited, which replaces, removes and appends members.

use std::ops::Range;

use smallvec::SmallVec;

use super::names::hash;
use super::{Cursor, Malformed, Names, Splice, Text};

/// The position of one member in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The range of the key, quotes included.
    pub key: Range<usize>,
    /// The range of the value.
    pub value: Range<usize>,
    /// The key contains a backslash.
    escaped: bool,
    /// The [`hash`] of the key as it is in the text.
    hash: u8,
}

/// The positions of the members of one JSON object in its text, in order, repeated keys included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// The members in the order of the text.
    pub members: Vec<Member>,
    /// The range of the whole object, braces included.
    pub span: Range<usize>,
}

impl Object {
    /// Parses `bytes`, which must be one object.
    ///
    /// # Errors
    /// When `bytes` is not one JSON object.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let object = Self::read(&mut cursor, |_, cursor| cursor.skip().map(drop))?;
        cursor.end()?;
        Ok(object)
    }

    /// Parses the object at the cursor. Calls `value` with each key and the cursor at its value; `value` must consume the value.
    ///
    /// # Errors
    /// When the text at the cursor is not an object, or `value` fails.
    pub fn read<'a, F>(cursor: &mut Cursor<'a>, mut value: F) -> Result<Self, Malformed>
    where
        F: FnMut(Text<'a>, &mut Cursor<'a>) -> Result<(), Malformed>,
    {
        cursor.peek();
        let mut object = Self { members: Vec::with_capacity(40), span: cursor.position()..0 };
        for_each_member(cursor, |key, key_range, cursor| {
            let start = cursor.position();
            value(key, cursor)?;
            let value = start..cursor.position();
            object.members.push(Member { key: key_range, value, escaped: key.escaped, hash: hash(key.raw) });
            Ok(())
        })?;
        object.span.end = cursor.position();
        Ok(object)
    }

    /// The key of a member.
    #[inline]
    #[must_use]
    pub fn key<'a>(&self, bytes: &'a [u8], member: &Member) -> Text<'a> {
        Text { raw: &bytes[member.key.start + 1..member.key.end - 1], escaped: member.escaped }
    }

    /// Whether the key of a member is one of `names`.
    #[inline]
    #[must_use]
    pub(crate) fn is_one_of<const N: usize>(&self, bytes: &[u8], member: &Member, names: &Names<N>) -> bool {
        (member.escaped || names.may_contain(member.hash)) && names.contains(&self.key(bytes, member))
    }

    /// The text of the value of `name`. The last of repeated keys counts, as in Python.
    #[must_use]
    pub fn get<'a>(&self, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
        Some(&bytes[self.value_span(bytes, name)?])
    }

    /// The range of the value of `name`. The last of repeated keys counts.
    #[must_use]
    pub fn value_span(&self, bytes: &[u8], name: &str) -> Option<Range<usize>> {
        let hash = hash(name.as_bytes());
        let is = |member: &&Member| (member.escaped || member.hash == hash) && self.key(bytes, member).is(name);
        self.members.iter().rev().find(is).map(|member| member.value.clone())
    }
}

/// Consumes the object at the cursor. Calls `each` with each key, its range with quotes, and the cursor at its value; `each` must consume the
/// value.
///
/// # Errors
/// When the text at the cursor is not an object, or `each` fails.
pub fn for_each_member<'a, F>(cursor: &mut Cursor<'a>, mut each: F) -> Result<(), Malformed>
where
    F: FnMut(Text<'a>, Range<usize>, &mut Cursor<'a>) -> Result<(), Malformed>,
{
    cursor.expect(b'{')?;
    if cursor.take(b'}') {
        return Ok(());
    }
    loop {
        let key = cursor.string()?;
        let key_range = cursor.position() - key.raw.len() - 2..cursor.position();
        cursor.expect(b':')?;
        cursor.peek();
        each(key, key_range, cursor)?;
        if cursor.take(b'}') {
            return Ok(());
        }
        cursor.expect(b',')?;
    }
}

/// Writes members of a JSON object and the commas between them.
#[derive(Debug)]
pub struct MemberWriter<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> MemberWriter<'a> {
    /// A writer after the opening brace.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: true }
    }

    /// A writer after other members of the object.
    pub fn after_members(out: &'a mut Vec<u8>) -> Self {
        Self { out, first: false }
    }

    /// Writes a member. `value` is JSON text.
    pub fn put(&mut self, name: &str, value: &[u8]) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out.extend_from_slice(value);
    }
}

/// Whether an edit keeps a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberChange {
    Kept,
    Removed,
}

/// An edit of one object: replaces, removes and appends members. All other bytes stay unchanged.
#[derive(Debug)]
pub struct Edit<'a> {
    bytes: &'a [u8],
    object: &'a Object,
    /// By member of `object`.
    changes: SmallVec<[MemberChange; 48]>,
    /// The range of each replaced value, and the new value.
    replaced: Vec<(Range<usize>, Vec<u8>)>,
    /// The text of the appended members, with a comma before each.
    appended: Vec<u8>,
}

impl<'a> Edit<'a> {
    /// An edit without changes.
    #[must_use]
    pub fn new(bytes: &'a [u8], object: &'a Object) -> Self {
        Self {
            bytes,
            object,
            changes: SmallVec::from_elem(MemberChange::Kept, object.members.len()),
            replaced: Vec::new(),
            appended: Vec::new(),
        }
    }

    /// Sets the value of `name`. Replaces the last of repeated keys and removes the others. Appends the member if the key is missing.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.set_with(name, value.len(), |out| out.extend_from_slice(value));
    }

    /// The same; `write` writes the value. `length` is its expected length in bytes.
    pub fn set_with(&mut self, name: &str, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let mut replaced = None;
        for at in (0..self.object.members.len()).rev() {
            let member = &self.object.members[at];
            if !self.object.key(self.bytes, member).is(name) {
                continue;
            }
            match &replaced {
                Some(_) => self.changes[at] = MemberChange::Removed,
                None => replaced = Some(member.value.clone()),
            }
        }
        match replaced {
            Some(range) => {
                let mut value = Vec::with_capacity(length);
                write(&mut value);
                self.replaced.push((range, value));
            }
            None => self.append_with(name, length, write),
        }
    }

    /// Appends a member after the last one. `name` is plain ASCII without escapes.
    pub fn append(&mut self, name: &str, value: &[u8]) {
        self.append_with(name, value.len(), |out| out.extend_from_slice(value));
    }

    /// Appends a member whose value `write` writes. `length` is the expected length of the value in bytes.
    pub fn append_with(&mut self, name: &str, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let added = name.len() + length + 4;
        if self.appended.capacity() == 0 {
            // one allocation for the usual number of short members
            self.appended.reserve(added.max(384));
        }
        self.appended.reserve(added);
        self.appended.extend_from_slice(b",\"");
        self.appended.extend_from_slice(name.as_bytes());
        self.appended.extend_from_slice(b"\":");
        write(&mut self.appended);
    }

    /// Removes every member whose key matches.
    pub fn remove(&mut self, matches: impl Fn(&Text<'_>) -> bool) {
        for (member, change) in self.object.members.iter().zip(&mut self.changes) {
            if matches(&self.object.key(self.bytes, member)) {
                *change = MemberChange::Removed;
            }
        }
    }

    /// Removes every member whose key is one of `names`.
    pub(crate) fn remove_names<const N: usize>(&mut self, names: &Names<N>) {
        for (member, change) in self.object.members.iter().zip(&mut self.changes) {
            if self.object.is_one_of(self.bytes, member, names) {
                *change = MemberChange::Removed;
            }
        }
    }

    /// The value of a member after the edit: the new value, or the old value with `cuts` applied. `None` if the edit removes the member.
    #[must_use]
    pub fn value(&self, member: &Member, cuts: &Splice) -> Option<Vec<u8>> {
        let at = self.object.members.iter().position(|candidate| candidate == member)?;
        if self.changes[at] == MemberChange::Removed {
            return None;
        }
        let replaced = self.replaced.iter().find(|(range, _)| *range == member.value);
        Some(replaced.map_or_else(|| cuts.within(self.bytes, member.value.clone()), |(_, value)| value.clone()))
    }

    /// Adds the edit to `splice` as cuts and insertions.
    pub fn finish(self, splice: &mut Splice) {
        let removed = self.changes.iter().filter(|change| **change == MemberChange::Removed).count();
        splice.reserve(self.replaced.len() + removed + usize::from(!self.appended.is_empty()));
        for (range, value) in self.replaced {
            splice.replace(range, value);
        }
        let (members, changes) = (&self.object.members, &self.changes[..]);
        let first_kept = changes.iter().position(|change| *change == MemberChange::Kept);
        // leading members are removed with the comma after them, later ones with the comma before them
        match first_kept {
            Some(first) => {
                if first > 0 {
                    splice.cut(members[0].key.start..members[first].key.start);
                }
                for at in first + 1..members.len() {
                    if changes[at] == MemberChange::Removed {
                        splice.cut(members[at - 1].value.end..members[at].value.end);
                    }
                }
            }
            None => {
                if let (Some(head), Some(tail)) = (members.first(), members.last()) {
                    splice.cut(head.key.start..tail.value.end);
                }
            }
        }
        if !self.appended.is_empty() {
            let mut appended = self.appended;
            let at = if first_kept.is_some() {
                members.last().map_or(self.object.span.start + 1, |member| member.value.end)
            } else {
                appended.remove(0);
                members.last().map_or(self.object.span.start + 1, |member| member.value.end)
            };
            splice.insert(at, appended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edited(text: &str, change: impl FnOnce(&mut Edit<'_>)) -> String {
        let object = Object::parse(text.as_bytes()).unwrap();
        let mut edit = Edit::new(text.as_bytes(), &object);
        change(&mut edit);
        let mut splice = Splice::default();
        edit.finish(&mut splice);
        String::from_utf8(splice.apply(text.as_bytes())).unwrap()
    }

    #[test]
    fn set_replaces_the_last_of_repeated_keys_and_removes_the_others() {
        let text = r#"{"a": 1, "b" :2,"a":3,"c":[1,2 ]}"#;
        assert_eq!(edited(text, |edit| edit.set("a", b"9")), r#"{"b" :2,"a":9,"c":[1,2 ]}"#);
        assert_eq!(Object::parse(text.as_bytes()).unwrap().get(text.as_bytes(), "a"), Some(&b"3"[..]));
    }

    #[test]
    fn escaped_key_matches_the_unescaped_name() {
        assert_eq!(edited("{\"\\u0061\":1}", |edit| edit.set("a", b"2")), "{\"\\u0061\":2}");
    }

    #[test]
    fn appended_member_comes_last_in_any_object() {
        assert_eq!(edited("{}", |edit| edit.append("a", b"1")), "{\"a\":1}");
        assert_eq!(edited("{ }", |edit| edit.append("a", b"1")), "{\"a\":1 }");
        assert_eq!(edited(r#"{"x":0}"#, |edit| edit.append("a", b"1")), r#"{"x":0,"a":1}"#);
        let all = |edit: &mut Edit<'_>| {
            edit.remove(|_| true);
            edit.append("a", b"1");
        };
        assert_eq!(edited(r#"{"x":0,"y":1}"#, all), r#"{"a":1}"#);
    }

    proptest! {
        #[test]
        fn remove_keeps_all_other_members(names in prop::collection::vec("[a-d]", 0..8), first_removed in "[a-d]", second_removed in "[a-d]") {
            let text = format!("{{{}}}", names.iter().enumerate().map(|(at, name)| format!("\"{name}\":{at}")).collect::<Vec<_>>().join(","));
            let remaining = edited(&text, |edit| { edit.remove(|key| key.is(&first_removed)); edit.remove(|key| key.is(&second_removed)); });
            let expected = format!("{{{}}}", names.iter().enumerate().filter(|(_, name)| **name != first_removed && **name != second_removed).map(|(at, name)| format!("\"{name}\":{at}")).collect::<Vec<_>>().join(","));
            prop_assert_eq!(remaining, expected);
        }

        #[test]
        fn set_leaves_one_member_with_the_key(names in prop::collection::vec("[a-d]", 0..8), set in "[a-d]") {
            let text = format!("{{{}}}", names.iter().enumerate().map(|(at, name)| format!("\"{name}\":{at}")).collect::<Vec<_>>().join(","));
            let edited_text = edited(&text, |edit| edit.set(&set, b"\"new\""));
            prop_assert_eq!(edited_text.matches(&format!("\"{set}\":")).count(), 1);
            let value: serde_json::Value = serde_json::from_str(&edited_text).unwrap();
            prop_assert_eq!(&value[&set], "new");
        }
    }
}
