// SPDX-License-Identifier: Apache-2.0
//! The settings of the client, of connections and of generations, from the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::columns::{ExpertShape, ROUTED_EXPERTS_AT, SAMPLING_MASK_AT};
use crate::config::{ColumnConfig, ColumnName, Config, EntropyDefault, MoeShape, OnAbort, Secret, Teacher};
use crate::engine::plan::PlanLimits;
use crate::engine::transport::client::{Client, ClientSettings};
use crate::generation::settings::{
    AbortPolicy, ColumnSettings, EntropyMode, EntropySettings, GenerationSettings, SessionLimits,
};
use crate::serve::connection::ServerLimits;
use crate::serve::teacher;

/// The client of the upstream.
///
/// # Errors
/// A line for the user when `--upstream` is not the URL of a server, a key is not valid in a header, or the CAs cannot be used.
pub fn client(config: &Config) -> Result<Client, String> {
    let settings = ClientSettings {
        api_key: config.keys.upstream_api_key.as_ref().map(Secret::expose),
        admin_key: config.keys.upstream_admin_key.as_ref().map(Secret::expose),
        connect_timeout: config.limits.connect_timeout,
        pool_idle_timeout: config.limits.pool_idle_timeout,
        breaker_failures: config.limits.breaker_failures,
        ca: config.upstream_ca.as_deref(),
    };
    Client::try_new(&config.upstream, settings)
}

/// The clients of the teachers, by name.
///
/// # Errors
/// A line for the user when a URL is not that of a server, or a key is not valid in a header.
pub fn teachers(config: &Config) -> Result<BTreeMap<String, Client>, String> {
    let client = |teacher: &Teacher| {
        let client = teacher::client(config, &teacher.url, teacher.key.as_ref());
        Ok((teacher.name.clone(), client.map_err(|error| format!("--teacher {}: {error}", teacher.name))?))
    };
    config.teachers.iter().map(client).collect()
}

/// The limits of connections to the data port.
pub(super) fn connections(config: &Config) -> ServerLimits {
    let limits = &config.limits;
    ServerLimits {
        header_timeout: limits.client_header_timeout,
        idle_timeout: limits.client_idle_timeout,
        read_timeout: limits.client_read_timeout,
        connections: limits.max_connections.min(Semaphore::MAX_PERMITS),
        drain: limits.drain_timeout,
        cutting: Arc::default(),
    }
}

/// The settings of generations.
pub(super) fn generation(config: &Config) -> GenerationSettings {
    let Config { entropy, columns, sessions, limits, ledger, interruptions, .. } = config;
    GenerationSettings {
        columns: self::columns(columns),
        entropy: EntropySettings {
            mode: match entropy.entropy {
                EntropyDefault::On => EntropyMode::On,
                EntropyDefault::Always => EntropyMode::Always,
                EntropyDefault::Request => EntropyMode::Request,
                EntropyDefault::Off => EntropyMode::Off,
            },
            top_logprobs: entropy.top_logprobs,
            limits: PlanLimits {
                max_top_logprobs: entropy.max_top_logprobs,
                cumulative_stream_tokens: entropy.cumulative_stream_tokens,
                reply_bytes: entropy.reply_budget,
                max_reply_bytes: limits.max_reply_bytes,
            },
        },
        is_strict: entropy.strict.entropy,
        is_guarded: !entropy.no_guard,
        records: sessions.record,
        session: SessionLimits { turns: sessions.max_session_turns, branches: sessions.max_session_branches() },
        session_idle: sessions.session_idle,
        ledger_timeout: ledger.ledger.as_ref().map(|_| ledger.ledger_timeout),
        is_ledger_strict: entropy.strict.ledger,
        pause_wait: interruptions.pause_wait,
        image_timeout: limits.image_timeout,
        on_abort: match interruptions.on_abort {
            OnAbort::Pass => AbortPolicy::Pass,
            OnAbort::Retry => AbortPolicy::Retry,
            OnAbort::Resume => AbortPolicy::Resume,
        },
    }
}

fn columns(config: &ColumnConfig) -> ColumnSettings {
    let mut settings = ColumnSettings::default();
    for name in &config.columns {
        match name {
            ColumnName::RoutedExperts => settings.wanted[ROUTED_EXPERTS_AT] = true,
            ColumnName::SamplingMask => settings.wanted[SAMPLING_MASK_AT] = true,
            ColumnName::TopLogprobs => settings.keeps_top = true,
        }
    }
    let shape = |MoeShape([layers, per_token, experts])| ExpertShape { layers, per_token, experts };
    settings.experts = config.moe_shape.map(shape);
    settings
}
