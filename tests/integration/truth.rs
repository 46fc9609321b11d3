// SPDX-License-Identifier: Apache-2.0
//! The numbers of tokentap for each token, compared with an engine whose full distribution is known.

mod draw;
mod ends;
mod forms;
mod live;
mod numbers;
mod options;
mod shapes;
mod temperature;
