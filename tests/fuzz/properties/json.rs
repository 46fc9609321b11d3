// SPDX-License-Identifier: Apache-2.0
//! The JSON cursor and the parser of an object's members.

use tokentap::json::{Cursor, MAX_DEPTH, Malformed, Object};

use super::grammar::{Members, Plain, shown};

/// tokentap accepts a text exactly if `serde_json` does, and finds the same members.
pub fn json(bytes: &[u8]) {
    let plain = Plain::new(bytes);
    let mut cursor = Cursor::new(bytes);
    let read = cursor.skip().and_then(|span| cursor.end().map(|()| span));
    agrees(&read, plain.is_json(), &plain, bytes);
    if let Ok(span) = read {
        let blank = |byte: &u8| b" \t\r\n".contains(byte);
        let start = bytes.iter().position(|byte| !blank(byte)).unwrap();
        let end = bytes.iter().rposition(|byte| !blank(byte)).unwrap();
        assert_eq!(span, start..end + 1, "{}", shown(bytes));
        assert_eq!(cursor.non_finite().is_some(), plain.is_non_finite(), "{}", shown(bytes));
    }

    let object = Object::parse(bytes);
    agrees(&object, plain.is_object(), &plain, bytes);
    if let (Ok(object), Ok(Members(theirs))) = (object, serde_json::from_slice(bytes)) {
        let ours = object.members.iter().map(|member| {
            let key = object.key(bytes, member).decode().into_owned();
            (key, std::str::from_utf8(&bytes[member.value.clone()]).unwrap())
        });
        let wanted = theirs.iter().map(|(key, value)| (key.clone(), value.get()));
        assert!(ours.eq(wanted), "{}", shown(bytes));
        for (name, _) in &theirs {
            let last = theirs.iter().rev().find(|(key, _)| key == name).unwrap().1.get();
            assert_eq!(object.get(bytes, name), Some(last.as_bytes()), "{}", shown(bytes));
        }
    }
}

/// Asserts that accepted text is JSON, and that rejected text is not JSON or nests too deeply.
pub(super) fn agrees<T>(read: &Result<T, Malformed>, theirs: bool, plain: &Plain, bytes: &[u8]) {
    match read {
        Ok(_) => assert!(theirs, "accepted, but it is not JSON: {}", shown(bytes)),
        Err(error) => {
            assert!(error.at <= bytes.len(), "{error}: {}", shown(bytes));
            let deep = error.too_deep && plain.depth() > MAX_DEPTH;
            assert!(deep || !theirs, "rejected with {error}, but it is JSON: {}", shown(bytes));
        }
    }
}
