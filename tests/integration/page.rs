//! The page at `/` of the control port, and the routes that only a page would ask.

mod assets;
mod looking;
