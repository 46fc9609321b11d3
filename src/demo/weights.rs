//! Which weights are loaded, and their names.

/// The weights at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// What [`Model::logits`](super::Model::logits) takes as its version: 0 at
    /// start, one more with every update.
    pub number: u64,
    /// The label that `weight_versions` spans carry (the scheduler's).
    pub label: String,
    /// The label that `meta_info` and `/model_info` show meanwhile. The two part
    /// where an update went in but its cache flush was refused.
    pub shown: String,
    /// `model_path`.
    pub path: String,
    /// `served_model_name`; an update from disk overwrites it with the path.
    pub name: String,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            number: 0,
            label: "default".into(),
            shown: "default".into(),
            path: "tokentap-demo".into(),
            name: "tokentap-demo".into(),
        }
    }
}
