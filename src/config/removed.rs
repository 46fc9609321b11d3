//! Settings of earlier versions.

/// Settings that were removed, and what takes their place.
pub(super) const REMOVED: &[(&str, &str)] = &[
    ("upstream-api-key-file", "give --upstream-api-key @FILE"),
    ("upstream-admin-key-file", "give --upstream-admin-key @FILE"),
    ("agent-token-file", "give --agent-token @FILE"),
    ("control-token-file", "give --control-token @FILE"),
    ("control-open", "to leave the control port open give --control-token none"),
    ("metrics-token-file", "give --metrics-token @FILE"),
    ("think-start", "give --think-tokens OPEN,CLOSE"),
    ("think-end", "give --think-tokens OPEN,CLOSE"),
    ("jax-force", "give --entropy always"),
    ("max-turns", "give --chat-limits turns=N"),
    ("max-tool-turns", "give --chat-limits tool-turns=N"),
    ("max-tool-calls", "give --chat-limits tool-calls=N"),
    ("generation-config", "put generation_config.json into the folder of --tokenizer"),
    ("upstream-header-timeout", "give --upstream-timeout"),
    ("upstream-idle-timeout", "give --upstream-timeout"),
    ("upstream-total-timeout", "give --upstream-timeout"),
    ("max-session-branches", "it is a quarter of --max-session-turns"),
    ("reply-budget", "it is fixed at 64 MiB"),
    ("cumulative-stream-tokens", "it is fixed at 512; a request with return_entropy: true is measured at any length"),
    ("max-top-logprobs", "it is fixed at 1024"),
    ("entropy-ttl", "it is fixed at 300 s"),
    ("entropy-entries", "it is fixed at 16384"),
    ("entropy-bytes", "it is fixed at 16 MiB"),
    ("entropy-threads", "it is half of the cores, at most 4"),
    ("slice-memory", "it is fixed at 64 MiB"),
    ("max-slice-bytes", "it is fixed at 8 GiB"),
    ("cuda-memory", "it is a quarter of the device's free memory, at most 256 MiB"),
    ("cuda-deadline", "it is fixed at 200 us"),
    ("client-header-timeout", "it is fixed at 10 s"),
    ("client-body-timeout", "it is fixed at 30 s"),
    ("client-read-timeout", "it is fixed at 60 s"),
    ("client-idle-timeout", "it is fixed at 75 s"),
    ("max-export-bytes", "it is fixed at 8 GiB"),
    ("connect-timeout", "it is fixed at 1 s"),
    ("breaker-failures", "it is fixed at 5"),
    ("pool-idle-timeout", "it is fixed at 3 s"),
    ("drift-sample", "it is fixed at 0.01"),
];

/// What takes the place of a removed setting, which is named without dashes in front; `None` for other names.
pub(super) fn replacement(name: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(removed, _)| *removed == name).map(|(_, instead)| *instead)
}

/// A line for the user where the environment sets a removed setting, which would otherwise be ignored in silence.
pub(super) fn in_environment() -> Option<String> {
    REMOVED.iter().find_map(|(name, instead)| {
        let variable = format!("TOKENTAP_{}", name.to_uppercase().replace('-', "_"));
        std::env::var_os(&variable)?;
        Some(format!("{variable} in the environment: --{name} was removed; {instead}"))
    })
}
