//! Keys of the ports and of the upstream.

use clap::Args;

use super::Secret;

/// Keys of tokentap's own calls, and of its ports.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Keys")]
pub struct KeyConfig {
    /// Key for tokentap's own calls to the upstream, or @FILE
    #[arg(long, env = "TOKENTAP_UPSTREAM_API_KEY", value_name = "KEY", hide_env_values = true, value_parser = Secret::parse)]
    pub upstream_api_key: Option<Secret>,
    /// Admin key for tokentap's own calls (abort) to an upstream that has one, or @FILE
    #[arg(long, env = "TOKENTAP_UPSTREAM_ADMIN_KEY", value_name = "KEY", hide_env_values = true, value_parser = Secret::parse)]
    pub upstream_admin_key: Option<Secret>,
    /// Bearer token of the data port, or @FILE; requests are forwarded with --upstream-api-key instead
    #[arg(long, env = "TOKENTAP_AGENT_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = Secret::parse)]
    pub agent_token: Option<Secret>,
    /// Allow SGLang's control routes (weights, pause, flush, abort all) on the data port
    #[arg(long, env = "TOKENTAP_ALLOW_CONTROL", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub allow_control: bool,
    /// Bearer token of the control port, or @FILE
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = Secret::parse)]
    pub control_token: Option<Secret>,
    /// Allow a control port that is not loopback without a token
    #[arg(long, env = "TOKENTAP_CONTROL_OPEN", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub control_open: bool,
    /// Host names under which the control port answers, besides loopback; .example.com allows every subdomain
    #[arg(long, env = "TOKENTAP_CONTROL_HOST", value_name = "NAME", value_delimiter = ',')]
    pub control_host: Vec<String>,
    /// Bearer token of /metrics, or @FILE
    #[arg(long, env = "TOKENTAP_METRICS_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = Secret::parse)]
    pub metrics_token: Option<Secret>,
}

impl KeyConfig {
    /// Every key that is set.
    pub fn all(&self) -> impl Iterator<Item = &Secret> {
        let upstream = [&self.upstream_api_key, &self.upstream_admin_key];
        upstream.into_iter().chain([&self.agent_token, &self.control_token, &self.metrics_token]).flatten()
    }
}
