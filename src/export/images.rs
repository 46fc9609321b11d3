// SPDX-License-Identifier: Apache-2.0
//! The pictures of exported rows.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::text::Text;
use super::{ExportImages, Lack};
use crate::images::{Image, ImageDigest};
use crate::session::{Path, PathImage, Row, Turn, TurnImage};

/// The limit of the bytes of a row's pictures, if they are embedded: a row is in memory while it is written.
pub(super) const MAX_EMBEDDED: u64 = 256 << 20;

/// Copies of a row's pictures while it is written as text or as arrays: the values, base64 or a message of them, and the bytes to send.
const COPIES: u64 = 4;

/// Whether an export of this kind has a place for the pictures of a turn, or the name of the problem.
pub(super) fn check(turn: &Turn, place: Option<ExportImages>) -> Result<(), &'static str> {
    let Some(images) = &turn.about.images else { return Ok(()) };
    // a trainer would compute other logprobs from the ids alone
    let place = place.ok_or("images_unsupported")?;
    let mut end = 0;
    for image in &images.list {
        // the numbers of a damaged log may have any size
        let start = image.start as usize;
        let range = start..start + image.tokens as usize;
        if range.start < end || range.is_empty() || range.end > turn.prompt.len() {
            return Err("images_mismatch");
        }
        end = range.end;
    }
    if place == ExportImages::Embed && lacks_bytes(turn) { Err(Lack::Images.name()) } else { Ok(()) }
}

/// The ids that stand for pictures in these turns: one for each model, none without pictures.
pub(super) fn placeholders<'a>(turns: impl Iterator<Item = &'a Turn>) -> Vec<u32> {
    let mut found = Vec::new();
    for turn in turns {
        let images = turn.about.images.iter().flat_map(|images| &images.list);
        for id in images.filter_map(|image| turn.prompt.get(image.start as usize)) {
            if !found.contains(id) {
                found.push(*id);
            }
        }
    }
    found
}

/// Whether a turn whose pictures are in their places has a placeholder that is of none, such as one that the model sampled. The model of a
/// trainer takes features of a picture for each.
pub(super) fn has_stray(turn: &Turn, placeholders: &[u32]) -> bool {
    if placeholders.is_empty() {
        return false;
    }
    let has_any = |ids: &[u32]| ids.iter().any(|id| placeholders.contains(id));
    let mut end = 0;
    for image in turn.about.images.iter().flat_map(|images| &images.list) {
        let start = image.start as usize;
        if has_any(&turn.prompt[end..start]) {
            return true;
        }
        end = start + image.tokens as usize;
    }
    has_any(&turn.prompt[end..]) || has_any(&turn.response)
}

/// Whether the bytes of a picture of the turn are not known.
pub(super) fn lacks_bytes(turn: &Turn) -> bool {
    turn.about.images.iter().flat_map(|images| &images.list).any(|image| image.image.bytes.is_none())
}

/// The rows with a picture whose bytes are not known. Each turn is visited once, not once for each row that holds it.
pub(super) fn rows_without_bytes(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.chunk_by(Row::shares_turns).flat_map(|session| {
        let turns = session[0].turns();
        let has_any = turns.iter().any(|turn| lacks_bytes(turn));
        let mut lacks: Vec<bool> = Vec::new();
        for turn in turns.iter().filter(|_| has_any) {
            let before = turn.parent.is_some_and(|parent| lacks[parent as usize]);
            lacks.push(before || lacks_bytes(turn));
        }
        session.iter().filter(move |row| has_any && lacks[row.leaf() as usize])
    })
}

/// The bytes that the pictures of a row take while it is written with them: of the row with the most.
pub(super) fn memory(rows: &[Row], images: ExportImages) -> u64 {
    if images != ExportImages::Embed {
        return 0;
    }
    let most = rows.chunk_by(Row::shares_turns).filter_map(|session| {
        // the pictures of each path
        let mut bytes: Vec<u64> = Vec::new();
        for turn in session[0].turns() {
            let before = turn.parent.map_or(0, |parent| bytes[parent as usize]);
            let of_turn = turn.about.images.iter().flat_map(|images| &images.list).map(|image| image.image.size);
            // the sizes of a damaged log may be any numbers
            bytes.push(of_turn.fold(before, u64::saturating_add));
        }
        session.iter().map(|row| bytes[row.leaf() as usize]).max()
    });
    most.max().unwrap_or(0).saturating_mul(COPIES)
}

/// The pictures of the rows, each once.
pub(super) fn distinct(rows: &[Row]) -> Vec<Arc<Image>> {
    let mut known: BTreeMap<ImageDigest, usize> = BTreeMap::new();
    let sessions = rows.chunk_by(Row::shares_turns);
    let mut images = Vec::new();
    for session in sessions {
        // the turns of each row that no earlier row of the session holds
        let mut seen = vec![false; session[0].turns().len()];
        for row in session {
            let new: Vec<&Arc<Turn>> =
                row.upwards().take_while(|turn| !std::mem::replace(&mut seen[turn.id as usize], true)).collect();
            let new = new.into_iter().rev().flat_map(|turn| &turn.about.images).flat_map(|images| &images.list);
            for TurnImage { image, .. } in new {
                match known.get(&image.digest) {
                    // another session may have the bytes of a picture of which this one has only the digest
                    Some(at) if image.bytes.is_some() => images[*at] = Arc::clone(image),
                    Some(_) => {}
                    None => {
                        known.insert(image.digest, images.len());
                        images.push(Arc::clone(image));
                    }
                }
            }
        }
    }
    images
}

/// The settings with which the pictures of a path were processed; `None` if they are not known, or are not the same for all.
pub(crate) fn settings(path: &Path) -> Option<&Arc<str>> {
    let mut all = path.images().map(|image| image.settings);
    let first = all.next()??;
    all.all(|settings| settings.is_some_and(|settings| settings == first)).then_some(first)
}

/// The tokens of a row from a cut at its start to a cut at its end, without a part of a picture: a prompt begins after a picture that is cut,
/// and a response ends before the turn whose prompt has it, the rest of which is context that nothing follows.
pub(super) fn without_parts(row: &Row, mut kept: Range<usize>) -> Range<usize> {
    let mut start = row.len();
    if kept == (0..start) {
        return kept;
    }
    let end = kept.end;
    for turn in row.upwards() {
        start -= turn.prompt.len() + turn.response.len();
        if turn.parent.is_none() {
            kept.start = start_of_prompt(turn, kept.start);
        } else if turn.images(start).any(|image| image.tokens.contains(&end)) {
            kept.end = start;
        }
    }
    kept
}

/// The first token from `cut` on of the prompt of a root that is of no picture of which `cut` takes away a token or the start: trainers count
/// pictures by the token before them.
pub(super) fn start_of_prompt(root: &Turn, cut: usize) -> usize {
    let images = root.images(0).filter(|_| cut > 0);
    images.fold(cut, |cut, image| if image.tokens.contains(&cut) { image.tokens.end } else { cut })
}

/// Writes a reference to a picture, with the positions of its tokens.
pub(super) fn write(image: &PathImage<'_>, tokens: Range<usize>, list: &mut Text) {
    list.object(|text| {
        text.key("sha256").string(&image.image.digest.to_string());
        text.key("media_type").string(image.image.media_type.name());
        text.key("bytes").integer(image.image.size);
        text.key("start").integer(tokens.start);
        text.key("end").integer(tokens.end);
        text.key("turn").integer(image.turn);
        text.key("available").literal(if image.image.bytes.is_some() { "true" } else { "false" });
    });
}

/// Writes settings as JSON text in a string, or null.
pub(super) fn write_settings(settings: Option<&Arc<str>>, text: &mut Text) {
    text.maybe_string(settings.map(|settings| &**settings));
}

/// Writes references to the pictures of a path and the settings of their processor, if the path has pictures.
pub(super) fn describe(path: &Path, text: &mut Text) {
    if path.images().next().is_none() {
        return;
    }
    text.key("images").array(|list| {
        path.images().for_each(|image| write(&image, image.tokens.clone(), list));
    });
    write_settings(settings(path), text.key("image_settings"));
}
