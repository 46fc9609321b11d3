// SPDX-License-Identifier: Apache-2.0
//! The page at `/` of the control port, and the routes for it.

mod assets;
mod looking;
