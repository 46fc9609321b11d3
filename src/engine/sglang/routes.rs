// SPDX-License-Identifier: Apache-2.0
//! SGLang's paths: which of them generate, which may block, which change the weights, and their labels in metrics.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::quality::RandomState;

use crate::json::percent_decode;

/// How tokentap handles a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// /generate, which is captured.
    Generate,
    /// Another path that generates tokens. They are captured if an API of tokentap serves the path.
    Generating,
    /// A call of a trainer or operator. It may block until running requests have ended.
    Control,
    /// Returns the engine's launch arguments, including its keys.
    Info,
    /// Any other path.
    Other,
}

/// A path with its label in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The path, its prefix, or `other`.
    pub endpoint: &'static str,
    /// How it is handled.
    pub kind: RouteKind,
}

/// Calls of trainers that change the engine's base weights.
const POLICY: [&str; 8] = [
    "/update_weights_from_disk",
    "/begin_weight_update",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/update_weights_from_ipc",
    "/end_weight_update",
    "/update_weight_version",
    "/resume_memory_occupation",
];

/// Calls of trainers that load or unload a LoRA adapter.
const ADAPTERS: [&str; 3] = ["/load_lora_adapter", "/load_lora_adapter_from_tensors", UNLOAD_ADAPTER];

const UNLOAD_ADAPTER: &str = "/unload_lora_adapter";

/// The member of the body of such a call that names the adapter.
pub(crate) const ADAPTER_NAME: &str = "lora_name";

/// How a call changes the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightChange {
    /// It begins an update of several calls.
    Begin,
    /// It is part of such an update.
    Part,
    /// It ends such an update.
    End,
    /// It is an update.
    Whole,
}

/// How a call changes adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdapterChange {
    /// It loads one.
    Load,
    /// It unloads one.
    Unload,
}

impl Route {
    /// How a call of this route changes adapters; `None` if it leaves them as they are.
    #[must_use]
    pub(crate) fn adapter_change(self) -> Option<AdapterChange> {
        ADAPTERS.contains(&self.endpoint).then_some(match self.endpoint {
            UNLOAD_ADAPTER => AdapterChange::Unload,
            _ => AdapterChange::Load,
        })
    }

    /// How a call of this route changes the base weights; `None` if it leaves them as they are.
    #[must_use]
    pub(crate) fn weight_change(self) -> Option<WeightChange> {
        match self.endpoint {
            "/begin_weight_update" => Some(WeightChange::Begin),
            "/end_weight_update" => Some(WeightChange::End),
            // SGLang 0.5.23 loads tensors only within an update; the other calls need none
            "/update_weights_from_tensor" | "/update_weights_from_distributed" | "/update_weight_version" => {
                Some(WeightChange::Part)
            }
            endpoint => POLICY.contains(&endpoint).then_some(WeightChange::Whole),
        }
    }

    /// Whether a call of this route pauses generation.
    #[must_use]
    pub(crate) fn pauses_generation(self) -> bool {
        self.endpoint == "/pause_generation"
    }

    /// Whether a call of this route continues generation.
    #[must_use]
    pub(crate) fn continues_generation(self) -> bool {
        self.endpoint == "/continue_generation"
    }

    /// Whether the engine can report the token ids of a reply of this route.
    #[must_use]
    pub fn reports_ids(self) -> bool {
        self.endpoint == CHAT
    }

    /// Whether the engine may stay silent on this route for any time, so that no idle timeout applies.
    #[must_use]
    pub fn allows_long_silence(self) -> bool {
        !matches!(self.kind, RouteKind::Info | RouteKind::Other)
    }
}

/// The captured route.
pub(crate) const GENERATE: Route = Route { endpoint: "/generate", kind: RouteKind::Generate };

/// OpenAI's chat.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// OpenAI's completions.
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// OpenAI's Responses.
pub(crate) const RESPONSES: &str = "/v1/responses";

/// Counts the tokens of a Responses request. It generates nothing.
pub(crate) const INPUT_TOKENS: &str = "/v1/responses/input_tokens";

/// A stored response.
pub(crate) const RESPONSE: &str = "/v1/responses/{id}";

/// The items of the input of a stored response.
pub(crate) const INPUT_ITEMS: &str = "/v1/responses/{id}/input_items";

/// Anthropic's Messages.
pub(crate) const MESSAGES: &str = "/v1/messages";

/// Counts the tokens of a Messages request. It generates nothing.
pub(crate) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

const GENERATING: [&str; 10] = [
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    "/v1/systemone",
    "/api/chat",
    "/api/generate",
    "/invocations",
    "/vertex_generate",
    "/generate_from_file",
];

/// Calls of trainers and operators that leave the policy as it is.
const CONTROL: [&str; 29] = [
    "/abort_request",
    "/flush_cache",
    "/pause_generation",
    "/continue_generation",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/init_weights_send_group_for_remote_instance",
    "/send_weights_to_remote_instance",
    "/get_weights_by_name",
    "/weights_checker",
    "/release_memory_occupation",
    "/set_internal_state",
    "/slow_down",
    "/pd_role_switch",
    "/configure_logging",
    "/freeze_gc",
    "/set_trace_level",
    "/dump_expert_distribution_record",
    "/clear_hicache_storage_backend",
    "/get_hicache_l3_cache_layout",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/add_external_corpus",
    "/remove_external_corpus",
    "/list_external_corpora",
    "/get_transfer_engine_info",
    "/register_transfer_engine_info",
    "/get_remote_instance_transfer_engine_info",
    "/remote_instance_transfer_engine_info",
];

/// Prefixes of further such calls, which are many or change with each version: profiles, traces, records.
pub(crate) const CONTROL_PREFIXES: [&str; 4] = ["/start_", "/stop_", "/hicache/", "/dumper/"];

/// Routes that return the engine's launch arguments, including its keys.
const INFO: [&str; 2] = ["/server_info", "/get_server_info"];

const OTHER: [&str; 16] = [
    "/health",
    "/health_generate",
    "/ready",
    "/ping",
    "/metrics",
    "/model_info",
    "/get_model_info",
    "/v1/models",
    "/v1/loads",
    "/tokenize",
    "/detokenize",
    "/encode",
    "/classify",
    "/v1/embeddings",
    "/open_session",
    "/close_session",
];

/// Returns the route of a path. Servers decode a path before the lookup, so `/%67enerate` is /generate.
#[must_use]
pub(crate) fn route(path: &str) -> Route {
    let path = &*percent_decode(path);
    // the engine's patterns end in `$`, which in Python also matches before a final line feed: `/flush_cache%0a` is /flush_cache
    let path = path.strip_suffix('\n').unwrap_or(path);
    let known = known(path).or_else(|| {
        // a server before the engine may simplify the path; a captured path must match exactly
        let route = known(&simplified(path))?;
        matches!(route.kind, RouteKind::Control | RouteKind::Info | RouteKind::Other).then_some(route)
    });
    known.unwrap_or(Route { endpoint: "other", kind: RouteKind::Other })
}

/// A path without empty segments, a slash at the end, `.` and `..`: RFC 3986, 5.2.4, and what nginx does by default.
fn simplified(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    segments.iter().flat_map(|segment| ["/", segment]).collect()
}

/// The routes by their paths.
static ROUTES: LazyLock<HashMap<&str, Route, RandomState>> = LazyLock::new(|| {
    let tables: [(&[&'static str], RouteKind); 7] = [
        (&[GENERATE.endpoint], GENERATE.kind),
        (&GENERATING, RouteKind::Generating),
        (&POLICY, RouteKind::Control),
        (&ADAPTERS, RouteKind::Control),
        (&CONTROL, RouteKind::Control),
        (&INFO, RouteKind::Info),
        (&OTHER, RouteKind::Other),
    ];
    let of = |(paths, kind): (&'static [&'static str], RouteKind)| {
        paths.iter().map(move |endpoint| (*endpoint, Route { endpoint, kind }))
    };
    tables.into_iter().flat_map(of).collect()
});

fn known(path: &str) -> Option<Route> {
    if let Some(route) = ROUTES.get(path) {
        return Some(*route);
    }
    let prefix = CONTROL_PREFIXES.iter().find(|prefix| path.starts_with(**prefix))?;
    Some(Route { endpoint: prefix, kind: RouteKind::Control })
}

/// Whether a 400 means that the weights changed nevertheless: 0.5.23 answers so if only the cache could not be flushed, because requests
/// are paused.
pub(crate) fn has_changed_weights(refusal: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ErrorReply {
        message: String,
    }
    let reply = serde_json::from_slice::<ErrorReply>(refusal);
    reply.is_ok_and(|reply| reply.message.to_ascii_lowercase().contains("flush"))
}

/// The paths of all control routes without those of a prefix.
pub(crate) fn control_paths() -> impl Iterator<Item = &'static str> {
    POLICY.into_iter().chain(ADAPTERS).chain(CONTROL)
}

/// The label of a method in metrics.
#[must_use]
pub(crate) fn method_label(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "DELETE" => "DELETE",
        "PATCH" => "PATCH",
        _ => "other",
    }
}
