// SPDX-License-Identifier: Apache-2.0
//! The system's TCP counters, which distinguish requests lost by the system from those lost by tokentap.

use std::collections::BTreeMap;
use std::fmt;

/// Counters of drops and retransmissions: names of /proc/net/netstat and /proc/net/snmp.
const COUNTERS: [&str; 9] = [
    "ListenOverflows",
    "ListenDrops",
    "TCPReqQFullDrop",
    "TCPBacklogDrop",
    "TCPRcvQDrop",
    "TCPTimeouts",
    "TCPAbortOnMemory",
    "RetransSegs",
    "OutRsts",
];

/// Their values or increases.
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// The current values.
    pub fn now() -> Self {
        let mut all = BTreeMap::new();
        for path in ["/proc/net/netstat", "/proc/net/snmp"] {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            // a line of names and a line of values
            for pair in lines.chunks_exact(2) {
                let values = pair[1].split_whitespace().map(|value| value.parse().unwrap_or(0));
                let named = pair[0].split_whitespace().map(str::to_owned).zip(values);
                all.extend(named.filter(|(name, _)| COUNTERS.contains(&name.as_str())));
            }
        }
        Self(all)
    }

    /// The increase since then.
    pub fn rise(&self) -> Self {
        let now = Self::now();
        Self(
            now.0
                .into_iter()
                .map(|(name, value)| (name.clone(), value - self.0.get(&name).copied().unwrap_or(0)))
                .collect(),
        )
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let risen: Vec<String> =
            self.0.iter().filter(|(_, value)| **value > 0).map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(if risen.is_empty() { "none" } else { "" })?;
        f.write_str(&risen.join(", "))
    }
}
