//! The page at `/` of the control port, and the routes for it.

mod assets;
mod looking;
