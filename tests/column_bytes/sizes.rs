// SPDX-License-Identifier: Apache-2.0
//! The bytes that each token column takes: the table of docs/reference/token-columns.md. `tests/column_bytes.rs` measures the rows that
//! name a column of `--columns` with the canned engine of the benches.

/// The bytes of a column for each of its tokens.
pub struct ColumnSize {
    pub about: &'static str,
    /// In memory, in the log and in the shared ledger.
    pub stored: u64,
    /// In the archive; `None` if it is not archived or was not measured.
    pub archived: Option<u64>,
    /// In the reply of the engine.
    pub wire: &'static str,
}

/// The rows that are measured, with their names in `--columns`.
pub const MEASURED: [(&str, ColumnSize); 3] = [
    (
        "routed_experts",
        ColumnSize {
            about: "`routed_experts`, 48 x 8 of 128 experts",
            stored: 48 * 8,
            archived: Some(336),
            wire: "2,048",
        },
    ),
    (
        "sampling_mask",
        ColumnSize {
            about: "`sampling_mask` with a support of 20 tokens",
            stored: 4 + 4 * 20,
            archived: Some(55),
            wire: "about 130",
        },
    ),
    (
        "top_logprobs",
        ColumnSize {
            about: "`top_ids` and `top_logprobs`, k = 20",
            stored: 2 * 4 * 20,
            archived: Some(113),
            wire: "that of the entropies",
        },
    ),
];

/// Rows that follow from the shape of the column.
pub const COMPUTED: [ColumnSize; 5] = [
    ColumnSize { about: "`routed_experts`, 61 x 8 of 256 experts", stored: 61 * 8, archived: None, wire: "2,603" },
    ColumnSize { about: "`routed_experts`, 36 x 4 of 512 experts", stored: 2 * 36 * 4, archived: None, wire: "768" },
    ColumnSize { about: "scores: `teacher_logprobs`", stored: 4, archived: None, wire: "33" },
    ColumnSize {
        about: "scores: `teacher_top_ids` and `teacher_top_logprobs`, k = 20",
        stored: 2 * 4 * 20,
        archived: None,
        wire: "660",
    },
    ColumnSize {
        about: "scores: `teacher_logprobs_of_top_ids`, k = 20",
        stored: 4 * 20,
        archived: None,
        wire: "33 for each id of the part",
    },
];
