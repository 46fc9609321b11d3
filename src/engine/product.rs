// SPDX-License-Identifier: Apache-2.0
//! The seam: what a product provides on the path of a request. Only this file chooses between products. Above it are plain types:
//! [`plan`](crate::engine::plan), [`events`](crate::engine::events) and [`capabilities`](crate::engine::capabilities).
//!
//! The other parts of a product are its probe, its aborts, and the calls of trainers: `sglang::probe`, `sglang::abort`, `sglang::routes`.

use bytes::Bytes;

use crate::engine::capabilities::{Capabilities, Product};
use crate::engine::events::{Chunk, KnownPrefix, Numbers};
use crate::engine::plan::{GuardLimits, GuardRefusal, ItemPlan, Plan, PlanInputs, RequestShape};
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::sglang::{guard, plan, rewrite, trim};
use crate::json::{Cursor, Edit, Malformed, Object, Splice};

impl Product {
    /// Checks that a request does not crash the engine.
    ///
    /// # Errors
    /// [`GuardRefusal`] with the first rule that is broken.
    pub(crate) fn check(self, request: &GenerateRequest, limits: GuardLimits) -> Result<(), GuardRefusal> {
        match self {
            Self::Sglang | Self::SglJax => guard::check(request, limits),
        }
    }

    /// The kind of a request.
    pub(crate) fn shape(self, request: &GenerateRequest) -> RequestShape {
        match self {
            Self::Sglang | Self::SglJax => plan::shape(request),
        }
    }

    /// Plans a request: what is forced, and the body for the engine.
    pub(crate) fn plan(self, request: &GenerateRequest, upstream: &Capabilities, inputs: PlanInputs) -> Plan {
        match self {
            Self::Sglang | Self::SglJax => plan::plan(request, upstream, inputs),
        }
    }

    /// The client's body without anything forced, for the engine. `rid` is set in a request that has none.
    pub(crate) fn unforced_body(self, original: Bytes, rid: Option<&str>) -> Bytes {
        match self {
            Self::Sglang | Self::SglJax => rewrite::unforced(original, rid),
        }
    }

    /// Decodes the object of a reply at the cursor, and its numbers into `numbers`.
    ///
    /// # Errors
    /// When there is no object at the cursor, or its logprobs are not in the product's format.
    pub(crate) fn decode(
        self,
        cursor: &mut Cursor<'_>,
        known: &dyn KnownPrefix,
        numbers: &mut Numbers,
    ) -> Result<Chunk, Malformed> {
        match self {
            Self::Sglang | Self::SglJax => Chunk::decode(cursor, known, numbers),
        }
    }

    /// Marks for removal what the client did not request of the result in `meta`: members by `edit`, parts of lists by `cuts`.
    ///
    /// # Errors
    /// When the lists to be cut are not in the product's format.
    pub(crate) fn trim(
        plan: &Plan,
        item: &ItemPlan,
        bytes: &[u8],
        meta: &Object,
        edit: &mut Edit<'_>,
        cuts: &mut Splice,
    ) -> Result<(), Malformed> {
        match plan.product {
            Self::Sglang | Self::SglJax => trim::trim(plan, item, bytes, meta, edit, cuts),
        }
    }

    /// Removes the prompt's ids, which the client did not request, from an object.
    pub(crate) fn strip_echo(self, bytes: &[u8], chunk: &Chunk, splice: &mut Splice) {
        match self {
            Self::Sglang | Self::SglJax => trim::strip_echo(bytes, &chunk.object, splice),
        }
    }
}
