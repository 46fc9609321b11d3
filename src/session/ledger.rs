//! Where the records of sessions are kept beyond the memory of this process.

pub mod log;
