// SPDX-License-Identifier: Apache-2.0
//! Which token columns are requested with a call, and from which token on.

use super::Generator;
use crate::columns::{COLUMNS, ExpertShape, ROUTED_EXPERTS_AT};
use crate::engine::capabilities::Capabilities;
use crate::engine::plan::ColumnInputs;
use crate::engine::sglang::request::GenerateRequest;
use crate::generation::request::ClientCall;
use crate::generation::settings::ColumnSettings;
use crate::session::RecordedPrefix;

impl Generator {
    /// The token columns that are requested with a call.
    pub(super) fn columns(
        &self,
        request: &GenerateRequest,
        upstream: &Capabilities,
        call: &ClientCall,
    ) -> ColumnInputs {
        let settings = &self.context.settings;
        if !settings.records {
            return ColumnInputs::default();
        }
        let ColumnSettings { wanted, keeps_top, .. } = settings.columns;
        let experts = self.experts(upstream);
        let mut inputs = ColumnInputs { wanted, keeps_top, starts: [0, 0], experts };
        // the engine puts the tokens of the session that it keeps before the prompt
        // and where pictures expand, the ids that are sent are not those of the prompt
        if !wanted[ROUTED_EXPERTS_AT]
            || request.routed_experts
            || request.session_params.is_some()
            || request.has_media()
        {
            return inputs;
        }
        let Some(session) = self.sessions.session(&call.session) else { return inputs };
        let name = COLUMNS[ROUTED_EXPERTS_AT].name;
        let epoch = self.policy.epoch();
        let prefixes = (0..request.batch().unwrap_or(1)).map(|at| match request.prompt_ids(at) {
            Some(ids) => {
                let adapter = request.adapter(at).map(|name| self.policy.requested_adapter(name));
                session.recorded_prefix(&ids, name, epoch, adapter.as_ref())
            }
            None => RecordedPrefix::default(),
        });
        // a request has one start for all its prompts
        let least = prefixes.reduce(|one, other| RecordedPrefix {
            tokens: one.tokens.min(other.tokens),
            covered: one.covered.min(other.covered),
            values: None,
        });
        let RecordedPrefix { tokens, covered, .. } = least.unwrap_or_default();
        inputs.starts = [covered, tokens.saturating_sub(1)];
        inputs
    }

    /// The routing of the model: the setting, else what the model's config.json says.
    pub(super) fn experts(&self, upstream: &Capabilities) -> Option<ExpertShape> {
        self.context.settings.columns.experts.or(upstream.experts)
    }
}
