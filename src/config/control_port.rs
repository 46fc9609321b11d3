//! The control port of a running tokentap, for commands that send requests to it.

use std::path::PathBuf;

use clap::Args;

use super::ControlToken;

/// The address, the CA and the token of a control port.
#[derive(Debug, Clone, Args)]
pub struct ControlPortArgs {
    /// Control port of the running tokentap
    #[arg(
        long,
        env = "TOKENTAP_CONTROL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:30002"
    )]
    pub control: String,
    /// PEM file with the CA of a control port with TLS: --control https://HOST:PORT
    #[arg(long, env = "TOKENTAP_CONTROL_CA", value_name = "FILE")]
    pub control_ca: Option<PathBuf>,
    /// Bearer token of the control port, or @FILE; none if the port is open
    #[arg(long, env = "TOKENTAP_CONTROL_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = ControlToken::parse)]
    pub control_token: Option<ControlToken>,
}

impl ControlPortArgs {
    /// TLS and a CA come together, or not at all: no setting may be ignored in silence.
    pub(super) fn check(&self) -> Result<(), String> {
        match (self.control.starts_with("https://"), &self.control_ca) {
            (false, None) | (true, Some(_)) => Ok(()),
            (true, None) => {
                Err(format!("--control {} needs the CA of its certificate: --control-ca FILE", self.control))
            }
            (false, Some(_)) => {
                Err(format!("--control-ca needs --control https://HOST:PORT, which {} is not", self.control))
            }
        }
    }
}
