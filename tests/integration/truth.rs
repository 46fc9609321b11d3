//! What tokentap says about each token, compared with what an engine knows whose whole distribution is known.

mod draw;
mod ends;
mod forms;
mod live;
mod numbers;
mod options;
mod shapes;
mod temperature;
