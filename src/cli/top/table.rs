// SPDX-License-Identifier: Apache-2.0
//! The table as lines of text.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::snapshot::{Policy, RECENT, Sequence, Snapshot};
use crate::cli::scale::{ABSENT, Scale, mean, shown, spark};
use crate::cli::terminal::printable;

/// The largest widths of a session and of a request id, in columns.
const NAMES: (usize, usize) = (24, 12);

/// Lines of the live table besides the rows: two of totals, an empty one, the heads, and the keys.
const FRAME: usize = 5;

/// Which rows come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortOrder {
    /// The oldest.
    Age,
    /// The most tokens a second.
    Speed,
    /// The highest mean entropy of the newest tokens.
    Entropy,
}

/// A sequence, and its speed between the last two polls.
#[derive(Debug)]
struct Row {
    sequence: Sequence,
    /// Tokens a second; `None` if the sequence was not in the poll before.
    speed: Option<f64>,
    /// Nats.
    mean: Option<f32>,
}

/// The number of tokens of each sequence, by request id and index.
type TokenCounts = HashMap<(Arc<str>, usize), u64>;

/// The running sequences, and the error of the last poll if it failed.
#[derive(Debug)]
pub(super) struct Table {
    url: String,
    scale: Scale,
    order: SortOrder,
    rows: Vec<Row>,
    total: usize,
    policy: Option<Policy>,
    state: String,
    /// When the last successful poll was answered, and the number of tokens then.
    polled: Option<(Instant, TokenCounts)>,
    /// The error of the last poll, and when the first of the failed polls ended.
    problem: Option<(String, Instant)>,
}

impl Table {
    pub(super) fn new(url: String, scale: Scale) -> Self {
        let (rows, state) = (Vec::new(), String::new());
        Self { url, scale, order: SortOrder::Age, rows, total: 0, policy: None, state, polled: None, problem: None }
    }

    /// Replaces the rows.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let Snapshot { at, sequences, total, policy, state } = snapshot;
        let earlier = self.polled.take();
        let key = |sequence: &Sequence| (Arc::clone(&sequence.rid), sequence.index);
        let speed = |sequence: &Sequence| {
            let (before, tokens) = earlier.as_ref()?;
            // a later request may have reused the id
            let new = sequence.tokens.checked_sub(*tokens.get(&key(sequence))?)?;
            let seconds = at.duration_since(*before).as_secs_f64();
            (seconds > 0.0).then(|| new as f64 / seconds)
        };
        let row = |sequence: Sequence| Row { speed: speed(&sequence), mean: mean(sequence.recent()), sequence };
        let tokens = sequences.iter().map(|sequence| (key(sequence), sequence.tokens)).collect();
        self.rows = sequences.into_iter().map(row).collect();
        self.polled = Some((at, tokens));
        (self.total, self.policy, self.state, self.problem) = (total, Some(policy), state, None);
        self.sort();
    }

    /// Keeps the rows, and shows the error of a poll.
    pub(super) fn fail(&mut self, problem: String, now: Instant) {
        let since = self.problem.take().map_or(now, |(_, since)| since);
        self.problem = Some((problem, since));
    }

    pub(super) fn sort_by(&mut self, order: SortOrder) {
        self.order = order;
        self.sort();
    }

    /// Absent numbers come last. Equal ones keep the order of the request ids.
    fn sort(&mut self) {
        match self.order {
            SortOrder::Age => self.rows.sort_by_key(|row| std::cmp::Reverse(row.sequence.age_ms)),
            SortOrder::Speed => {
                self.rows.sort_by(|one, other| other.speed.unwrap_or(-1.0).total_cmp(&one.speed.unwrap_or(-1.0)))
            }
            SortOrder::Entropy => {
                self.rows.sort_by(|one, other| other.mean.unwrap_or(-1.0).total_cmp(&one.mean.unwrap_or(-1.0)))
            }
        }
    }

    /// All rows as text, without a maximum width.
    pub(super) fn text(&self) -> String {
        let lines = self.head().into_iter().chain(self.body(self.rows.len(), usize::MAX));
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// The lines of a screen.
    pub(super) fn lines(&self, width: usize, height: usize) -> Vec<String> {
        let mut lines: Vec<String> = self.head().into_iter().map(|line| cut(&line, width)).collect();
        let room = height.saturating_sub(FRAME);
        // the last line says how many rows do not fit
        let count = if self.rows.len() > room { room.saturating_sub(1) } else { self.rows.len() };
        lines.push(String::new());
        lines.extend(self.body(count, width));
        let (hidden, listed) = (self.total.saturating_sub(count), self.rows.len());
        if hidden > 0 && listed > room {
            lines.push(cut(&format!("\u{2026} {hidden} more"), width));
        }
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.keys(width));
        lines.truncate(height);
        lines
    }

    /// The totals.
    fn head(&self) -> [String; 2] {
        let mut first = format!("tokentap at {}: ", self.url);
        match &self.problem {
            Some((problem, since)) => {
                // writing to a String cannot fail
                let _ =
                    write!(first, "no answer for {} s, retrying: {}", since.elapsed().as_secs(), printable(problem));
            }
            None => first.push_str(&self.state),
        }
        let speeds: Vec<f64> = self.rows.iter().filter_map(|row| row.speed).collect();
        let speed = if speeds.is_empty() { ABSENT.to_owned() } else { format!("{:.1}", speeds.iter().sum::<f64>()) };
        let mean = mean(self.rows.iter().flat_map(|row| row.sequence.recent()));
        let mut second = format!("{} running", self.total);
        if self.rows.len() < self.total {
            let _ = write!(second, ", {} of them listed", self.rows.len());
        }
        let _ = write!(second, ", {speed} tokens/s, mean entropy {} nats", shown(mean));
        if let Some(Policy { epoch, weight_version, version }) = &self.policy {
            let _ = write!(second, ", policy epoch {epoch}");
            for (name, value) in [("version", version), ("weights", weight_version)] {
                if let Some(value) = value {
                    let _ = write!(second, ", {name} {}", printable(value));
                }
            }
        }
        [first.replace(['\n', '\t'], " "), second.replace(['\n', '\t'], " ")]
    }

    /// The heads of the columns and the first `count` rows.
    fn body(&self, count: usize, width: usize) -> Vec<String> {
        let sessions = self.rows.iter().take(count).map(|row| session(&row.sequence).chars().count());
        let session_width = sessions.max().unwrap_or(0).clamp("SESSION".len(), NAMES.0);
        let layout = Layout { session: session_width, width };
        let heads = Cells {
            text: ["SESSION", "REQUEST", "TOKENS", "TOK/S", "NOW", "MEAN", "RECENT", "EPOCH", "AGE"].map(str::to_owned),
            colours: [None, None],
        };
        let mut lines = vec![self.scale.palette.attribute("1", &layout.line(&heads, &self.scale))];
        lines.extend(self.rows.iter().take(count).map(|row| layout.line(&cells(row), &self.scale)));
        lines
    }

    fn keys(&self, width: usize) -> String {
        let order = match self.order {
            SortOrder::Age => "age",
            SortOrder::Speed => "tokens/s",
            SortOrder::Entropy => "entropy",
        };
        let line = cut(&format!("sorted by {order}   a age   t tokens/s   e entropy   q quit"), width);
        self.scale.palette.attribute("2", &line)
    }
}

/// The cells of a line, from left to right.
struct Cells {
    text: [String; 9],
    /// The entropies whose colours the cells `NOW` and `MEAN` have.
    colours: [Option<f32>; 2],
}

/// The widths of the columns.
struct Layout {
    session: usize,
    /// Columns of the whole line.
    width: usize,
}

impl Layout {
    /// A line. Columns that do not fit are left out, from the right.
    fn line(&self, cells: &Cells, scale: &Scale) -> String {
        let (mut line, mut used) = (String::new(), 0);
        let widths = [self.session, NAMES.1, 7, 7, 6, 6, RECENT, 5, 7];
        for (at, (text, width)) in cells.text.iter().zip(widths).enumerate() {
            let gap = if at == 0 { 0 } else { 2 };
            if used + gap + width > self.width {
                break;
            }
            used += gap + width;
            line.push_str(&" ".repeat(gap));
            // names and spark lines begin at the left, numbers end at the right
            let is_left = matches!(at, 0 | 1 | 6);
            let text = if is_left { format!("{text:<width$}") } else { format!("{text:>width$}") };
            let colour = at.checked_sub(4).and_then(|at| cells.colours.get(at).copied().flatten());
            line.push_str(&colour.map_or_else(|| text.clone(), |nats| scale.paint(nats, &text)));
        }
        line
    }
}

fn cells(row: &Row) -> Cells {
    let Row { sequence, speed, mean } = row;
    let rid =
        if sequence.index == 0 { sequence.rid.to_string() } else { format!("{}/{}", sequence.rid, sequence.index) };
    let newest = sequence.newest();
    Cells {
        text: [
            short(&session(sequence), NAMES.0),
            short(&ascii(&rid), NAMES.1),
            sequence.tokens.to_string(),
            speed.map_or_else(|| ABSENT.to_owned(), |speed| format!("{speed:.1}")),
            shown(newest),
            shown(*mean),
            sequence.recent().map(spark).collect(),
            sequence.epoch.map_or_else(|| ABSENT.to_owned(), |epoch| epoch.to_string()),
            duration(sequence.age()),
        ],
        colours: [newest, *mean],
    }
}

fn session(sequence: &Sequence) -> String {
    sequence.session.as_deref().map_or_else(|| ABSENT.to_owned(), ascii)
}

/// Replaces characters whose width on a terminal is not 1.
fn ascii(text: &str) -> String {
    text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' }).collect()
}

/// The beginning of a text that is longer than `most`.
fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['\u{2026}']).collect()
}

/// The part of a line without colours that fits.
fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

fn duration(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Palette;

    fn table(palette: Palette) -> Table {
        Table::new("http://127.0.0.1:30002".to_owned(), Scale::new(palette, false))
    }

    fn sequence(rid: &str, tokens: u64, entropy: &[f32]) -> Sequence {
        let entropy = entropy.iter().map(|nats| Some(*nats).filter(|nats| !nats.is_nan())).collect();
        Sequence {
            rid: rid.into(),
            index: 0,
            session: Some("run-1".into()),
            tokens,
            age_ms: tokens * 100,
            epoch: Some(3),
            entropy,
        }
    }

    fn snapshot(at: Instant, sequences: Vec<Sequence>, total: usize) -> Snapshot {
        let policy = Policy { epoch: 3, weight_version: Some("step-3".into()), version: None };
        Snapshot { at, sequences, total, policy, state: "ready".into() }
    }

    #[test]
    fn speed_is_absent_until_a_second_poll_and_then_measured() {
        let (begin, mut table) = (Instant::now(), table(Palette::Plain));
        table.update(snapshot(begin, vec![sequence("r", 10, &[0.5, 1.5])], 1));
        let text = table.text();
        assert!(
            text.contains("1 running, \u{2013} tokens/s, mean entropy 1.000 nats, policy epoch 3, weights step-3"),
            "{text}"
        );
        let cells: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(cells, ["run-1", "r", "10", "\u{2013}", "1.500", "1.000", "\u{2583}\u{2585}", "3", "1s"]);
        let later = begin + Duration::from_secs(2);
        table.update(snapshot(later, vec![sequence("new", 4, &[f32::NAN]), sequence("r", 10, &[])], 2));
        let text = table.text();
        let speeds: Vec<&str> = text.lines().skip(3).map(|line| line.split_whitespace().nth(3).unwrap()).collect();
        assert_eq!(speeds, ["0.0", "\u{2013}"], "a stalled sequence has a speed, a new one has none: {text}");
        table.update(snapshot(later + Duration::from_secs(1), vec![sequence("r", 3, &[])], 1));
        assert!(table.text().contains("\u{2013} tokens/s"), "the id was reused");
    }

    #[test]
    fn screen_shows_rows_that_fit_and_counts_hidden_ones() {
        let mut table = table(Palette::Plain);
        let all = (0..1000).map(|at| sequence(&format!("rid-{at:04}-long-name"), at, &[0.1])).collect();
        table.update(snapshot(Instant::now(), all, 1234));
        for (width, height) in [(120, 40), (80, 24), (20, 6), (3, 2), (1, 1)] {
            let lines = table.lines(width, height);
            assert_eq!(lines.len(), height);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:#?}");
        }
        let lines = table.lines(120, 40);
        assert!(lines[1].starts_with("1234 running, 1000 of them listed"), "{}", lines[1]);
        assert!(lines[4].contains("rid-0999-lo\u{2026}"), "the oldest is first: {}", lines[4]);
        assert_eq!(lines[38], "\u{2026} 1200 more");
    }

    #[test]
    fn rows_are_sorted_and_absent_numbers_are_last() {
        let mut table = table(Palette::Plain);
        let all = vec![sequence("none", 1, &[f32::NAN]), sequence("low", 2, &[0.1]), sequence("high", 3, &[2.0])];
        table.update(snapshot(Instant::now(), all, 3));
        let names = |table: &Table| table.rows.iter().map(|row| row.sequence.rid.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&table), ["high", "low", "none"]);
        table.sort_by(SortOrder::Entropy);
        assert_eq!(names(&table), ["high", "low", "none"]);
    }

    #[test]
    fn names_cannot_control_the_terminal_and_failures_are_shown() {
        let mut table = table(Palette::True);
        table.update(snapshot(Instant::now(), vec![sequence("\x1b]0;x\x07\u{202e}", 1, &[0.5])], 1));
        table.fail("cannot connect\x1b[2J".to_owned(), Instant::now());
        let text = table.lines(200, 10).join("\n");
        assert!(text.contains("no answer for 0 s, retrying: cannot connect<U+001B>[2J"), "{text}");
        assert!(text.contains("?]0;x??") && !text.contains("\x1b]") && !text.contains("\x1b[2J"), "{text}");
        assert!(text.contains("\x1b[48;2;"), "entropies are coloured");
    }
}
