//! The layers of a port, one a file; [`crate::serve`] has them in their order.

pub mod admit;
pub mod authenticate;
pub mod check;
pub mod classify;
pub mod close;
pub mod observe;
mod on_reply;
pub mod restored;
pub mod validate;
