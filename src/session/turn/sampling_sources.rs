//! Where the sampling parameters of a turn come from.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The source of a sampling parameter that the client did not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingSource {
    /// The model's `generation_config.json`.
    Model,
    /// The default of SGLang's OpenAI endpoints.
    Default,
    /// What the context of the model leaves.
    Context,
}

/// The parameters that may have a source.
const NAMES: [&str; 6] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"];

/// The sources of the parameters that the client did not set. All others in `sampling_params` are the client's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
        serde_json::to_string(self).expect("names and sources are strings")
    }
}

impl Serialize for SamplingSources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, source) in NAMES.iter().zip(&self.0) {
            if let Some(source) = source {
                map.serialize_entry(name, source)?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for SamplingSources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut sources = Self::default();
        for (name, value) in serde_json::Map::deserialize(deserializer)? {
            sources.set(&name, serde_json::from_value(value).map_err(D::Error::custom)?);
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_encoding() {
        let mut sources = SamplingSources::default();
        sources.set("temperature", SamplingSource::Model);
        sources.set("max_new_tokens", SamplingSource::Context);
        sources.set("seed", SamplingSource::Default);
        assert_eq!(sources.json(), r#"{"temperature":"model","max_new_tokens":"context"}"#);
        assert_eq!(serde_json::from_str::<SamplingSources>(&sources.json()).unwrap(), sources);
    }
}
