//! Metrics of TLS on the ports.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::declare::{Declare, options};

/// Handles. A `port` is `data` or `control`; one without TLS has no series.
#[derive(Debug)]
pub struct TlsMetrics {
    /// When the certificate that is shown ends, in seconds since 1970, by `port`.
    pub expiry: IntGaugeVec,
    /// Changes of the files, by `port`, `result`: ok, failed (the pair before stays).
    pub reloads: IntCounterVec,
    /// Connections on which no TLS came about, by `port`, `reason`.
    pub failures: IntCounterVec,
}

impl TlsMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        Self {
            expiry: d.keep(IntGaugeVec::new(
                options("tls_certificate_expiry_timestamp_seconds", "When the certificate ends, since 1970."),
                &["port"],
            )),
            reloads: d.counters("tls_reloads_total", "Changes of certificate and key.", &["port", "result"]),
            failures: d.counters(
                "tls_handshake_failures_total",
                "Connections on which no TLS came about.",
                &["port", "reason"],
            ),
        }
    }
}
