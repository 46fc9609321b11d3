// SPDX-License-Identifier: Apache-2.0
//! Helpers of the tests.

pub mod binary;
pub mod client;
pub mod demo;
pub mod engine;
pub mod fixture;
pub mod manual_upstream;
pub mod proxy;
pub mod upstream;
pub mod vision;
