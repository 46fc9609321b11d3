// SPDX-License-Identifier: Apache-2.0
//! The sessions in memory as a table: selected by conditions, sorted by a value, in pages.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::Turn;
use super::conditions::{Conditions, FieldValue, SessionFacts, SessionField, Subject};
use super::ids::has_part;
use super::session_row::SessionRow;
use super::sessions::{Backend, ListScope, Sessions};
use super::sorted_page::{CollectedPage, PageCollector, PageCursor, SortPlace, SortValue};
use super::state::Session;
use super::store::Store;

/// Sessions that are copied per lock of the order.
const PER_LOCK: usize = 512;

/// The order of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableOrder {
    subject: Subject,
    is_descending: bool,
}

/// A query of the table.
#[derive(Debug, Clone)]
pub struct TableQuery {
    /// Its order.
    pub order: TableOrder,
    /// What its sessions meet; `None` for all sessions.
    pub conditions: Option<Conditions>,
    /// A first turn, whose prompt its sessions have sampled without a turn before it; `None` for all sessions.
    pub same_prompt: Option<Arc<Turn>>,
    /// A part of the names of its sessions, in any case; empty for all sessions.
    pub part: String,
    /// The end of the previous page; `None` for the first page.
    pub after: Option<TableCursor>,
    /// The most sessions of a page, at least 1.
    pub limit: usize,
}

/// A page of the table.
#[derive(Debug)]
pub struct TablePage {
    /// The sessions.
    pub sessions: Vec<Arc<Session>>,
    /// Where the next page begins; `None` on the last page.
    pub next: Option<TableCursor>,
    /// The number of sessions on all pages.
    pub matched: usize,
    /// The sessions are those of this process; `None` if there are no others.
    pub scope: Option<ListScope>,
}

/// The place after a session.
pub type TableCursor = PageCursor<TableOrder>;

/// A text that does not name a field or a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sort: must be the name of a field or of a tag, such as reward, or -reward for a descending order, not {0:?}")]
pub struct InvalidOrder(String);

impl FromStr for TableOrder {
    type Err = InvalidOrder;

    fn from_str(text: &str) -> Result<Self, InvalidOrder> {
        let name = text.strip_prefix('-').unwrap_or(text);
        let subject = Subject::parse(name).ok_or_else(|| InvalidOrder(text.to_owned()))?;
        Ok(Self { subject, is_descending: name.len() < text.len() })
    }
}

impl Default for TableOrder {
    /// By creation.
    fn default() -> Self {
        Self { subject: Subject::Field(SessionField::CreatedMs), is_descending: false }
    }
}

impl fmt::Display for TableOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_descending { "-" } else { "" }, self.subject)
    }
}

impl TableOrder {
    fn value(&self, session: &impl SessionFacts) -> SortValue {
        match self.subject.of(session) {
            None => SortValue::Absent,
            Some(FieldValue::Number(number)) => SortValue::Number(number),
            #[expect(clippy::cast_precision_loss, reason = "a session has few flags")]
            Some(FieldValue::Names(names)) => SortValue::Number(names.len() as f64),
            Some(FieldValue::Text(text)) => SortValue::of_text(&text),
        }
    }
}

impl Sessions {
    /// Reads a page of the table of the sessions in memory: if sessions are shared, those that this process has read. Blocks for about a
    /// microsecond for each session in memory.
    #[must_use]
    pub fn table(&self, query: &TableQuery) -> TablePage {
        let TableQuery { order, conditions, same_prompt, part, after, limit } = query;
        let after = after.as_ref().map(|after| &after.place);
        let mut page = PageCollector::new(order.is_descending, after, *limit);
        self.memory().for_each(|session| {
            if !has_part(&session.id, part) {
                return;
            }
            let value = {
                let row = SessionRow { session: &session, state: &session.state() };
                let has_prompt = |first: &Arc<Turn>| row.state.forest.shared(None, first.prompt_keys()).is_some();
                let is_chosen = conditions.as_ref().is_none_or(|conditions| conditions.accept(&row))
                    && same_prompt.as_ref().is_none_or(has_prompt);
                if !is_chosen {
                    return;
                }
                order.value(&row)
            };
            page.push(SortPlace { value, birth: session.birth, turn: 0 }, session);
        });
        let CollectedPage { rows: sessions, next, matched } = page.finish();
        let next = next.map(|place| TableCursor { order: order.clone(), place });
        TablePage { sessions, next, matched, scope: self.memory_scope() }
    }

    /// The scope of what is read from memory; `None` if no other process has sessions.
    pub(super) fn memory_scope(&self) -> Option<ListScope> {
        matches!(self.backend(), Backend::Shared(_)).then_some(ListScope::Process)
    }
}

impl Store {
    /// Visits all sessions, in the order of their creation. No lock is held meanwhile.
    pub(super) fn for_each(&self, mut visit: impl FnMut(Arc<Session>)) {
        let mut after = 0;
        loop {
            let part = self.page(after, PER_LOCK);
            let Some((last, _)) = part.last() else { return };
            after = *last;
            part.into_iter().for_each(|(_, session)| visit(session));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::session::Uid;
    use crate::session::sorted_page::ForeignCursor;
    use crate::session::tests::{BOUNDLESS, store, turn};
    use crate::session::{RewardScope, Tags};

    /// Sessions with rewards and tags that repeat, some without.
    fn sessions(count: u32) -> Arc<Sessions> {
        let store = store(BOUNDLESS);
        for at in 0..count {
            let name = format!("s{at}");
            turn(&store, &name, &[1], &[2]);
            let session = store.session(&name).expect("it has a turn");
            if at % 5 > 0 {
                store
                    .memory()
                    .reward(&session, RewardScope::Session, json!(f64::from(at % 7) / 4.0))
                    .expect("it is open");
            }
            let tags = match at % 3 {
                0 => format!("step={}", at % 11),
                1 => format!("step=x{}", at % 2),
                _ => continue,
            };
            store.memory().set_tags(&session, &Tags::parse_list(tags.as_bytes()).expect("valid")).expect("it is open");
        }
        store
    }

    fn query(sort: &str, conditions: Option<&str>, after: Option<TableCursor>, limit: usize) -> TableQuery {
        let conditions = conditions.map(|text| Conditions::parse(text).expect("they are valid"));
        let order = sort.parse().expect("it is valid");
        TableQuery { order, conditions, same_prompt: None, part: String::new(), after, limit }
    }

    /// All pages, after the text of each cursor is parsed again.
    fn pages(store: &Sessions, sort: &str, conditions: Option<&str>, limit: usize) -> Vec<String> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = store.table(&query(sort, conditions, after, limit));
            names.extend(page.sessions.iter().map(|session| session.id.to_string()));
            let Some(next) = page.next else {
                assert_eq!(names.len(), page.matched);
                return names;
            };
            let order = sort.parse().expect("it is valid");
            assert_eq!(TableCursor::parse(&next.to_string(), &order), Ok(next.clone()));
            after = Some(next);
        }
    }

    fn value(store: &Sessions, name: &str, of: &str) -> SortValue {
        let (session, order) =
            (store.session(name).expect("it exists"), of.parse::<TableOrder>().expect("it is valid"));
        order.value(&SessionRow { session: &session, state: &session.state() })
    }

    #[tokio::test]
    async fn pages_have_each_session_once_in_the_order_of_its_value() {
        let store = sessions(100);
        for sort in ["reward", "-reward", "step", "-tag.step", "session", "-created_ms", "turns", "flags", "missing"] {
            let order: TableOrder = sort.parse().expect("it is valid");
            for limit in [1, 7, 100, 1000] {
                let names = pages(&store, sort, None, limit);
                let unique: std::collections::HashSet<&String> = names.iter().collect();
                assert_eq!((names.len(), unique.len()), (100, 100), "{sort} {limit}");
                let values: Vec<SortValue> = names.iter().map(|name| value(&store, name, sort)).collect();
                let is_sorted = values.is_sorted_by(|one, other| one.compare(other, order.is_descending).is_le());
                assert!(is_sorted, "{sort} {limit}: {values:?}");
            }
        }
        assert_eq!(value(&store, &pages(&store, "-reward", None, 100)[99], "reward"), SortValue::Absent, "absent last");
    }

    #[tokio::test]
    async fn session_that_is_removed_between_pages_hides_no_other() {
        let store = sessions(20);
        let first = store.table(&query("reward", None, None, 5));
        let last = first.sessions.last().expect("it is full");
        assert!(store.memory().delete(&last.id).is_some());
        let rest = store.table(&query("reward", None, first.next, 100));
        assert_eq!((rest.sessions.len(), rest.matched), (15, 19));
    }

    #[tokio::test]
    async fn conditions_and_a_part_of_the_name_select_sessions() {
        let store = sessions(60);
        let names = pages(&store, "reward", Some("reward>=0.25,reward<1,step!=3"), 4);
        let expected = (0..60).filter(|at| {
            let reward = f64::from(at % 7) / 4.0;
            at % 5 > 0 && (0.25..1.0).contains(&reward) && at % 3 != 2 && !(at % 3 == 0 && at % 11 == 3)
        });
        let mut expected: Vec<String> = expected.map(|at| format!("s{at}")).collect();
        let mut found = names.clone();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        let page = store.table(&TableQuery { part: "s5".into(), ..query("session", None, None, 100) });
        assert_eq!((page.matched, page.next), (11, None));
        let page = store.table(&TableQuery { part: "S5".into(), ..query("session", None, None, 100) });
        assert_eq!(page.matched, 11, "in any case");
    }

    #[tokio::test]
    async fn sessions_with_a_first_prompt_are_selected() {
        let store = store(BOUNDLESS);
        for (name, prompt, response) in [("a", 1, 2), ("b", 9, 2), ("c", 1, 3), ("b", 1, 4), ("d", 9, 1)] {
            turn(&store, name, &[prompt], &[response]);
        }
        let first = store.session("a").expect("it exists").turn(0);
        let page = store.table(&TableQuery { same_prompt: first, ..query("created_ms", None, None, 10) });
        let names: Vec<&str> = page.sessions.iter().map(|session| &*session.id).collect();
        assert_eq!(names, ["a", "b", "c"], "also of a later conversation");
    }

    #[test]
    fn foreign_cursors_and_orders_are_refused() {
        let order: TableOrder = "reward".parse().expect("it is valid");
        let place = SortPlace { value: SortValue::Text("a!b\u{e4}".into()), birth: Uid::default(), turn: 7 };
        let cursor = TableCursor { order: order.clone(), place };
        let text = cursor.to_string();
        assert_eq!(TableCursor::parse(&text, &order), Ok(cursor));
        let other = "-reward".parse().expect("it is valid");
        assert_eq!(TableCursor::parse(&text, &other), Err(ForeignCursor(text.clone())));
        for text in ["", "7", "reward!0!n0", "reward!x!0!a", &format!("{text}!"), &text[..text.len() - 1]] {
            assert!(TableCursor::parse(text, &order).is_err(), "{text}");
        }
        for text in ["", "-", "a b", "tag."] {
            assert_eq!(text.parse::<TableOrder>(), Err(InvalidOrder(text.to_owned())));
        }
    }
}
