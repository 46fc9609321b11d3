// SPDX-License-Identifier: Apache-2.0
//! Compares text and ids with the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use tokentap::tokenizer::template::{ChatTemplate, RenderError};
use tokentap::tokenizer::{Folder, Tokenizer};

use super::record::{self, Line, Record, RecordedConversation, at_the_recorded_time};

/// The allowed deviations: template, conversations and reason. An entry that no longer deviates fails the test.
const EXCEPTIONS: &[(&str, &[&str], &str)] = &[
    (
        "functionary-medium-v3.1",
        WITH_TOOLS,
        "Python escapes HTML in text that is added to a safe string; minijinja's + does not",
    ),
    (
        "literals",
        ALL,
        "~ formats list literals of the template and numbers above 1e16 as Rust does, not as Python does",
    ),
];

/// Every conversation.
const ALL: &[&str] = &[];

/// The conversations with tools.
const WITH_TOOLS: &[&str] = &[
    "tools",
    "tools-flat",
    "tools-definitions",
    "call",
    "parallel",
    "call-then-user",
    "thinking-call",
    "thinking-call-then-user",
    "system-empty",
    "content-null",
    "continued-thinking",
    "schema",
    "arguments",
    "arguments-text",
    "effort",
];

/// The counts of one kind of templates.
#[derive(Debug, Default)]
struct Counts {
    templates: usize,
    /// Equal text and ids, with the template's own tokenizer.
    own_ids: usize,
    /// Equal text and ids, with the tokenizer of another model.
    other_ids: usize,
    /// Rendering fails, as recorded.
    raised: usize,
    deviating: usize,
}

/// The comparison of this program with the record.
#[derive(Debug, Default)]
struct Comparison {
    counts: BTreeMap<String, Counts>,
    deviations: Vec<(String, String, String)>,
    /// Names of what was compared.
    compared: BTreeSet<String>,
    conversations: Vec<String>,
}

impl Comparison {
    fn compare(
        &mut self,
        record: &Record,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        conversations: &[RecordedConversation],
    ) {
        let counts = self.counts.entry(record.kind.clone()).or_default();
        counts.templates += 1;
        self.compared.insert(record.template.clone());
        self.conversations = conversations.iter().map(|conversation| conversation.name.clone()).collect();
        for conversation in conversations {
            match deviation(record, conversation, template, tokenizer) {
                Some(how) => {
                    counts.deviating += 1;
                    self.deviations.push((record.template.clone(), conversation.name.clone(), how));
                }
                None if matches!(record.line(&conversation.name), Line::Raised { .. }) => counts.raised += 1,
                None if record.has_own_tokenizer() => counts.own_ids += 1,
                None => counts.other_ids += 1,
            }
        }
    }

    /// Prints the counts, and fails if a deviation has no exception.
    fn judge(&self) {
        println!(
            "{:<10} {:>9} {:>8} {:>9} {:>7} {:>9}",
            "kind", "templates", "own ids", "other ids", "raised", "deviating"
        );
        for (kind, Counts { templates, own_ids, other_ids, raised, deviating }) in &self.counts {
            println!("{kind:<10} {templates:>9} {own_ids:>8} {other_ids:>9} {raised:>7} {deviating:>9}");
        }
        let mut excused = BTreeSet::new();
        let mut left = String::new();
        for (template, conversation, how) in &self.deviations {
            let excuses = |(name, which, _): &&(&str, &[&str], &str)| {
                name == template && (which.is_empty() || which.contains(&conversation.as_str()))
            };
            match EXCEPTIONS.iter().find(excuses) {
                Some(_) => drop(excused.insert((template.as_str(), conversation.as_str()))),
                None => writeln!(left, "{template} {conversation}: {how}").unwrap(),
            }
        }
        for (template, which, _) in EXCEPTIONS.iter().filter(|(template, ..)| self.compared.contains(*template)) {
            let which =
                if which.is_empty() { self.conversations.iter().map(String::as_str).collect() } else { which.to_vec() };
            for conversation in which.into_iter().filter(|conversation| !excused.contains(&(*template, *conversation)))
            {
                writeln!(left, "{template} {conversation}: deviates no longer and needs no exception").unwrap();
            }
        }
        assert!(left.is_empty(), "{} deviations:\n{left}", left.lines().count());
    }
}

/// How one conversation differs from its record.
fn deviation(
    record: &Record,
    conversation: &RecordedConversation,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Option<String> {
    let rendered = conversation.render(template);
    assert_eq!(
        rendered,
        conversation.render(template),
        "{} {}: rendering is deterministic",
        record.template,
        conversation.name
    );
    match (record.line(&conversation.name), rendered) {
        (Line::Raised { error, message }, Err(RenderError::Refused(refusal))) if error == "TemplateError" => {
            (*message != refusal).then(|| format!("refused with {refusal:?}, recorded {message:?}"))
        }
        (Line::Raised { error, message }, Err(RenderError::Refused(refusal))) => {
            Some(format!("refused with {refusal:?}, recorded {error}: {message}"))
        }
        (Line::Raised { error, message }, Err(failed)) if error == "TemplateError" => {
            Some(format!("{failed}; recorded as refused: {message}"))
        }
        (Line::Raised { .. }, Err(_)) => None,
        (Line::Raised { error, message }, Ok(text)) => {
            let end: String = text.chars().rev().take(60).collect();
            Some(format!("rendered …{:?}, recorded {error}: {message}", end.chars().rev().collect::<String>()))
        }
        (Line::Rendered { .. }, Err(error)) => Some(error.to_string()),
        (Line::Rendered { chars, sha256, ids, ids_sha256 }, Ok(text)) => {
            if *sha256 != record::sha256(&text) || *chars != text.chars().count() {
                let place = record
                    .text(&conversation.name)
                    .map_or_else(|| format!("text {text:?}"), |other| place(&text, &other));
                return Some(format!("{} characters, recorded {chars}: {place}", text.chars().count()));
            }
            let encoded = tokenizer.encode_rendered(&text).unwrap();
            let hashed = || record::sha256(&encoded.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
            match (ids, ids_sha256) {
                (Some(ids), _) => {
                    let at = ids.iter().zip(&encoded).position(|(a, b)| a != b);
                    (*ids != encoded)
                        .then(|| format!("{} ids, recorded {}, first differing at {at:?}", encoded.len(), ids.len()))
                }
                (None, Some(recorded)) => (*recorded != hashed()).then(|| "other ids".to_owned()),
                (None, None) => panic!("{} {}: a text is recorded with its ids", record.template, conversation.name),
            }
        }
    }
}

/// The first difference of two texts.
fn place(ours: &str, recorded: &str) -> String {
    let same = ours.chars().zip(recorded.chars()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.chars().skip(same.saturating_sub(30)).take(90).collect::<String>();
    format!("from character {same} on: {:?}, recorded {:?}", around(ours), around(recorded))
}

fn compare(records: &[Record]) -> Comparison {
    let (conversations, in_folders) = (record::conversations(), record::in_folders());
    let mut tokenizers: BTreeMap<&str, Tokenizer> = BTreeMap::new();
    let mut comparison = Comparison::default();
    for record in records {
        if in_folders.contains(&record.template) {
            // through the same function as the server
            let folder = Folder::open(&record.folder()).unwrap();
            let for_tools = record.template.ends_with("-tool-use");
            let template = folder.tool_template.as_ref().filter(|_| for_tools).unwrap_or(&folder.template);
            comparison.compare(record, template, &folder.tokenizer, &conversations);
            continue;
        }
        let tokenizer = tokenizers
            .entry(record.tokenizer())
            .or_insert_with(|| Tokenizer::from_bytes(&record::read(&record.folder().join("tokenizer.json"))).unwrap());
        comparison.compare(record, &record.compiled(), tokenizer, &conversations);
    }
    comparison
}

#[test]
fn synthetic_templates_render_as_in_transformers() {
    at_the_recorded_time("rendering::synthetic_templates_render_as_in_transformers", || {
        compare(&record::records(true)).judge()
    });
}

#[test]
#[ignore = "needs what tests/templates/run.sh fetches"]
fn model_templates_render_as_in_transformers() {
    at_the_recorded_time("rendering::model_templates_render_as_in_transformers", || {
        compare(&record::records(false)).judge();
    });
}
