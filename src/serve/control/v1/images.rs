// SPDX-License-Identifier: Apache-2.0
//! `/v1/sessions/{id}/images/{sha256}`: the bytes of a recorded picture.

use http::{HeaderValue, Response, StatusCode, header};

use super::sessions::find;
use crate::images::ImageDigest;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::response;

/// Returns the bytes, which an agent has chosen: a browser must neither show nor run them under this origin. The content type is that of
/// the first bytes, so it is never SVG or HTML.
pub(super) fn show(proxy: &Proxy, id: &str, digest: &str) -> Result<Response<Body>, Problem> {
    let parsed: ImageDigest = digest.parse().map_err(|error| Problem::bad_request(format!("sha256: {error}")))?;
    let image = find(proxy, id)?.image(parsed);
    let found = image.and_then(|image| Some((image.media_type, image.bytes.clone()?)));
    let (media_type, bytes) = found.ok_or_else(|| {
        let message =
            format!("session {id:?} has no picture with the SHA-256 {digest}, or its bytes are not in memory");
        Problem::new(ErrorCode::NO_SUCH_IMAGE, message)
    })?;
    let mut response = response(StatusCode::OK, media_type.name(), Body::full(bytes));
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    Ok(response)
}
