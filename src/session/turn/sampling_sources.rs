// SPDX-License-Identifier: Apache-2.0
//! Where the sampling parameters of a turn come from.

use serde::{Deserialize, Serialize};

use crate::named_enum::named_enum;

named_enum! {
    /// The source of a sampling parameter that the client did not set.
    pub enum SamplingSource {
        /// The model's `generation_config.json`.
        Model = "model",
        /// The default of SGLang's OpenAI endpoints.
        Default = "default",
        /// What the context of the model leaves.
        Context = "context",
    }
}

/// The parameters that may have a source.
const NAMES: [&str; 6] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"];

/// The sources of the parameters that the client did not set. All others in `sampling_params` are the client's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplingSources([Option<SamplingSource>; NAMES.len()]);

impl SamplingSources {
    /// Sets the source of a parameter. Names without a source are ignored.
    pub fn set(&mut self, name: &str, source: SamplingSource) {
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            self.0[at] = Some(source);
        }
    }

    /// A JSON object of names and sources.
    #[must_use]
    pub fn json(&self) -> String {
        let sources = NAMES.iter().zip(&self.0).filter_map(|(name, source)| Some((name, (*source)?)));
        let members: Vec<String> = sources.map(|(name, source)| format!(r#""{name}":"{}""#, source.name())).collect();
        format!("{{{}}}", members.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_parameters_with_a_source() {
        let mut sources = SamplingSources::default();
        assert_eq!(sources.json(), "{}");
        sources.set("temperature", SamplingSource::Model);
        sources.set("max_new_tokens", SamplingSource::Context);
        sources.set("seed", SamplingSource::Default);
        assert_eq!(sources.json(), r#"{"temperature":"model","max_new_tokens":"context"}"#);
    }
}
