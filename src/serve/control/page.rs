// SPDX-License-Identifier: Apache-2.0
//! The page at `/` of the control port, which shows the tokens of sessions, and the view of the HTTP API beside it. Both consist of plain
//! modules in the binary: they have no build step and load nothing from other hosts. They need no token. The data of the page comes from
//! `/v1`, which needs the control token.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};

use crate::serve::body::Body;
use crate::serve::problem::method_not_allowed;
use crate::serve::response::response;

/// The Content-Security-Policy: the page may run its own modules, use its own styles and send requests to its own port. A model writes
/// the tokens, and their text must never run as a script. `blob:` is for a picture in full size, which the page makes of bytes that it
/// has checked, and only `img` may have it.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; \
                          base-uri 'none'; frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Its path.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
    kind: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! module {
    ($name:literal) => {
        Asset {
            path: concat!("/page/", $name, ".js"),
            text: include_str!(concat!("page/", $name, ".js")),
            kind: SCRIPT,
        }
    };
}

/// All files of the page.
pub const ASSETS: [Asset; 59] = [
    Asset { path: "/", text: include_str!("page/index.html"), kind: HTML },
    Asset { path: "/page/style.css", text: include_str!("page/style.css"), kind: STYLE },
    Asset { path: "/page/views.css", text: include_str!("page/views.css"), kind: STYLE },
    Asset { path: "/page/chat.css", text: include_str!("page/chat.css"), kind: STYLE },
    Asset { path: "/page/run.css", text: include_str!("page/run.css"), kind: STYLE },
    Asset { path: "/page/narrow.css", text: include_str!("page/narrow.css"), kind: STYLE },
    Asset { path: "/page/tokens.css", text: include_str!("page/tokens.css"), kind: STYLE },
    Asset { path: "/page/openapi.html", text: include_str!("page/openapi.html"), kind: HTML },
    Asset { path: "/page/openapi.css", text: include_str!("page/openapi.css"), kind: STYLE },
    Asset { path: "/page/icon.svg", text: include_str!("page/icon.svg"), kind: "image/svg+xml" },
    module!("address"),
    module!("ahead"),
    module!("alignment"),
    module!("along"),
    module!("api"),
    module!("bottomsheet"),
    module!("chat"),
    module!("columns"),
    module!("compare"),
    module!("curves"),
    module!("details"),
    module!("difference"),
    module!("element"),
    module!("empty"),
    module!("exported"),
    module!("filter"),
    module!("find"),
    module!("findbar"),
    module!("forest"),
    module!("glyph"),
    module!("group"),
    module!("keys"),
    module!("layout"),
    module!("legend"),
    module!("line"),
    module!("link"),
    module!("live"),
    module!("main"),
    module!("marks"),
    module!("measured"),
    module!("messages"),
    module!("openapi"),
    module!("path"),
    module!("pictures"),
    module!("pixels"),
    module!("plot"),
    module!("run"),
    module!("samples"),
    module!("scale"),
    module!("schema"),
    module!("sections"),
    module!("selection"),
    module!("sessions"),
    module!("sheet"),
    module!("start"),
    module!("table"),
    module!("texts"),
    module!("theme"),
    module!("trajectory"),
];

/// The ETag of all files: a hash of the whole page, so that modules of two binaries never mix.
static TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    file_tag(ASSETS.iter().flat_map(|asset| asset.path.bytes().chain([0]).chain(asset.text.bytes()).chain([0])))
});

/// The ETag of a file with these bytes.
pub(super) fn file_tag(bytes: impl Iterator<Item = u8>) -> HeaderValue {
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    HeaderValue::try_from(format!("\"{hash:016x}\"")).expect("hexadecimal digits are valid in a header")
}

/// Returns the file with this path.
#[must_use]
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// Serves a file of the page; `None` if the path is not a file of the page.
pub(super) fn handle<B>(request: &Request<B>) -> Option<Response<Body>> {
    let asset = asset(request.uri().path())?;
    Some(file_response(request, asset.kind, asset.text, &TAG))
}

/// The response with a file of the binary: 304 if the client has it, 405 for other methods than GET and HEAD.
pub(super) fn file_response<B>(
    request: &Request<B>,
    content_type: &'static str,
    text: &'static str,
    tag: &HeaderValue,
) -> Response<Body> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return method_not_allowed(&[Method::GET]);
    }
    let known = is_known(request.headers(), tag);
    let (status, text) = if known { (StatusCode::NOT_MODIFIED, "") } else { (StatusCode::OK, text) };
    let mut response = response(status, content_type, Body::full(text));
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    // the browser revalidates each time, because a new binary must not run with old modules
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("permissions-policy", HeaderValue::from_static("camera=(), geolocation=(), microphone=()"));
    response
}

/// Whether the client has the file with this tag in its cache.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let tag = tag.as_bytes();
    headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
        let tags = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        tags.into_iter().any(|known| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag)
    })
}
