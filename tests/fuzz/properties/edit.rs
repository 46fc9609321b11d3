// SPDX-License-Identifier: Apache-2.0
//! Edits of a JSON object: untouched members keep their bytes.

use tokentap::json::{Edit, Object, Splice};

use super::grammar::shown;

/// The input is a line of operations, then the object: each byte of the line removes a member, sets one, or appends one.
pub fn edit(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let (operations, text) = (&bytes[..end], &bytes[end + 1..]);
    let Ok(object) = Object::parse(text) else { return };
    let name = |at: usize| object.key(text, &object.members[at]).decode().into_owned();
    let raw = |range: &std::ops::Range<usize>| text[range.clone()].to_vec();
    // (name, raw key, raw value)
    let all = 0..object.members.len();
    let mut wanted: Vec<(String, Vec<u8>, Vec<u8>)> =
        all.map(|at| (name(at), raw(&object.members[at].key), raw(&object.members[at].value))).collect();
    let (mut edit, mut touched) = (Edit::new(text, &object), Vec::<String>::new());
    for (number, operation) in operations.iter().take(16).enumerate() {
        let fresh = format!("fresh-{number}");
        let known = object.members.len().checked_sub(1).map(|last| name(usize::from(operation / 3) % (last + 1)));
        // an edit names members that tokentap knows, each once
        let known =
            known.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !touched.contains(name));
        let value = format!("[{number} ]").into_bytes();
        match (operation % 3, known) {
            (0, Some(name)) => {
                edit.remove(|key| key.is(&name));
                wanted.retain(|(other, ..)| *other != name);
                touched.push(name);
            }
            (1, Some(name)) => {
                edit.set(&name, &value);
                let last = wanted.iter().rposition(|(other, ..)| *other == name).unwrap();
                wanted[last].2 = value;
                let mut at = 0..;
                wanted.retain(|(other, ..)| at.next() == Some(last) || *other != name);
                touched.push(name);
            }
            (2, _) if wanted.iter().all(|(other, ..)| *other != fresh) => {
                edit.set(&fresh, &value);
                let key = format!("\"{fresh}\"").into_bytes();
                wanted.push((fresh.clone(), key, value));
                touched.push(fresh);
            }
            _ => {}
        }
    }
    let mut splice = Splice::default();
    edit.finish(&mut splice);
    let made = splice.apply(text);
    if touched.is_empty() {
        assert_eq!(made, text, "no edit, no change");
    }
    let read = Object::parse(&made).unwrap_or_else(|error| panic!("{error}: {} of {}", shown(&made), shown(bytes)));
    let got = read.members.iter().map(|member| (&made[member.key.clone()], &made[member.value.clone()]));
    let wanted = wanted.iter().map(|(_, key, value)| (&key[..], &value[..]));
    assert!(got.eq(wanted), "{} of {}", shown(&made), shown(bytes));
    assert_eq!(made[..=read.span.start], text[..=object.span.start], "the bytes before the first member are unchanged");
    assert_eq!(made[read.span.end - 1..], text[object.span.end - 1..], "the bytes after the object are unchanged");
}
