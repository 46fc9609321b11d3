// SPDX-License-Identifier: Apache-2.0
//! A scripted agent with tools in front of the demo engine: exports equal, token by token, the engine's own log of the prompts that it
//! received and the tokens that it sampled.

mod asked;
mod audit;
mod branches;
mod cut;
mod edits;
mod finished;
mod harness;
mod identity;
mod lines;
mod merged;
mod policy;
mod problems;
mod smuggled;
mod soak;
mod texts;
mod unseen;
