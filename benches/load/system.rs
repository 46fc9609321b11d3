//! What the system counts of its TCP connections: it tells a request that the system lost from one that tokentap did.

use std::collections::BTreeMap;
use std::fmt;

/// The counters that rise when the system drops or sends again: names of /proc/net/netstat and /proc/net/snmp.
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

/// Their values, or what they rose by.
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// As they are.
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

    /// What has come since.
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
