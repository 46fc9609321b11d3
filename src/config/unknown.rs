// SPDX-License-Identifier: Apache-2.0
//! Names that are not settings. An ignored setting would change what runs without a sign of it, so each is an error.

/// The start of the name of each setting in the environment.
const PREFIX: &str = "TOKENTAP_";

/// Variables with the same start that are not settings: those of the Python packages and of the plugin for SGLang, and the version that images
/// state.
const FOREIGN: [&str; 7] = [
    "TOKENTAP_BASE_URL",
    "TOKENTAP_BIN",
    "TOKENTAP_CONTROL_URL",
    "TOKENTAP_ENTROPY_TOP_K",
    "TOKENTAP_SGLANG_LOGGED",
    "TOKENTAP_TOKEN",
    "TOKENTAP_VERSION",
];

/// The similarity above which a setting is suggested, as in clap.
const SIMILAR: f64 = 0.7;

/// The variable of a setting.
pub(super) fn variable(setting: &str) -> String {
    format!("{PREFIX}{}", setting.to_uppercase().replace('-', "_"))
}

/// Error message for a name that is not a setting: `shown` is the name as written, `place` is where ("in FILE"), and `notation` writes a
/// suggestion.
pub(super) fn line<'a>(
    shown: &str,
    place: &str,
    settings: impl IntoIterator<Item = &'a str>,
    notation: impl Fn(&str) -> String,
) -> String {
    let name = shown.strip_prefix(PREFIX).unwrap_or(shown).trim_start_matches('-').to_lowercase().replace('_', "-");
    let suggestion = similar(&name, settings)
        .map_or_else(String::new, |setting| format!("; a similar one is {}", notation(setting)));
    format!("{shown} {place}: there is no such setting{suggestion}")
}

/// The known name that is most similar to an unknown one.
pub(super) fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let rated = known.into_iter().map(|known| (strsim::jaro(name, known), known));
    let nearest = rated.filter(|(rate, _)| *rate > SIMILAR).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map(|(_, known)| known)
}

/// Error message for the first variable of `environment`, by name, that has the prefix of settings and is not one of any command.
pub(super) fn in_environment(command: &clap::Command, environment: &[String]) -> Option<String> {
    let arguments = || command.get_subcommands().flat_map(clap::Command::get_arguments);
    let settings = || arguments().filter(|arg| arg.get_env().is_some()).filter_map(clap::Arg::get_long);
    let is_known = |name: &str| {
        FOREIGN.contains(&name)
            || settings().any(|setting| variable(setting) == name)
            || is_service_link(name, environment)
    };
    let unknown = environment.iter().filter(|name| name.starts_with(PREFIX) && !is_known(name)).min()?;
    Some(line(unknown, "in the environment", settings(), variable))
}

/// Whether Kubernetes has set the variable, for a Service whose name begins with `tokentap`. Each Service has a `_SERVICE_HOST` and a
/// `_SERVICE_PORT`; without them the name is a misspelt setting.
fn is_service_link(name: &str, environment: &[String]) -> bool {
    let is_set = |name: String| environment.contains(&name);
    let services = environment.iter().filter_map(|name| name.strip_suffix("_SERVICE_HOST"));
    services
        .filter(|service| is_set(format!("{service}_SERVICE_PORT")))
        .filter_map(|service| name.strip_prefix(service))
        .any(is_link)
}

/// Whether the rest of a name, after that of a Service, is one of `_SERVICE_HOST`, `_SERVICE_PORT`, `_SERVICE_PORT_NAME`, `_PORT`,
/// `_PORT_80_TCP` and `_PORT_80_TCP_{PROTO,PORT,ADDR}`.
fn is_link(rest: &str) -> bool {
    if let Some(port) = rest.strip_prefix("_SERVICE_PORT_") {
        return !port.is_empty();
    }
    let Some(port) = rest.strip_prefix("_PORT_") else {
        return matches!(rest, "_SERVICE_HOST" | "_SERVICE_PORT" | "_PORT");
    };
    let mut parts = port.split('_');
    let is_port = parts.next().is_some_and(|port| port.parse::<u16>().is_ok());
    let is_protocol = parts.next().is_some_and(|protocol| matches!(protocol, "TCP" | "UDP" | "SCTP"));
    let is_member = parts.next().is_none_or(|member| matches!(member, "PROTO" | "PORT" | "ADDR"));
    is_port && is_protocol && is_member && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::Cli;

    fn unknown(names: &[&str]) -> Option<String> {
        in_environment(&Cli::command(), &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn unknown_variable_is_named_with_a_similar_one() {
        assert_eq!(
            unknown(&["PATH", "TOKENTAP_UPSTREAM", "TOKENTAP_MAX_REQUEST"]).unwrap(),
            "TOKENTAP_MAX_REQUEST in the environment: there is no such setting; a similar one is TOKENTAP_MAX_REQUESTS"
        );
        assert_eq!(unknown(&["TOKENTAP_QQQ"]).unwrap(), "TOKENTAP_QQQ in the environment: there is no such setting");
        for known in ["TOKENTAP", "TOKENTAP_CONFIG", "TOKENTAP_OUT", "TOKENTAP_BIN", "TOKENTAP_VERSION", "TOKENTAPE_X"]
        {
            assert_eq!(unknown(&[known]), None, "{known}");
        }
    }

    #[test]
    fn variables_of_a_service_of_kubernetes_are_ignored() {
        for service in ["TOKENTAP", "TOKENTAP_AGENTS"] {
            let rests = [
                "_SERVICE_HOST",
                "_SERVICE_PORT",
                "_SERVICE_PORT_HTTP_DATA",
                "_PORT",
                "_PORT_30001_TCP",
                "_PORT_30001_TCP_PROTO",
                "_PORT_30001_TCP_PORT",
                "_PORT_30001_TCP_ADDR",
            ];
            let names = rests.map(|rest| format!("{service}{rest}"));
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(unknown(&names), None);
            for name in &names {
                assert!(unknown(&[name]).is_some(), "{name} without a service is a misspelt setting");
            }
            for rest in ["_PORT_30001", "_PORT_X_TCP", "_PORT_30001_TCP_X", "_SERVICE_PORT_", "_PORTS", "_SERVICE"] {
                let other = format!("{service}{rest}");
                assert!(unknown(&[&names[..], &[&*other]].concat()).unwrap().starts_with(&other), "{other}");
            }
        }
    }
}
