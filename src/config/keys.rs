// SPDX-License-Identifier: Apache-2.0
//! Keys of the ports and of the upstream.

use clap::Args;

use super::Secret;

/// The value of `--control-token` that opens the control port.
const NONE: &str = "none";

/// `--control-token`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlToken {
    /// `none`: the control port is open on purpose.
    None,
    /// Requests to the control port need this token.
    Token(Secret),
}

impl ControlToken {
    /// Parses a token, `@` and the path of the file that holds one, or `none`.
    ///
    /// # Errors
    /// Error message if the file cannot be read, the token is empty, or the token could be meant as `none`: `None`, or `none` in
    /// a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == NONE {
            return Ok(Self::None);
        }
        let token = Secret::parse(text)?;
        if token.expose().trim().eq_ignore_ascii_case(NONE) {
            return Err("none cannot be a token; to leave the control port open, give none itself, in lower case and not in a file"
                .to_owned());
        }
        Ok(Self::Token(token))
    }

    /// The token, unless the port is open.
    #[must_use]
    pub fn secret(&self) -> Option<&Secret> {
        match self {
            Self::None => None,
            Self::Token(token) => Some(token),
        }
    }
}

/// Keys of tokentap's own calls, and of its ports.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Keys")]
pub struct KeyConfig {
    /// Key for tokentap's own calls to the upstream, or @FILE
    #[arg(long, env = "TOKENTAP_UPSTREAM_API_KEY", value_name = "KEY", hide_env_values = true, value_parser = Secret::parse)]
    pub upstream_api_key: Option<Secret>,
    /// Send --upstream-api-key also with agents' requests that have no key
    #[arg(long, env = "TOKENTAP_FORWARD_UPSTREAM_API_KEY", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub forward_upstream_api_key: bool,
    /// Admin key for tokentap's own calls (abort) to an upstream that has one, or @FILE
    #[arg(long, env = "TOKENTAP_UPSTREAM_ADMIN_KEY", value_name = "KEY", hide_env_values = true, value_parser = Secret::parse)]
    pub upstream_admin_key: Option<Secret>,
    /// Bearer token of the data port, or @FILE; requests are forwarded with --upstream-api-key instead
    #[arg(long, env = "TOKENTAP_AGENT_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = Secret::parse)]
    pub agent_token: Option<Secret>,
    /// Allow SGLang's control routes (weights, pause, flush, abort all) on the data port
    #[arg(long, env = "TOKENTAP_ALLOW_CONTROL", value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub allow_control: bool,
    /// Bearer token of the control port, or @FILE; none is no token and leaves the port open, also if it is not loopback
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = ControlToken::parse)]
    pub(super) control_token: Option<ControlToken>,
    /// Host names under which the control port answers, besides loopback; .example.com allows every subdomain
    #[arg(long, env = "TOKENTAP_CONTROL_HOST", value_name = "NAME", value_delimiter = ',')]
    pub control_host: Vec<String>,
    /// Bearer token of /metrics, or @FILE
    #[arg(long, env = "TOKENTAP_METRICS_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = Secret::parse)]
    pub metrics_token: Option<Secret>,
}

impl KeyConfig {
    /// The bearer token of the control port; `None` if the port is open.
    #[must_use]
    pub fn control_token(&self) -> Option<&Secret> {
        self.control_token.as_ref().and_then(ControlToken::secret)
    }

    /// Refuses to forward a key that is not set.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.forward_upstream_api_key && self.upstream_api_key.is_none() {
            return Err("--forward-upstream-api-key is of no use without --upstream-api-key".to_owned());
        }
        Ok(())
    }

    /// Every key that is set.
    pub fn all(&self) -> impl Iterator<Item = &Secret> {
        let keys = [&self.upstream_api_key, &self.upstream_admin_key, &self.agent_token, &self.metrics_token];
        keys.into_iter().flatten().chain(self.control_token())
    }
}
