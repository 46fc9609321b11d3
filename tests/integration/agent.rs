//! A scripted agent with tools before the demo engine: what tokentap exports equals, token by token, the engine's own log of what it
//! received and sampled.

mod asked;
mod audit;
mod branches;
mod cut;
mod edits;
mod finished;
mod identity;
mod lab;
mod lines;
mod merged;
mod policy;
mod problems;
mod smuggled;
mod soak;
mod texts;
mod unseen;
