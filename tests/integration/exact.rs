//! Exact entropies from the engine itself: its plugin's are used, published as what they are, and not believed when they cannot be.

mod odd;
mod plugin;
mod sampled;
