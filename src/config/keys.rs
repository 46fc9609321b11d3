//! Keys, given themselves or as files.

use std::path::PathBuf;

use clap::Args;

use super::Secret;

/// Keys of tokentap's own calls, and of its ports.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Keys")]
pub struct KeyConfig {
    /// Key for tokentap's own calls to the upstream
    #[arg(long, env = "TOKENTAP_UPSTREAM_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub upstream_api_key: Option<Secret>,
    /// The same, read from a file
    #[arg(long, env = "TOKENTAP_UPSTREAM_API_KEY_FILE", value_name = "FILE", conflicts_with = "upstream_api_key")]
    pub upstream_api_key_file: Option<PathBuf>,
    /// Admin key for tokentap's own calls (abort) to an upstream that has one
    #[arg(long, env = "TOKENTAP_UPSTREAM_ADMIN_KEY", value_name = "KEY", hide_env_values = true)]
    pub upstream_admin_key: Option<Secret>,
    /// The same, read from a file
    #[arg(long, env = "TOKENTAP_UPSTREAM_ADMIN_KEY_FILE", value_name = "FILE", conflicts_with = "upstream_admin_key")]
    pub upstream_admin_key_file: Option<PathBuf>,
    /// Bearer token of the data port; requests go on with --upstream-api-key in its place
    #[arg(long, env = "TOKENTAP_AGENT_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub agent_token: Option<Secret>,
    /// The same, read from a file
    #[arg(long, env = "TOKENTAP_AGENT_TOKEN_FILE", value_name = "FILE", conflicts_with = "agent_token")]
    pub agent_token_file: Option<PathBuf>,
    /// Let agents use SGLang's control routes (weights, pause, flush, abort everything) on the data port
    #[arg(long, env = "TOKENTAP_ALLOW_CONTROL", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub allow_control: bool,
    /// Bearer token of the control port
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub control_token: Option<Secret>,
    /// The same, read from a file
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN_FILE", value_name = "FILE", conflicts_with = "control_token")]
    pub control_token_file: Option<PathBuf>,
    /// Leave a control port that is not loopback without a token
    #[arg(long, env = "TOKENTAP_CONTROL_OPEN", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub control_open: bool,
    /// Host names, besides loopback, under which the control port answers; one that begins with a dot is any label before it
    #[arg(long, env = "TOKENTAP_CONTROL_HOST", value_name = "NAME", value_delimiter = ',')]
    pub control_host: Vec<String>,
    /// Bearer token of /metrics
    #[arg(long, env = "TOKENTAP_METRICS_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub metrics_token: Option<Secret>,
    /// The same, read from a file
    #[arg(long, env = "TOKENTAP_METRICS_TOKEN_FILE", value_name = "FILE", conflicts_with = "metrics_token")]
    pub metrics_token_file: Option<PathBuf>,
}

impl KeyConfig {
    /// Drops the keys for which `gives_way` holds, by the names of their fields.
    pub(super) fn give_way(&mut self, gives_way: impl Fn(&str) -> bool) {
        for (id, key) in [
            ("upstream_api_key", &mut self.upstream_api_key),
            ("upstream_admin_key", &mut self.upstream_admin_key),
            ("agent_token", &mut self.agent_token),
            ("control_token", &mut self.control_token),
            ("metrics_token", &mut self.metrics_token),
        ] {
            if gives_way(id) {
                *key = None;
            }
        }
    }

    /// Every key, with its flag.
    #[must_use]
    pub fn all(&self) -> [(&'static str, Option<&Secret>); 5] {
        [
            ("--upstream-api-key", self.upstream_api_key.as_ref()),
            ("--upstream-admin-key", self.upstream_admin_key.as_ref()),
            ("--agent-token", self.agent_token.as_ref()),
            ("--control-token", self.control_token.as_ref()),
            ("--metrics-token", self.metrics_token.as_ref()),
        ]
    }

    /// Reads the keys that are given as files.
    ///
    /// # Errors
    /// A line for the user: a file cannot be read, or a key is empty.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        for (name, file, key) in [
            ("--upstream-api-key-file", &self.upstream_api_key_file, &mut self.upstream_api_key),
            ("--upstream-admin-key-file", &self.upstream_admin_key_file, &mut self.upstream_admin_key),
            ("--agent-token-file", &self.agent_token_file, &mut self.agent_token),
            ("--control-token-file", &self.control_token_file, &mut self.control_token),
            ("--metrics-token-file", &self.metrics_token_file, &mut self.metrics_token),
        ] {
            // a key that is left goes before its file
            if let (Some(path), None) = (file, &key) {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{name}: cannot read {}: {error}", path.display()))?;
                *key = Some(Secret::from(text.trim()));
            }
        }
        for (name, secret) in self.all() {
            if secret.is_some_and(|secret| secret.expose().is_empty()) {
                return Err(format!(
                    "{name} is empty, which would be a key that everybody has: leave it out, or give one"
                ));
            }
        }
        Ok(())
    }
}
