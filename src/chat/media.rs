//! Content parts that only the engine can render, such as images.

use crate::json::Value;

/// A content part that only the engine can render. tokentap does not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaPart {
    /// The number of texts of the message before the part.
    pub at: usize,
    /// The part, in the format of the engine's chat endpoint.
    pub part: Value,
}

impl MediaPart {
    /// An image. `url` may be a `data:` URL. `detail` is the resolution that the client asks for.
    #[must_use]
    pub fn image(at: usize, url: &str, detail: Option<&str>) -> Self {
        let text = |name: &str, value: &str| (name.to_owned(), Value::from(value));
        let image = [text("url", url)].into_iter().chain(detail.map(|detail| text("detail", detail))).collect();
        let part = vec![text("type", "image_url"), ("image_url".to_owned(), Value::Object(image))];
        Self { at, part: Value::Object(part) }
    }

    /// `type` of the part.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.part.get("type").and_then(Value::as_str).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    use crate::chat::message::Message;
    use crate::chat::system_messages::fold_system_messages;
    use crate::session::Digest;

    fn message(texts: &[&str], media: Vec<MediaPart>) -> Message {
        Message::with_media("user", texts.iter().map(|&text| text.to_owned()).collect(), media)
    }

    #[test]
    fn digest_depends_on_the_media_and_their_places() {
        let image = |at, url| MediaPart::image(at, url, None);
        let messages = [
            message(&["a", "b"], vec![]),
            message(&["a", "b"], vec![image(0, "u")]),
            message(&["a", "b"], vec![image(1, "u")]),
            message(&["a", "b"], vec![image(1, "v")]),
            message(&["a", "b"], vec![MediaPart::image(1, "u", Some("low"))]),
            message(&["a", "b"], vec![image(1, "u"), image(1, "u")]),
        ];
        let digest = |message: &Message| message.digest(Digest::default(), &HashMap::new());
        let digests: std::collections::HashSet<_> = messages.iter().map(digest).collect();
        assert_eq!(digests.len(), messages.len());
        assert_eq!(digest(&messages[1]), digest(&messages[1].clone()));
    }

    #[test]
    fn folded_system_message_keeps_the_place_of_the_media() {
        let assistant = Message::of("assistant", "a".to_owned());
        let system = Message::of("system", "s".to_owned());
        let image = MediaPart::image(1, "u", None);
        let folded = fold_system_messages(vec![assistant, system, message(&["b", "c"], vec![image])]);
        assert_eq!((folded[1].texts.len(), folded[1].media[0].at), (3, 2), "the reminder comes before the texts");
    }
}
