//! The products that serve as engines, and all that each of them has to provide on the path of a request: [`Product`] is the only place
//! that chooses between them. Above it are plain types: [`plan`](crate::engine::plan), [`events`](crate::engine::events) and
//! [`capabilities`](crate::engine::capabilities).
//!
//! Detection, the generating probe and aborts are the other parts of a product: see `sglang::probe` and `sglang::abort`.

use crate::engine::capabilities::Capabilities;
use crate::engine::events::{Chunk, KnownPrefix, Numbers};
use crate::engine::plan::{GuardLimits, GuardRefusal, ItemPlan, Plan, PlanInputs, RequestShape};
use crate::engine::sglang::request::GenerateRequest;
use crate::engine::sglang::{guard, plan, trim};
use crate::engine::{sgl_jax, sglang};
use crate::json::{Cursor, Edit, Malformed, Object, Splice};

/// A product that serves as an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// SGLang. The differences between 0.5.6, 0.5.12 and 0.5.23 are capabilities.
    Sglang,
    /// sglang-jax. It has SGLang's format; [`sgl_jax`] has what differs.
    SglJax,
}

/// What all versions of a product have in common, with any settings. The probe finds out the rest.
#[derive(Debug, Clone, Copy)]
pub struct ProductTraits {
    /// Its name.
    pub name: &'static str,
    /// It ignores unknown members of a request, so that the probe can ask for features by trying them.
    pub ignores_unknown_members: bool,
    /// Its lists of ids are the sampled tokens.
    pub lists_sampled_ids: bool,
    /// It omits sampled tokens from every list of a reply, so that no chat can be continued token by token.
    pub omits_sampled_ids: bool,
    /// Logprobs make it compile the model for each batch shape, so that forcing them is expensive.
    pub compiles_for_logprobs: bool,
    /// It decodes the text of each top-k entry unless the request says not to.
    pub decodes_top_logprobs: bool,
    /// It sends a placeholder for the prompt's logprobs only if the request has a k.
    pub placeholder_needs_k: bool,
    /// Its streams can have logprobs only with the overlap schedule; without it they break off.
    pub streams_need_overlap: bool,
    /// Some version or setting streams incrementally.
    pub can_stream_increments: bool,
    /// Some version loads the plugin for exact entropies.
    pub has_plugins: bool,
}

impl Product {
    /// What all its versions have in common.
    #[must_use]
    pub fn traits(self) -> &'static ProductTraits {
        match self {
            Self::Sglang => &sglang::TRAITS,
            Self::SglJax => &sgl_jax::TRAITS,
        }
    }

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

    /// Parses the object of a reply at the cursor, and its numbers into `numbers`.
    ///
    /// # Errors
    /// When there is no object at the cursor, or its logprobs are not in the product's format.
    pub(crate) fn read(
        self,
        cursor: &mut Cursor<'_>,
        known: &dyn KnownPrefix,
        numbers: &mut Numbers,
    ) -> Result<Chunk, Malformed> {
        match self {
            Self::Sglang | Self::SglJax => Chunk::read(cursor, known, numbers),
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
