//! Metrics of TLS on the ports.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::declare::{Declare, options};

/// Handles of the metrics. A `port` is `data` or `control`. A port without TLS has no series.
#[derive(Debug)]
pub struct TlsMetrics {
    /// Expiry of the certificate in use, in seconds since 1970, by `port`.
    pub expiry: IntGaugeVec,
    /// Reloads of changed files, by `port`, `result`: ok, or failed (the old pair stays in use).
    pub reloads: IntCounterVec,
    /// Failed TLS handshakes, by `port`, `reason`.
    pub failures: IntCounterVec,
}

impl TlsMetrics {
    pub(super) fn declare(d: &Declare<'_>) -> Self {
        Self {
            expiry: d.keep(IntGaugeVec::new(
                options(
                    "tls_certificate_expiry_timestamp_seconds",
                    "Expiry of the certificate, in seconds since 1970.",
                ),
                &["port"],
            )),
            reloads: d.counters(
                "tls_reloads_total",
                "Reloads of certificate and key after they changed.",
                &["port", "result"],
            ),
            failures: d.counters("tls_handshake_failures_total", "Failed TLS handshakes.", &["port", "reason"]),
        }
    }
}
