//! The layers of a port, one per file. [`crate::serve`] lists them in order.

pub mod admit;
pub mod authenticate;
pub mod check;
pub mod classify;
pub mod close;
pub mod observe;
mod on_reply;
pub mod restored;
pub mod validate;
