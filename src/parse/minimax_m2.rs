// SPDX-License-Identifier: Apache-2.0
//! `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter>…</invoke>…</minimax:tool_call>`.

use super::Format;
use super::invoke_block::InvokeFormat;

pub(super) const BLOCK: InvokeFormat = InvokeFormat {
    format: Format::MiniMaxM2,
    start: "<minimax:tool_call>",
    end: "</minimax:tool_call>",
    invoke: "<invoke",
    invoke_end: "</invoke>",
    parameter: "<parameter",
    parameter_end: "</parameter>",
    has_types: false,
};

/// The markers that may have tokens.
pub(super) const MARKERS: [&str; 2] = [BLOCK.start, BLOCK.end];
