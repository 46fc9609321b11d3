// SPDX-License-Identifier: Apache-2.0
//! Chat templates and tokenizers of models, compared with the results of Hugging Face's transformers; `tests/templates/README.md`
//! describes the records.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]
#![expect(clippy::print_stdout, reason = "a test prints its result")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]
#![allow(missing_docs, reason = "a test binary exports nothing")]

#[path = "templates/content.rs"]
mod content;
#[path = "templates/detokenizer.rs"]
mod detokenizer;
#[path = "templates/encodings.rs"]
mod encodings;
#[path = "templates/families.rs"]
mod families;
#[path = "templates/hostile.rs"]
mod hostile;
#[path = "templates/record.rs"]
mod record;
#[path = "templates/rendering.rs"]
mod rendering;
