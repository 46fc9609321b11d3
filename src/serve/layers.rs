//! The layers of a port, one per file. [`crate::serve`] lists them in order.

pub(crate) mod admit;
pub(crate) mod authenticate;
pub(crate) mod check;
pub(crate) mod classify;
pub(crate) mod close;
pub(crate) mod observe;
mod on_reply;
pub(crate) mod restored;
pub(crate) mod validate;
