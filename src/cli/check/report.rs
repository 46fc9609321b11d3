// SPDX-License-Identifier: Apache-2.0
//! The lines of the report, as text, as a table for the terminal, or as JSON.

use serde::Serialize;

use crate::cli::terminal::{Palette, printable};

/// The verdict of a line of the report. The overall verdict is the worst one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// The columns before the text of a line: the mark, the name and the gaps.
const INDENT: usize = 19;

/// The smallest width of the text. A narrower terminal breaks lines itself.
const NARROWEST: usize = 20;

#[derive(Debug, Serialize)]
struct Line {
    name: String,
    verdict: Verdict,
    text: String,
}

/// The report, which grows line by line.
#[derive(Debug, Default)]
pub(super) struct Report {
    lines: Vec<Line>,
}

impl Report {
    pub(super) fn line(&mut self, verdict: Verdict, name: &str, text: impl AsRef<str>) {
        self.lines.push(Line { name: name.to_owned(), verdict, text: text.as_ref().to_owned() });
    }

    /// Whether a line has the verdict [`Verdict::Fail`].
    pub(super) fn has_failed(&self) -> bool {
        self.verdict() == Verdict::Fail
    }

    fn verdict(&self) -> Verdict {
        self.lines.iter().map(|line| line.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// A line of text for each line. With a width, texts are wrapped to it; with colours, marks are coloured.
    pub(super) fn text(&self, palette: Palette, width: Option<usize>) -> String {
        let line = |line: &Line| {
            let (mark, colour) = match line.verdict {
                Verdict::Ok => ("ok  ", "32"),
                Verdict::Warn => ("warn", "33"),
                Verdict::Fail => ("FAIL", "1;31"),
            };
            // an engine's name or path must not make another line, or control the terminal
            let text = printable(&line.text.replace(['\n', '\r', '\t'], " "));
            let text = match width.map(|width| width.saturating_sub(INDENT)) {
                Some(room) if room >= NARROWEST => wrap(&text, room).join(&format!("\n{}", " ".repeat(INDENT))),
                _ => text,
            };
            format!("{}  {:<12} {text}\n", palette.attribute(colour, mark), line.name)
        };
        self.lines.iter().map(line).collect()
    }

    /// One JSON object: `verdict`, and `lines` with `name`, `verdict` and `text`.
    pub(super) fn json(&self) -> String {
        serde_json::json!({"verdict": self.verdict(), "lines": self.lines}).to_string() + "\n"
    }
}

/// Breaks a text between words, so that each line has at most `room` characters unless a word is longer.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("a line exists");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.line(Verdict::Ok, "model", "tokentap-demo");
        report.line(Verdict::Warn, "vocabulary", "unknown: only lower bounds can be given; set --vocab-size");
        report
    }

    #[test]
    fn texts_cannot_make_lines_or_control_the_terminal() {
        let mut report = Report::default();
        report.line(Verdict::Fail, "model", "/m\x1b]0;owned\x07\nok    injected    line");
        assert_eq!(
            report.text(Palette::Plain, None),
            "FAIL  model        /m<U+001B>]0;owned<U+0007> ok    injected    line\n"
        );
    }

    #[test]
    fn plain_text_has_one_line_for_each_finding() {
        let text = report().text(Palette::Plain, None);
        assert_eq!(
            text,
            "ok    model        tokentap-demo\n\
             warn  vocabulary   unknown: only lower bounds can be given; set --vocab-size\n"
        );
    }

    #[test]
    fn text_is_wrapped_below_itself_in_a_terminal() {
        let text = report().text(Palette::Indexed, Some(50));
        let expected = "\x1b[32mok  \x1b[0m  model        tokentap-demo\n\
                        \x1b[33mwarn\x1b[0m  vocabulary   unknown: only lower bounds can\n                   be given; set --vocab-size\n";
        assert_eq!(text, expected);
        let narrow = report().text(Palette::Plain, Some(20));
        assert_eq!(narrow, report().text(Palette::Plain, None), "the terminal breaks the lines");
    }

    #[test]
    fn json_has_the_worst_verdict() {
        let mut report = report();
        let parsed = |report: &Report| serde_json::from_str::<serde_json::Value>(&report.json()).unwrap();
        let found = parsed(&report);
        assert_eq!((&found["verdict"], &found["lines"][1]["verdict"]), (&"warn".into(), &"warn".into()));
        assert_eq!(
            (&found["lines"][0]["name"], &found["lines"][0]["text"]),
            (&"model".into(), &"tokentap-demo".into())
        );
        report.line(Verdict::Fail, "generate", "no token");
        assert!(report.has_failed() && parsed(&report)["verdict"] == "fail");
    }
}
