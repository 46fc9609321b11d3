// SPDX-License-Identifier: Apache-2.0
//! Rewrites the source of a template: replaces syntax that minijinja lacks or reads differently.

use std::fmt::Write;

/// The name of the method that replaces slices. It slices as Python does, also with negative steps and on empty lists.
pub(super) const SLICE_METHOD: &str = "sliced";

/// The name of the filter that is added to the iterable of each loop. It fails for none, as Python does.
pub(super) const ITERATED_FILTER: &str = "iterated";

/// The source with line feeds as line ends, and with slices and loops that behave as in Python. `generation` blocks, which mark assistant
/// text for training, become blocks without an effect.
pub(super) fn adapt_to_minijinja(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (plain, tagged) = rest.split_at(at);
        out.push_str(plain);
        let end = match &tagged[..2] {
            "{#" => tagged.find("#}").map(|at| at + 2),
            open => BracketScan::new(tagged, 2)
                .find(|(at, depth)| *depth == 0 && tagged[*at..].starts_with(if open == "{%" { "%}" } else { "}}" }))
                .map(|(at, _)| at + 2),
        };
        let (tag, mut after) = tagged.split_at(end.unwrap_or(tagged.len()));
        match block_name(tag) {
            "raw" => {
                out.push_str(tag);
                let end = after.match_indices("{%").map(|(at, _)| at).find(|at| block_name(&after[*at..]) == "endraw");
                let (raw, rest) = after.split_at(end.unwrap_or(after.len()));
                out.push_str(raw);
                after = rest;
            }
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            "for" => push_for_tag(&mut out, &rewrite_slices(tag)),
            _ if tag.starts_with("{#") => out.push_str(tag),
            _ => out.push_str(&rewrite_slices(tag)),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The name of a block such as `for`; empty for another tag.
fn block_name(tag: &str) -> &str {
    let Some(inner) = tag.strip_prefix("{%") else { return "" };
    let inner = inner.trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
    &inner[..end]
}

/// Appends a `for` tag and adds the filter [`ITERATED_FILTER`] to its iterable.
fn push_for_tag(out: &mut String, tag: &str) {
    let keyword = |from: usize, word: &str| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        BracketScan::new(tag, from).find(|(at, depth)| {
            *depth == 0
                && tag[*at..].starts_with(word)
                && !tag[..*at].ends_with(is_name)
                && !tag[at + word.len()..].starts_with(is_name)
        })
    };
    let Some((start, _)) = keyword(2, "in") else { return out.push_str(tag) };
    let start = start + "in".len();
    let end = tag.len() - tag.trim_end_matches("%}").trim_end_matches(['-', '+']).len();
    let end = ["if", "recursive"]
        .iter()
        .filter_map(|word| keyword(start, word))
        .map(|(at, _)| at)
        .min()
        .unwrap_or(tag.len() - end);
    if tag[start..end].trim().is_empty() {
        return out.push_str(tag);
    }
    // writing to a `String` never fails
    let _ = write!(out, "{} ({})|{ITERATED_FILTER} {}", &tag[..start], tag[start..end].trim(), &tag[end..]);
}

/// Replaces the slices in a tag by calls of [`SLICE_METHOD`].
fn rewrite_slices(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some((open, _)) = BracketScan::new(text, done).find(|(at, _)| text[*at..].starts_with('[')) {
        let close = BracketScan::new(text, open + 1).find(|(at, depth)| *depth == 0 && text[*at..].starts_with(']'));
        let Some((close, _)) = close else { break };
        let inner = &text[open + 1..close];
        let colons = BracketScan::new(inner, 0).filter(|(at, depth)| *depth == 0 && inner[*at..].starts_with(':'));
        let ends: Vec<usize> = colons.map(|(at, _)| at).chain([inner.len()]).collect();
        out.push_str(&text[done..open]);
        if ends.len() == 1 {
            // writing to a `String` never fails
            let _ = write!(out, "[{}]", rewrite_slices(inner));
        } else {
            let mut from = 0;
            let arguments = ends.iter().map(|end| {
                let argument = inner[from..*end].trim();
                from = end + 1;
                if argument.is_empty() { "none".to_owned() } else { rewrite_slices(argument) }
            });
            let _ = write!(out, ".{SLICE_METHOD}({})", arguments.collect::<Vec<_>>().join(","));
        }
        done = close + 1;
    }
    out.push_str(&text[done..]);
    out
}

/// Iterates over the byte offsets in a tag, each with the number of open brackets. Skips the text of string literals.
struct BracketScan<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> BracketScan<'a> {
    fn new(text: &'a str, at: usize) -> Self {
        Self { text, at, depth: 0 }
    }
}

impl Iterator for BracketScan<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let c = self.text.get(offset..)?.chars().next()?;
        self.at += c.len_utf8();
        let depth = self.depth;
        match c {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => self.depth = depth.saturating_sub(1),
            quote @ ('"' | '\'') => {
                let mut escaped = false;
                let end = self.text[self.at..].char_indices().find(|(_, c)| {
                    let ends = *c == quote && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                });
                self.at = end.map_or(self.text.len(), |(at, _)| self.at + at + 1);
            }
            _ => {}
        }
        Some((offset, depth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_have_no_effect() {
        let source = "a{%- generation -%}b{% endgeneration %}{%if x%}c{% endif %}{{ '{% generation %}' }}";
        assert_eq!(
            adapt_to_minijinja(source),
            "a{%- if true -%}b{% endif %}{%if x%}c{% endif %}{{ '{% generation %}' }}"
        );
        assert_eq!(
            adapt_to_minijinja("{% raw %}{% generation %}{{ {% endraw %}"),
            "{% raw %}{% generation %}{{ {% endraw %}"
        );
        assert_eq!(adapt_to_minijinja("a {% open"), "a {% open");
        assert_eq!(
            adapt_to_minijinja("{# it's #}{% for %}{{ {'a': {}} }}\r\n\r"),
            "{# it's #}{% for %}{{ {'a': {}} }}\n\n"
        );
    }

    #[test]
    fn slices_become_method_calls() {
        for (source, written) in [
            ("{{ a[1:] ~ b[0]['x:y'] }}", "{{ a.sliced(1,none) ~ b[0]['x:y'] }}"),
            (
                "{{ a[::-1][b[:n]: -1 if c else d] }}",
                "{{ a.sliced(none,none,-1).sliced(b.sliced(none,n),-1 if c else d) }}",
            ),
            ("{{ [{'a': 1}, x[:1]] }} [1:] {# [1:] #}", "{{ [{'a': 1}, x.sliced(none,1)] }} [1:] {# [1:] #}"),
        ] {
            assert_eq!(adapt_to_minijinja(source), written);
        }
    }

    #[test]
    fn loop_iterables_get_the_iterated_filter() {
        for (source, written) in [
            ("{%- for a in b -%}", "{%- for a in (b)|iterated -%}"),
            ("{% for a, b in c.items() if a in 'if' %}", "{% for a, b in (c.items())|iterated if a in 'if' %}"),
            (
                "{%for x in (y if z else [])+[' in ']recursive%}",
                "{%for x in ((y if z else [])+[' in '])|iterated recursive%}",
            ),
            ("{% for index in indices[1:] %}", "{% for index in (indices.sliced(1,none))|iterated %}"),
        ] {
            assert_eq!(adapt_to_minijinja(source), written);
        }
    }
}
