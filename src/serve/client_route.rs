// SPDX-License-Identifier: Apache-2.0
//! The routes of the data port that SDKs add to a base URL, and the intended route of a wrong path.

use std::cmp::Reverse;

use http::Method;

use crate::engine::sglang::routes;

/// A route that an SDK adds to a base URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientRoute {
    /// The path. The segment `{id}` stands for any segment.
    pub(super) path: &'static str,
    /// The methods that it accepts. GET includes HEAD.
    pub(super) methods: &'static [Method],
    pub(super) api: ClientApi,
}

/// The API of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientApi {
    /// Chats, completions and what else every engine serves.
    OpenAi,
    Responses,
    Messages,
}

impl ClientApi {
    /// The kind of client, with its article, and the path of its base URL. Clients of the Messages API add `/v1` themselves.
    pub(super) fn client(self) -> (&'static str, &'static str) {
        match self {
            Self::OpenAi | Self::Responses => ("an OpenAI", "/v1"),
            Self::Messages => ("a Messages", ""),
        }
    }
}

const ROUTES: [ClientRoute; 12] = [
    ClientRoute { path: routes::CHAT, methods: &[Method::POST], api: ClientApi::OpenAi },
    ClientRoute { path: routes::COMPLETIONS, methods: &[Method::POST], api: ClientApi::OpenAi },
    ClientRoute { path: "/v1/embeddings", methods: &[Method::POST], api: ClientApi::OpenAi },
    ClientRoute { path: "/v1/rerank", methods: &[Method::POST], api: ClientApi::OpenAi },
    ClientRoute { path: "/v1/models", methods: &[Method::GET], api: ClientApi::OpenAi },
    ClientRoute { path: "/v1/models/{id}", methods: &[Method::GET], api: ClientApi::OpenAi },
    ClientRoute { path: routes::RESPONSES, methods: &[Method::POST], api: ClientApi::Responses },
    ClientRoute { path: routes::INPUT_TOKENS, methods: &[Method::POST], api: ClientApi::Responses },
    ClientRoute { path: routes::RESPONSE, methods: &[Method::GET, Method::DELETE], api: ClientApi::Responses },
    ClientRoute { path: routes::INPUT_ITEMS, methods: &[Method::GET], api: ClientApi::Responses },
    ClientRoute { path: routes::MESSAGES, methods: &[Method::POST], api: ClientApi::Messages },
    ClientRoute { path: routes::COUNT_TOKENS, methods: &[Method::POST], api: ClientApi::Messages },
];

/// The intended route of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MeantRoute {
    pub(super) route: &'static ClientRoute,
    /// The path of the route, with the id of the given path.
    pub(super) path: String,
}

/// Finds the intended route of `path`: the last segments of the path match those of the route after `/v1`, apart from a few characters. The
/// segments before them are a wrong base URL.
pub(super) fn meant(path: &str) -> Option<MeantRoute> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let fits = ROUTES.iter().filter_map(|route| Some((route.fit(&segments)?, route)));
    let ((.., path), route) = fits.min_by(|(one, _), (other, _)| one.cmp(other))?;
    Some(MeantRoute { route, path })
}

impl ClientRoute {
    pub(super) fn accepts(&self, method: &Method) -> bool {
        self.methods.contains(if method == Method::HEAD { &Method::GET } else { method })
    }

    /// How well the last segments of a path fit the route, and the path of the route. The least fit is the best one: it has the most names in
    /// common, then the fewest edits. `None` if the segments have other names.
    fn fit(&self, segments: &[&str]) -> Option<(Reverse<usize>, usize, String)> {
        let names: Vec<&str> = self.path.split('/').skip(2).collect();
        let last = &segments[segments.len().checked_sub(names.len())?..];
        let (mut common, mut edits, mut path) = (0, 0, "/v1".to_owned());
        for (name, segment) in names.into_iter().zip(last) {
            let is_id = name == "{id}";
            path.extend(["/", if is_id { segment } else { name }]);
            if !is_id {
                common += 1;
                edits += edits_between(name, segment, name.len() / 4)?;
            }
        }
        Some((Reverse(common), edits, path))
    }
}

/// The number of bytes to insert, remove or replace in `word` to get `name`, case ignored. `None` if it is greater than `most`.
fn edits_between(name: &str, word: &str, most: usize) -> Option<usize> {
    if name.len().abs_diff(word.len()) > most {
        return None;
    }
    // the edits between the beginning of the word so far and each beginning of the name
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (at, byte) in word.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, expected) in name.bytes().enumerate() {
            let replaced = diagonal + usize::from(!byte.eq_ignore_ascii_case(&expected));
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.pop().filter(|edits| *edits <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted_up_to_a_limit() {
        for (name, word, edits) in [
            ("completions", "completions", Some(0)),
            ("completions", "Completion", Some(1)),
            ("completions", "compeltions", Some(2)),
            ("completions", "complete", None),
            ("messages", "message", Some(1)),
            ("messages", "mesages", Some(1)),
            ("messages", "images", None),
            ("chat", "chats", Some(1)),
            ("models", "mödels", None),
            ("rerank", "", None),
        ] {
            assert_eq!(edits_between(name, word, name.len() / 4), edits, "{word}");
        }
    }

    #[test]
    fn path_means_the_route_with_the_most_names_in_common() {
        for (path, expected) in [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chats/completions", "/v1/chat/completions"),
            ("/v1//responses/", "/v1/responses"),
            ("/v1/responses/input_token", "/v1/responses/input_tokens"),
            ("/responses/resp_1", "/v1/responses/resp_1"),
            ("/v1/response/resp_1/input_items", "/v1/responses/resp_1/input_items"),
            ("/v1/model", "/v1/models"),
            ("/models/model", "/v1/models/model"),
            ("/a/b/c/MESSAGES", "/v1/messages"),
        ] {
            assert_eq!(meant(path).map(|meant| meant.path).as_deref(), Some(expected), "{path}");
        }
        for path in [
            "/",
            "/v1",
            "/v1/chat",
            "/no/such/path",
            "/v1/audio/speech",
            "/v1/responses/resp_1/cancel",
            "/v1/messages/batches",
        ] {
            assert_eq!(meant(path), None, "{path}");
        }
    }
}
