// SPDX-License-Identifier: Apache-2.0
//! `<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>…</｜DSML｜invoke>`, as DeepSeek V3.2
//! and V4 write calls.

use super::Format;
use super::invoke_block::InvokeFormat;

pub(super) const V32: InvokeFormat =
    block(Format::DeepSeekV32, "<｜DSML｜function_calls>", "</｜DSML｜function_calls>");

pub(super) const V4: InvokeFormat = block(Format::DeepSeekV4, "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>");

/// The marker that may have a token: a part of each tag.
pub(super) const MARKERS: [&str; 1] = ["｜DSML｜"];

const fn block(format: Format, start: &'static str, end: &'static str) -> InvokeFormat {
    InvokeFormat {
        format,
        start,
        end,
        invoke: "<｜DSML｜invoke",
        invoke_end: "</｜DSML｜invoke>",
        parameter: "<｜DSML｜parameter",
        parameter_end: "</｜DSML｜parameter>",
        has_types: true,
    }
}
