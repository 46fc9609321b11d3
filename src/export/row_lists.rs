// SPDX-License-Identifier: Apache-2.0
//! Lists with one item per row, for formats that have a list per member instead of an object per row.

use std::sync::Arc;

use super::facts;
use super::per_token::{self, PerToken};
use super::text::{self, Text};
use crate::session::{Path, Row};

/// The rows of such a format. In each list, `before` is the text before its first item.
#[derive(Debug, Clone)]
pub(super) struct RowLists(pub(super) Arc<[Row]>);

/// A list, item by item.
type Items = Box<dyn Iterator<Item = Vec<u8>> + Send>;

impl RowLists {
    /// A list with what `write` writes for each row.
    pub(super) fn of_rows(
        &self,
        before: &'static str,
        mut write: impl FnMut(usize, &mut Text) + Send + 'static,
    ) -> Items {
        Box::new(text::list(before, self.0.len(), move |at, text| write(at, text)))
    }

    /// The same for the path of each row.
    pub(super) fn of_paths(&self, before: &'static str, write: fn(&Path, &mut Text)) -> Items {
        let rows = Arc::clone(&self.0);
        self.of_rows(before, move |at, text| write(&rows[at].path(), text))
    }

    /// Which row each item is.
    pub(super) fn samples(&self) -> Items {
        self.of_paths(r#"{"samples":["#, |path, text| text.object(|text| facts::describe(path, text)))
    }

    /// The ids of the first prompts.
    pub(super) fn prompts(&self, before: &'static str) -> Items {
        self.of_paths(before, |path, text| text.array(|list| list.ids(per_token::prompt(path))))
    }

    /// The ids after the first prompts.
    pub(super) fn responses(&self, before: &'static str) -> Items {
        self.of_paths(before, |path, text| PerToken::Ids { pad: 0 }.list(per_token::response(path), "0", text))
    }

    /// The loss masks after the first prompts.
    pub(super) fn masks(&self, before: &'static str) -> Items {
        self.of_paths(before, |path, text| PerToken::Mask.list(per_token::response(path), "0", text))
    }

    /// The logprobs after the first prompts, 0.0 where the mask is 0.
    pub(super) fn logprobs(&self, before: &'static str) -> Items {
        self.of_paths(before, |path, text| PerToken::Logprobs.list(per_token::response(path), "0.0", text))
    }
}
