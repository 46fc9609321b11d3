//! Upper bounds of the histograms' buckets.

/// Entropy in nats. Half of the tokens of a chain of thought are below 0.01; "forking" tokens begin near 0.7; 13 is above ln V of every
/// vocabulary in use.
pub const ENTROPY_BUCKETS: [f64; 16] =
    [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.5, 7.0, 13.0];
/// Probability mass of the reported top-k.
pub const MASS_BUCKETS: [f64; 9] = [0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999];
/// The buckets of SGLang's end-to-end latency in seconds, so that both can be shown in one panel.
pub(super) const LATENCY_BUCKETS: [f64; 19] =
    [0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 2400.0];
/// Time that tokentap spends on a reply in seconds, 10 µs to 100 ms.
pub(super) const OVERHEAD_BUCKETS: [f64; 13] =
    [1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1];
