// SPDX-License-Identifier: Apache-2.0
//! Exact entropies of the engine's plugin: tokentap uses them, labels them as exact, and rejects impossible values.

mod odd;
mod plugin;
mod sampled;
