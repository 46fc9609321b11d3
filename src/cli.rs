//! One file a command.

pub mod serve;
