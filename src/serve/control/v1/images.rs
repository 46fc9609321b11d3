//! `/v1/sessions/{id}/images/{sha256}`: the bytes of a recorded picture.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::sessions::find;
use crate::images::ImageDigest;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::response;

/// Returns the bytes, which an agent has chosen: a browser must neither show nor run them under this origin.
pub(super) fn show(proxy: &Proxy, id: &str, digest: &str) -> Result<Response<Body>, Problem> {
    let parsed: ImageDigest = digest.parse().map_err(|error| Problem::bad_request(format!("sha256: {error}")))?;
    let bytes: Bytes = find(proxy, id)?.image(parsed).and_then(|image| image.bytes.clone()).ok_or_else(|| {
        let message =
            format!("session {id:?} has no picture with the SHA-256 {digest}, or its bytes are not in memory");
        Problem::new(ErrorCode::NO_SUCH_IMAGE, message)
    })?;
    let mut response = response(StatusCode::OK, "application/octet-stream", Body::full(bytes));
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private"));
    Ok(response)
}
