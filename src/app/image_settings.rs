// SPDX-License-Identifier: Apache-2.0
//! The settings of the image processor, which a trainer needs to make the pixel values of the engine from a picture.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::engine::capabilities::Capabilities;
use crate::tokenizer::ImageSettings;

/// The settings as JSON text: `processor` from the model's files, `overrides`, empty without any, and `backend` from the engine. Each is null
/// if it is not known; `None` if all are.
///
/// `tokenizer` is the folder that replaces those of the engine.
pub(super) fn find(tokenizer: Option<&Path>, upstream: &Capabilities) -> Option<Arc<str>> {
    let of_engine = [&upstream.tokenizer_path, &upstream.model_path].into_iter().flatten().map(Path::new);
    let folders = tokenizer.into_iter().chain(of_engine);
    let processor = folders.filter(|folder| folder.exists()).find_map(|folder| {
        ImageSettings::open(folder).unwrap_or_else(|error| {
            tracing::warn!(%error, "turns with pictures are recorded without the settings of the image processor");
            None
        })
    });
    let overrides = upstream.images.overrides.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let backend = upstream.images.backend.as_deref();
    if processor.is_none() && overrides.is_none() && backend.is_none() {
        return None;
    }
    let processor = processor.map(|ImageSettings(members)| members);
    Some(json!({"processor": processor, "overrides": overrides, "backend": backend}).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::capabilities::ImageFacts;

    fn found(files: &[(&str, &str)], images: ImageFacts) -> Option<Value> {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        let path = Some(folder.path().to_str().unwrap().to_owned());
        let upstream = Capabilities { tokenizer_path: path, images, ..Capabilities::default() };
        find(None, &upstream).map(|text| serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn settings_are_those_of_the_files_and_of_the_engine() {
        let none = ImageFacts::default();
        let images = ImageFacts { overrides: Some(r#"{"max_pixels":9}"#.into()), backend: Some("pil".into()) };
        let file = ("preprocessor_config.json", r#"{"patch_size": 16}"#);
        let newer = ("processor_config.json", r#"{"processor_class": "P", "image_processor": {"patch_size": 14}}"#);
        let both = json!({"processor": {"patch_size": 16}, "overrides": {"max_pixels": 9}, "backend": "pil"});
        assert_eq!(found(&[file], images.clone()), Some(both));
        let newest = found(&[file, newer], none.clone()).unwrap();
        assert_eq!(newest["processor"]["patch_size"], 14, "as transformers");
        let of_newer = json!({"patch_size": 14, "processor_class": "P"});
        assert_eq!(
            found(&[newer], none.clone()),
            Some(json!({"processor": of_newer, "overrides": null, "backend": null}))
        );
        assert_eq!(
            found(&[("preprocessor_config.json", "[]")], images),
            Some(json!({"processor": null, "overrides": {"max_pixels": 9}, "backend": "pil"})),
            "a file of another form"
        );
        assert_eq!(found(&[("processor_config.json", "{}")], none.clone()), None);
        assert_eq!(found(&[], none), None);
    }
}
