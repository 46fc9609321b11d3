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
    /// Every key to be filled or dropped, with the name of its field and the file that may hold it.
    fn slots(&mut self) -> [(&'static str, Option<&PathBuf>, &mut Option<Secret>); 5] {
        [
            ("upstream_api_key", self.upstream_api_key_file.as_ref(), &mut self.upstream_api_key),
            ("upstream_admin_key", self.upstream_admin_key_file.as_ref(), &mut self.upstream_admin_key),
            ("agent_token", self.agent_token_file.as_ref(), &mut self.agent_token),
            ("control_token", self.control_token_file.as_ref(), &mut self.control_token),
            ("metrics_token", self.metrics_token_file.as_ref(), &mut self.metrics_token),
        ]
    }

    /// Drops the keys for which `gives_way` holds, by the names of their fields.
    pub(super) fn give_way(&mut self, gives_way: impl Fn(&str) -> bool) {
        for (_, _, key) in self.slots().into_iter().filter(|(id, ..)| gives_way(id)) {
            *key = None;
        }
    }

    /// Every key that there is.
    pub fn all(&self) -> impl Iterator<Item = &Secret> {
        let upstream = [&self.upstream_api_key, &self.upstream_admin_key];
        upstream.into_iter().chain([&self.agent_token, &self.control_token, &self.metrics_token]).flatten()
    }

    /// Reads the keys that are given as files.
    ///
    /// # Errors
    /// A line for the user: a file cannot be read, or a key is empty.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        for (id, file, key) in self.slots() {
            let flag = format!("--{}", id.replace('_', "-"));
            // a key that is left goes before its file
            if let (Some(path), None) = (file, &key) {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{flag}-file: cannot read {}: {error}", path.display()))?;
                *key = Some(Secret::from(text.trim()));
            }
            if key.as_ref().is_some_and(|secret| secret.expose().is_empty()) {
                return Err(format!(
                    "{flag} is empty, which would be a key that everybody has: leave it out, or give one"
                ));
            }
        }
        Ok(())
    }
}
