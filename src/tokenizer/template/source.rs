//! Rewrites the text of a template: what minijinja reads differently is written in minijinja's syntax.

use std::fmt::Write;

/// The method that slices as Python does, steps backwards and empty lists included.
pub(super) const SLICED: &str = "sliced";

/// The filter that refuses to go through none, as Python does.
pub(super) const ITERATED: &str = "iterated";

/// The template as minijinja is to read it: line ends are newlines, marks of what an assistant says, which only training needs, are
/// passed over, and a loop over none fails.
pub(super) fn adapted(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        let (plain, tagged) = rest.split_at(at);
        out.push_str(plain);
        let end = match &tagged[..2] {
            "{#" => tagged.find("#}").map(|at| at + 2),
            open => Scan::new(tagged, 2)
                .find(|(at, depth)| *depth == 0 && tagged[*at..].starts_with(if open == "{%" { "%}" } else { "}}" }))
                .map(|(at, _)| at + 2),
        };
        let (tag, mut behind) = tagged.split_at(end.unwrap_or(tagged.len()));
        match word(tag) {
            "raw" => {
                out.push_str(tag);
                let end = behind.match_indices("{%").map(|(at, _)| at).find(|at| word(&behind[*at..]) == "endraw");
                let (raw, after) = behind.split_at(end.unwrap_or(behind.len()));
                out.push_str(raw);
                behind = after;
            }
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            "for" => loop_over(&mut out, &sliced(tag)),
            _ if tag.starts_with("{#") => out.push_str(tag),
            _ => out.push_str(&sliced(tag)),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// The first word of a block; nothing for what is no block.
fn word(tag: &str) -> &str {
    let Some(inner) = tag.strip_prefix("{%") else { return "" };
    let inner = inner.trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inner.len());
    &inner[..end]
}

/// Writes the head of a loop, with the filter after what it goes through.
fn loop_over(out: &mut String, tag: &str) {
    let keyword = |from: usize, word: &str| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        Scan::new(tag, from).find(|(at, depth)| {
            *depth == 0
                && tag[*at..].starts_with(word)
                && !tag[..*at].ends_with(is_name)
                && !tag[at + word.len()..].starts_with(is_name)
        })
    };
    let Some((over, _)) = keyword(2, "in") else { return out.push_str(tag) };
    let over = over + "in".len();
    let end = tag.len() - tag.trim_end_matches("%}").trim_end_matches(['-', '+']).len();
    let end = ["if", "recursive"]
        .iter()
        .filter_map(|word| keyword(over, word))
        .map(|(at, _)| at)
        .min()
        .unwrap_or(tag.len() - end);
    if tag[over..end].trim().is_empty() {
        return out.push_str(tag);
    }
    // a string takes everything
    let _ = write!(out, "{} ({})|{ITERATED} {}", &tag[..over], tag[over..end].trim(), &tag[end..]);
}

/// The text with slices written as calls of a method.
fn sliced(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some((open, _)) = Scan::new(text, done).find(|(at, _)| text[*at..].starts_with('[')) {
        let close = Scan::new(text, open + 1).find(|(at, depth)| *depth == 0 && text[*at..].starts_with(']'));
        let Some((close, _)) = close else { break };
        let inner = &text[open + 1..close];
        let colons = Scan::new(inner, 0).filter(|(at, depth)| *depth == 0 && inner[*at..].starts_with(':'));
        let ends: Vec<usize> = colons.map(|(at, _)| at).chain([inner.len()]).collect();
        out.push_str(&text[done..open]);
        if ends.len() == 1 {
            // a string takes everything
            let _ = write!(out, "[{}]", sliced(inner));
        } else {
            let mut from = 0;
            let arguments = ends.iter().map(|end| {
                let argument = inner[from..*end].trim();
                from = end + 1;
                if argument.is_empty() { "none".to_owned() } else { sliced(argument) }
            });
            let _ = write!(out, ".{SLICED}({})", arguments.collect::<Vec<_>>().join(","));
        }
        done = close + 1;
    }
    out.push_str(&text[done..]);
    out
}

/// Places of a tag that are in no string, each with the number of brackets that are open there.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, at: usize) -> Self {
        Self { text, at, depth: 0 }
    }
}

impl Iterator for Scan<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let here = self.at;
        let c = self.text.get(here..)?.chars().next()?;
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
        Some((here, depth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_training_are_passed_over() {
        let source = "a{%- generation -%}b{% endgeneration %}{%if x%}c{% endif %}{{ '{% generation %}' }}";
        assert_eq!(adapted(source), "a{%- if true -%}b{% endif %}{%if x%}c{% endif %}{{ '{% generation %}' }}");
        assert_eq!(adapted("{% raw %}{% generation %}{{ {% endraw %}"), "{% raw %}{% generation %}{{ {% endraw %}");
        assert_eq!(adapted("a {% open"), "a {% open");
        assert_eq!(adapted("{# it's #}{% for %}{{ {'a': {}} }}\r\n\r"), "{# it's #}{% for %}{{ {'a': {}} }}\n\n");
    }

    #[test]
    fn slices_are_calls() {
        for (source, written) in [
            ("{{ a[1:] ~ b[0]['x:y'] }}", "{{ a.sliced(1,none) ~ b[0]['x:y'] }}"),
            (
                "{{ a[::-1][b[:n]: -1 if c else d] }}",
                "{{ a.sliced(none,none,-1).sliced(b.sliced(none,n),-1 if c else d) }}",
            ),
            ("{{ [{'a': 1}, x[:1]] }} [1:] {# [1:] #}", "{{ [{'a': 1}, x.sliced(none,1)] }} [1:] {# [1:] #}"),
        ] {
            assert_eq!(adapted(source), written);
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
            assert_eq!(adapted(source), written);
        }
    }
}
