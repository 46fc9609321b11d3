// SPDX-License-Identifier: Apache-2.0
//! The gRPC services over real sockets: their replies equal those of HTTP.

mod access;
mod ahead;
pub mod client;
mod counted;
mod generating;
mod health;
mod leaving;
mod listing;
mod measuring;
mod places;
mod samples;
mod sharing;
mod stopping;
mod watching;
