//! The loaded weights: their number and their labels.

/// The weights that are loaded at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// The `version` of [`Model::logits`](super::Model::logits): 0 at start, incremented by every update.
    pub number: u64,
    /// The label in the spans of `weight_versions`, which is that of SGLang's scheduler.
    pub label: String,
    /// The label in `meta_info` and `/model_info`, which is that of SGLang's HTTP process. It differs from `label` after an update whose
    /// cache flush was refused.
    pub reported_label: String,
    /// `model_path`.
    pub path: String,
    /// `served_model_name`. An update from disk replaces it with the path.
    pub name: String,
}

impl Default for Weights {
    fn default() -> Self {
        Self {
            number: 0,
            label: "default".into(),
            reported_label: "default".into(),
            path: "tokentap-demo".into(),
            name: "tokentap-demo".into(),
        }
    }
}
