//! The page at `/` of the control port, for people who want to look at tokens. Plain modules in the binary: nothing is built, nothing is
//! loaded from elsewhere. It is open; what it shows comes from `/v1`, which asks for the control token.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};

use crate::serve::body::Body;
use crate::serve::reply::json_reply;

/// What a browser may do with the page: run its own modules, use its own styles, ask its own port. Tokens are written by a model, and
/// whatever they say must stay text.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                          frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Where it is.
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

/// All of them.
pub const ASSETS: [Asset; 23] = [
    Asset { path: "/", text: include_str!("page/index.html"), kind: HTML },
    Asset { path: "/page/style.css", text: include_str!("page/style.css"), kind: STYLE },
    Asset { path: "/page/tokens.css", text: include_str!("page/tokens.css"), kind: STYLE },
    Asset { path: "/page/icon.svg", text: include_str!("page/icon.svg"), kind: "image/svg+xml" },
    module!("api"),
    module!("details"),
    module!("element"),
    module!("exported"),
    module!("forest"),
    module!("glyph"),
    module!("keys"),
    module!("layout"),
    module!("legend"),
    module!("live"),
    module!("main"),
    module!("path"),
    module!("plot"),
    module!("scale"),
    module!("sessions"),
    module!("sheet"),
    module!("texts"),
    module!("theme"),
    module!("trajectory"),
];

/// A name of all that the page is made of: another binary's modules must not meet this one's.
static TAG: LazyLock<HeaderValue> = LazyLock::new(|| {
    let bytes = ASSETS.iter().flat_map(|asset| asset.path.bytes().chain([0]).chain(asset.text.bytes()).chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    HeaderValue::try_from(format!("\"{hash:016x}\"")).expect("hexadecimal digits can stand in a header")
});

/// The file of the page with this path.
#[must_use]
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

/// The file of the page that a request is for; `None` where it is for something else.
#[must_use]
pub fn serve<B>(request: &Request<B>) -> Option<Response<Body>> {
    let asset = asset(request.uri().path())?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let body = r#"{"error":{"code":"method","message":"only GET"}}"#;
        let mut reply = json_reply(StatusCode::METHOD_NOT_ALLOWED, body.into());
        reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(reply);
    }
    let known = is_known(request.headers());
    let mut reply = Response::new(if known { Body::full("") } else { Body::full(asset.text) });
    if known {
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(header::ETAG, TAG.clone());
    // asked again each time, and answered in a line where nothing has changed: a new binary must not run with old modules
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert("permissions-policy", HeaderValue::from_static("camera=(), geolocation=(), microphone=()"));
    Some(reply)
}

/// Whether the client has these very files.
fn is_known(headers: &HeaderMap) -> bool {
    let tag = TAG.as_bytes();
    headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
        let tags = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        tags.into_iter().any(|known| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag)
    })
}
