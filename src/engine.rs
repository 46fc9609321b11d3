// SPDX-License-Identifier: Apache-2.0
//! The engines: every key and rule of a product, and the connections to its servers.
//!
//! Above this module are plain types: [`plan`], [`events`] and [`capabilities`]; [`engines`] sends aborts. [`product`] chooses between
//! [`sglang`] and [`sgl_jax`]. [`transport`] has the connections.

pub mod capabilities;
pub mod engines;
pub mod events;
pub(crate) mod expansion;
pub mod plan;
pub mod product;
pub mod reason;
pub(crate) mod rid;
pub mod sgl_jax;
pub mod sglang;
pub mod survey;
pub mod transport;
pub(crate) mod upstream;
