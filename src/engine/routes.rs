//! What is known about SGLang's paths: which generate, which may block, and the bounded names that metrics use.

use std::borrow::Cow;

/// What tokentap does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// /generate: captured.
    Generate,
    /// Generates tokens that tokentap does not see.
    Uncaptured,
    /// Calls of trainers and operators; they may block until running requests have ended.
    Control,
    /// Says how the engine was started, its keys among it.
    Info,
    /// Everything else.
    Other,
}

/// A path as metrics name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The path, or how it begins, or `other`.
    pub endpoint: &'static str,
    /// What is done with it.
    pub kind: Kind,
}

/// Trainers' calls that change what the engine samples from.
const POLICY: [&str; 11] = [
    "/update_weights_from_disk",
    "/begin_weight_update",
    "/update_weights_from_distributed",
    "/update_weights_from_tensor",
    "/update_weights_from_ipc",
    "/end_weight_update",
    "/update_weight_version",
    "/load_lora_adapter",
    "/load_lora_adapter_from_tensors",
    "/unload_lora_adapter",
    "/resume_memory_occupation",
];

impl Route {
    /// Whether a success of this route may change the policy.
    #[must_use]
    pub fn changes_policy(self) -> bool {
        POLICY.contains(&self.endpoint)
    }

    /// Whether the engine may be silent on this route for as long as it likes.
    #[must_use]
    pub fn is_patient(self) -> bool {
        !matches!(self.kind, Kind::Info | Kind::Other)
    }
}

/// The captured route.
pub const GENERATE: Route = Route { endpoint: "/generate", kind: Kind::Generate };

/// OpenAI's chat.
pub const CHAT: &str = "/v1/chat/completions";

/// OpenAI's completions.
pub const COMPLETIONS: &str = "/v1/completions";

const UNCAPTURED: [&str; 10] = [
    CHAT,
    COMPLETIONS,
    "/v1/responses",
    "/v1/messages",
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

/// Such calls that are many, or new with each version: profiles, traces, records.
const CONTROL_BEGINNINGS: [&str; 4] = ["/start_", "/stop_", "/hicache/", "/dumper/"];

/// What the engine was started with, its keys among it.
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

/// The route of a path; servers decode it before they look it up, so `/%67enerate` is /generate.
#[must_use]
pub fn route(path: &str) -> Route {
    let path = &*decode(path);
    // the engine's patterns end in `$`, which in Python also matches before one line feed at the end: `/flush_cache%0a` is /flush_cache
    let path = path.strip_suffix('\n').unwrap_or(path);
    let known = known(path).or_else(|| {
        // some servers take no notice of a slash behind it; of what is captured, the path has to be its own
        let route = known(path.strip_suffix('/')?)?;
        matches!(route.kind, Kind::Control | Kind::Info | Kind::Other).then_some(route)
    });
    known.unwrap_or(Route { endpoint: "other", kind: Kind::Other })
}

fn known(path: &str) -> Option<Route> {
    if path == "/generate" {
        return Some(GENERATE);
    }
    let tables: [(&[&'static str], Kind); 5] = [
        (&UNCAPTURED, Kind::Uncaptured),
        (&POLICY, Kind::Control),
        (&CONTROL, Kind::Control),
        (&INFO, Kind::Info),
        (&OTHER, Kind::Other),
    ];
    for (paths, kind) in tables {
        if let Some(endpoint) = paths.iter().find(|known| **known == path) {
            return Some(Route { endpoint, kind });
        }
    }
    let beginning = CONTROL_BEGINNINGS.iter().find(|beginning| path.starts_with(**beginning))?;
    Some(Route { endpoint: beginning, kind: Kind::Control })
}

/// A method as metrics name it.
#[must_use]
pub fn method_label(method: &http::Method) -> &'static str {
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

/// Percent-decoding, of a path or a part of one.
#[must_use]
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped = digits.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}
