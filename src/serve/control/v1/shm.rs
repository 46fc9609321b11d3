//! Slices in files of `--shm-dir`.

use std::io::ErrorKind;

use http::StatusCode;

use super::Problem;
use crate::logits::safetensors::Body;
use crate::logits::shm::{FileRange, ShmError};
use crate::logits::slices::MAX_ROWS;
use crate::serve::proxy::Proxy;

/// Reads a slice and starts to measure it.
pub(super) async fn read(state: &Proxy, place: FileRange) -> Result<Body, Problem> {
    let Some(folder) = &state.config.shm.shm_dir else {
        let message = "shm needs --shm-dir, which is not set";
        return Err(Problem::new(StatusCode::FORBIDDEN, "no_shm_dir", message));
    };
    let mut body = Body::new(&state.slices, state.config.slices.max_slice_bytes, MAX_ROWS);
    place.read(folder, &mut body).await?;
    Ok(body)
}

impl From<ShmError> for Problem {
    fn from(error: ShmError) -> Self {
        match error {
            ShmError::Safetensors(refused) => refused.into(),
            ShmError::Missing => Self::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
            ShmError::Name | ShmError::Irregular | ShmError::Early(_) => Self::bad(error.to_string()),
            ShmError::Failed(ref cause) => {
                let denied = cause.kind() == ErrorKind::PermissionDenied;
                let status = if denied { StatusCode::FORBIDDEN } else { StatusCode::INTERNAL_SERVER_ERROR };
                Self::new(status, "unread", error.to_string())
            }
        }
    }
}
