// SPDX-License-Identifier: Apache-2.0
//! How agents describe themselves and their calls: the headers and body members of Claude Code, Codex and `OpenCode` that label a turn or name
//! its session, and the headers that mark a call.
//!
//! Only documented signals are read, and a class is never guessed. A header that is absent changes nothing.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, header};
use serde_json::Value;

use crate::generation::request::ClientSignals;
use crate::session::{Labels, RequestClass, fill_label};

/// The number of earlier attempts of this call. Most agents' SDKs send this header.
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// The client marks the last call of its session with this header.
const SESSION_DONE: HeaderName = HeaderName::from_static("x-session-done");

/// With `SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES` the engine reads the request id from this header, so the body must not have one.
pub(crate) const OVERRIDE_RID: HeaderName = HeaderName::from_static("x-override-rid");

/// Claude Code's id of a session.
pub(crate) const CLAUDE_CODE_SESSION: HeaderName = HeaderName::from_static("x-claude-code-session-id");

/// Codex's ids of a session and of a thread, the newer names first. pi sends `session_id` as well.
pub(crate) const CODEX_SESSIONS: [HeaderName; 4] = [
    HeaderName::from_static("session-id"),
    HeaderName::from_static("thread-id"),
    HeaderName::from_static("session_id"),
    HeaderName::from_static("conversation_id"),
];

/// `OpenCode`'s id of a session.
pub(crate) const SESSION_AFFINITY: HeaderName = HeaderName::from_static("x-session-affinity");

/// The headers that name the client's own conversation, the most specific first.
const THREADS: [&str; 7] = [
    "x-claude-code-session-id",
    "thread-id",
    "thread_id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-session-affinity",
];

/// Members of Claude Code's attribution whose values change with each call.
const PER_CALL: [&str; 2] = ["cch=", "cc_prev_req="];

/// What the headers of a call tell tokentap.
#[must_use]
pub(crate) fn signals(headers: &HeaderMap) -> ClientSignals {
    let value = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let attempts = value(RETRY_COUNT).and_then(|count| count.parse::<u32>().ok());
    let is_no = |value: &str| matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no");
    ClientSignals {
        authorization: headers.get(header::AUTHORIZATION).cloned(),
        rid: headers.get(OVERRIDE_RID).cloned(),
        is_retry: attempts.is_some_and(|attempts| attempts > 0),
        is_last: value(SESSION_DONE).is_some_and(|value| !is_no(value)),
    }
}

/// The labels in the headers of a request. `None` if no header is an agent's: most requests of other clients have none.
#[must_use]
pub(crate) fn labels(headers: &HeaderMap) -> Option<Labels> {
    if !headers.keys().any(|name| is_signal(name.as_str())) {
        return None;
    }
    let mut labels = Labels::default();
    for name in THREADS {
        fill_from(&mut labels.thread, text(headers, name));
    }
    add_claude_code(&mut labels, headers);
    add_codex(&mut labels, |name| text(headers, name));
    add_open_code(&mut labels, headers);
    fill_from(&mut labels.client, client(headers));
    fill_from(&mut labels.client, text(headers, "originator"));
    Some(labels)
}

/// The client of a request whose headers are otherwise no agent's: the first product of its user agent, such as `claude-cli/2.1.330`. The
/// SDKs separate the version by a space: `OpenAI/Python 1.2.3`.
#[must_use]
pub(crate) fn client(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let agent = text(headers, header::USER_AGENT.as_str())?;
    Some(match agent {
        Cow::Borrowed(agent) => Cow::Borrowed(product(agent)),
        Cow::Owned(agent) => Cow::Owned(product(&agent).to_owned()),
    })
}

fn product(agent: &str) -> &str {
    let end = |text: &str| text.find(' ').unwrap_or(text.len());
    let rest = agent[end(agent)..].trim_start();
    if rest.starts_with(|first: char| first.is_ascii_digit()) {
        return &agent[..agent.len() - rest.len() + end(rest)];
    }
    &agent[..end(agent)]
}

/// Whether a header is sent by agents and not by other clients.
fn is_signal(name: &str) -> bool {
    name.starts_with("x-claude-code-")
        || name.starts_with("x-codex-")
        || THREADS.contains(&name)
        || matches!(name, "x-parent-session-id" | "x-openai-subagent" | "originator")
}

/// Claude Code: its identity headers, and its hints with `CLAUDE_CODE_GATEWAY_HINT_HEADERS=1`.
fn add_claude_code(labels: &mut Labels, headers: &HeaderMap) {
    let agent = text(headers, "x-claude-code-agent-id");
    let agent_type = text(headers, "x-claude-code-agent-type");
    let class = match text(headers, "x-claude-code-request-class").as_deref() {
        Some("main") => Some(RequestClass::Main),
        // an agent that runs within a workflow
        Some("subagent" | "workflow") => Some(RequestClass::Subagent),
        Some("compaction") => Some(RequestClass::Compaction),
        Some("auxiliary") => Some(RequestClass::Auxiliary),
        // a class that is not known yet
        Some(_) => None,
        None if text(headers, "x-claude-code-compaction").is_some() => Some(RequestClass::Compaction),
        None => (agent.is_some() || agent_type.is_some()).then_some(RequestClass::Subagent),
    };
    labels.request_class = labels.request_class.or(class);
    labels.after_compaction |= text(headers, "x-claude-code-context-compacted").is_some();
    fill_from(&mut labels.agent, agent);
    fill_from(&mut labels.agent_type, agent_type);
    fill_from(&mut labels.parent_agent, text(headers, "x-claude-code-parent-agent-id"));
}

/// Adds the labels that Codex sends. `value` returns a header, or a member of `client_metadata` in the body, which has the same facts under
/// the names of the headers.
pub(crate) fn add_codex<'a>(labels: &mut Labels, value: impl Fn(&str) -> Option<Cow<'a, str>>) {
    let metadata = value("x-codex-turn-metadata");
    let metadata: Value = metadata.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let member = |name: &str| metadata.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind = value("x-openai-subagent");
    let kind = kind.as_deref().or_else(|| member("subagent_kind"));
    let parent = value("x-codex-parent-thread-id");
    let parent = parent.as_deref().or_else(|| member("parent_thread_id"));
    let is_subagent = kind.is_some() || parent.is_some() || member("thread_source") == Some("subagent");
    let class = match (kind, member("request_kind")) {
        (Some("compact"), _) | (_, Some("compaction")) => Some(RequestClass::Compaction),
        (Some("memory_consolidation"), _) | (_, Some("memory" | "prewarm")) => Some(RequestClass::Auxiliary),
        (_, Some("subagent")) => Some(RequestClass::Subagent),
        (_, Some("turn") | None) if is_subagent => Some(RequestClass::Subagent),
        (_, Some("turn")) => Some(RequestClass::Main),
        _ => None,
    };
    labels.request_class = labels.request_class.or(class);
    fill_from(&mut labels.agent, member("agent_name").map(Cow::Borrowed));
    fill_from(&mut labels.agent_type, kind.map(Cow::Borrowed));
    fill_from(&mut labels.parent_agent, parent.map(Cow::Borrowed));
    fill_from(&mut labels.thread, value("thread_id"));
    fill_from(&mut labels.thread, member("thread_id").map(Cow::Borrowed));
}

/// `OpenCode`: a sub-agent has another session than the agent that started it.
fn add_open_code(labels: &mut Labels, headers: &HeaderMap) {
    let parent = text(headers, "x-parent-session-id");
    if parent.is_some() {
        labels.request_class.get_or_insert(RequestClass::Subagent);
    }
    fill_from(&mut labels.parent_agent, parent);
}

/// Adds the labels in Claude Code's attribution, its first system block: `x-anthropic-billing-header: cc_version=…; cc_entrypoint=…;`.
pub(crate) fn add_attribution(labels: &mut Labels, block: &str) {
    let members = block.split_once(':').map_or(block, |(_, members)| members).split(';').map(str::trim);
    let lasting = members.filter(|member| !member.is_empty() && !PER_CALL.iter().any(|name| member.starts_with(name)));
    let lasting: Vec<&str> = lasting.collect();
    if lasting.contains(&"cc_is_subagent=true") {
        labels.request_class.get_or_insert(RequestClass::Subagent);
    }
    fill_label(&mut labels.attribution, &lasting.join("; "));
}

/// The session in `metadata.user_id` of Claude Code: JSON text with `session_id`, in older versions `user_…_session_UUID`.
#[must_use]
pub(crate) fn session_in_user_id(user_id: &str) -> Option<Cow<'_, str>> {
    if user_id.trim_start().starts_with('{') {
        let mut value: Value = serde_json::from_str(user_id).ok()?;
        return match value.get_mut("session_id")?.take() {
            Value::String(session) => Some(session.into()),
            _ => None,
        };
    }
    let (_, session) = user_id.rsplit_once("_session_")?;
    Some(session.into())
}

/// The value of a header; `None` if it is empty.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    let value = headers.get(name)?.as_bytes().trim_ascii();
    (!value.is_empty()).then(|| String::from_utf8_lossy(value))
}

fn fill_from(label: &mut Option<Box<str>>, text: Option<Cow<'_, str>>) {
    if let Some(text) = text {
        fill_label(label, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| (HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    fn of(pairs: &[(&str, &str)]) -> Labels {
        labels(&headers(pairs)).expect("a header of an agent")
    }

    fn class(pairs: &[(&str, &str)]) -> Option<&'static str> {
        of(pairs).request_class.map(RequestClass::name)
    }

    #[test]
    fn headers_of_other_clients_give_no_labels() {
        assert_eq!(labels(&headers(&[])), None);
        let plain = [("user-agent", "curl/8.7.1"), ("x-session-id", "s"), ("content-type", "application/json")];
        assert_eq!(labels(&headers(&plain)), None);
    }

    #[test]
    fn call_is_a_retry_or_the_last_one_if_its_headers_say_so() {
        let marks = |name, value| {
            let signals = signals(&headers(&[(name, value)]));
            (signals.is_retry, signals.is_last)
        };
        for (value, is_retry, is_last) in
            [("0", false, false), (" 2 ", true, true), ("true", false, true), (" No", false, false), ("", false, false)]
        {
            assert_eq!(marks("x-stainless-retry-count", value), (is_retry, false), "{value:?}");
            assert_eq!(marks("x-session-done", value), (false, is_last), "{value:?}");
        }
    }

    #[test]
    fn client_is_the_first_product_of_the_user_agent() {
        let client = |agent: &str| {
            let headers = headers(&[("user-agent", agent)]);
            client(&headers).map(Cow::into_owned)
        };
        assert_eq!(client("claude-cli/2.1.330 (external, cli)").as_deref(), Some("claude-cli/2.1.330"));
        assert_eq!(client("codex_exec/0.169.0 (Ubuntu 24.4.0; x86_64) unknown").as_deref(), Some("codex_exec/0.169.0"));
        assert_eq!(client("OpenAI/Python 1.99.0").as_deref(), Some("OpenAI/Python 1.99.0"));
        assert_eq!(client("opencode").as_deref(), Some("opencode"));
        assert_eq!(client(""), None);
        assert_eq!(of(&[("originator", "codex_exec")]).client.as_deref(), Some("codex_exec"));
    }

    #[test]
    fn claude_code_sends_its_agent_and_its_class() {
        let labels = of(&[
            ("user-agent", "claude-cli/2.1.330 (external, sdk-cli)"),
            ("x-claude-code-session-id", "5f0c"),
            ("x-claude-code-agent-id", "a1"),
            ("x-claude-code-parent-agent-id", "a0"),
            ("x-claude-code-agent-type", "Explore"),
            ("x-claude-code-request-class", "workflow"),
            ("x-claude-code-context-compacted", "auto"),
        ]);
        let expected = Labels {
            client: Some("claude-cli/2.1.330".into()),
            agent: Some("a1".into()),
            agent_type: Some("Explore".into()),
            parent_agent: Some("a0".into()),
            thread: Some("5f0c".into()),
            request_class: Some(RequestClass::Subagent),
            after_compaction: true,
            ..Labels::default()
        };
        assert_eq!(labels, expected);
        let named = |name| class(&[("x-claude-code-request-class", name), ("x-claude-code-agent-id", "a1")]);
        let names = ["main", "subagent", "compaction", "auxiliary", "a later one"];
        assert_eq!(
            names.map(named),
            [Some("main"), Some("subagent"), Some("compaction"), Some("auxiliary"), None],
            "the class takes precedence over the agent"
        );
    }

    #[test]
    fn claude_code_without_hints_has_a_class_for_agents_only() {
        assert_eq!(class(&[("x-claude-code-session-id", "5f0c")]), None);
        assert_eq!(class(&[("x-claude-code-session-id", "5f0c"), ("x-claude-code-agent-id", "a1")]), Some("subagent"));
        assert_eq!(class(&[("x-claude-code-compaction", "manual")]), Some("compaction"));
    }

    #[test]
    fn codex_sends_its_turn_metadata() {
        let metadata =
            r#"{"session_id":"s","thread_id":"t","agent_name":"root","request_kind":"turn","thread_source":"user"}"#;
        let labels = of(&[("x-codex-turn-metadata", metadata), ("thread-id", "t"), ("originator", "codex_exec")]);
        let expected = Labels {
            client: Some("codex_exec".into()),
            agent: Some("root".into()),
            thread: Some("t".into()),
            request_class: Some(RequestClass::Main),
            ..Labels::default()
        };
        assert_eq!(labels, expected);
        let of_kind = |kind: &str, more: &[(&str, &str)]| {
            let metadata = format!("{{\"request_kind\":\"{kind}\"}}");
            class(&[&[("x-codex-turn-metadata", metadata.as_str())], more].concat())
        };
        let kinds = ["turn", "compaction", "prewarm", "memory", "subagent", "a later one"];
        assert_eq!(
            kinds.map(|kind| of_kind(kind, &[])),
            [Some("main"), Some("compaction"), Some("auxiliary"), Some("auxiliary"), Some("subagent"), None]
        );
        assert_eq!(of_kind("turn", &[("x-codex-parent-thread-id", "p")]), Some("subagent"));
        let subagents = ["review", "compact", "memory_consolidation", "collab_spawn"];
        assert_eq!(
            subagents.map(|kind| class(&[("x-openai-subagent", kind)])),
            [Some("subagent"), Some("compaction"), Some("auxiliary"), Some("subagent")]
        );
        let source = r#"{"request_kind":"turn","thread_source":"subagent","parent_thread_id":"p"}"#;
        let labels = of(&[("x-codex-turn-metadata", source)]);
        assert_eq!((labels.request_class, labels.parent_agent.as_deref()), (Some(RequestClass::Subagent), Some("p")));
        assert_eq!(class(&[("x-codex-turn-metadata", "{not JSON"), ("session-id", "s")]), None);
    }

    #[test]
    fn client_metadata_of_codex_adds_labels_that_the_headers_do_not_have() {
        let metadata = [
            ("thread_id", "t"),
            ("x-openai-subagent", "review"),
            ("x-codex-turn-metadata", r#"{"request_kind":"turn","agent_name":"reviewer"}"#),
        ];
        let mut labels = Labels { thread: Some("of a header".into()), ..Labels::default() };
        let member = |name: &str| metadata.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
        add_codex(&mut labels, member);
        let expected = Labels {
            agent: Some("reviewer".into()),
            agent_type: Some("review".into()),
            thread: Some("of a header".into()),
            request_class: Some(RequestClass::Subagent),
            ..Labels::default()
        };
        assert_eq!(labels, expected);
    }

    #[test]
    fn open_code_sends_its_session_and_that_of_its_parent() {
        let main = of(&[("x-session-affinity", "ses_1"), ("user-agent", "opencode/1.18.33 ai-sdk/5")]);
        assert_eq!((main.client.as_deref(), main.thread.as_deref()), (Some("opencode/1.18.33"), Some("ses_1")));
        assert_eq!(main.request_class, None, "the title of the session has the same headers");
        let task = of(&[("x-session-affinity", "ses_2"), ("x-parent-session-id", "ses_1")]);
        assert_eq!((task.request_class, task.parent_agent.as_deref()), (Some(RequestClass::Subagent), Some("ses_1")));
    }

    #[test]
    fn attribution_has_no_members_of_a_single_call() {
        let mut labels = Labels::default();
        add_attribution(
            &mut labels,
            "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=a1b2c;",
        );
        assert_eq!(labels.attribution.as_deref(), Some("cc_version=2.1.37.0d9; cc_entrypoint=cli"));
        assert_eq!(labels.request_class, None);
        let mut labels = Labels::default();
        add_attribution(
            &mut labels,
            "x-anthropic-billing-header: cc_version=2.1.263; cc_is_subagent=true; cc_prev_req=r1;",
        );
        assert_eq!(labels.attribution.as_deref(), Some("cc_version=2.1.263; cc_is_subagent=true"));
        assert_eq!(labels.request_class, Some(RequestClass::Subagent));
    }

    #[test]
    fn session_is_read_from_both_forms_of_user_id() {
        let uuid = "0b2f6c1e-7d0a-4c58-9d2e-000000000001";
        let json = format!(r#"{{"device_id":"d","account_uuid":"","session_id":"{uuid}"}}"#);
        assert_eq!(session_in_user_id(&json).as_deref(), Some(uuid));
        let older = format!("user_0123abcd_account__session_{uuid}");
        assert_eq!(session_in_user_id(&older).as_deref(), Some(uuid));
        for other in ["alice", "{", r#"{"session_id":7}"#, "{}", ""] {
            assert_eq!(session_in_user_id(other), None, "{other}");
        }
    }

    #[test]
    fn hostile_headers_are_bounded() {
        let long = "x".repeat(5000);
        let labels = of(&[("x-claude-code-agent-id", &long), ("user-agent", &long), ("x-codex-turn-metadata", &long)]);
        assert_eq!(labels.agent.map(|agent| agent.len()), Some(256));
        assert_eq!(labels.client.map(|client| client.len()), Some(256));
    }
}
