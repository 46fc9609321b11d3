// SPDX-License-Identifier: Apache-2.0
//! The error responses of the engine, in SGLang's formats.

use http::StatusCode;

use super::options::Dialect;
use super::wire;

/// The reason why a request is refused. SGLang has a different response format for each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The check of the raw JSON failed: 400 with `error` as a string, also for a stream.
    Schema(String),
    /// A value has the wrong type: 400 in OpenAI's format, also for a stream.
    Types(String),
    /// A value is invalid: 400, or an error event in a stream.
    Value(String),
    /// SGLang raises an uncaught exception: 500 in plain text.
    Internal,
    /// The route or the method does not exist: 404, or 405 with the allowed methods.
    Route { status: StatusCode, allow: Option<&'static str> },
    /// SGLang has the route, but the demo engine does not support it: 404.
    Unsupported { endpoint: &'static str },
    /// The model does not exist: 404 in OpenAI's format.
    Model { name: String },
}

impl Refusal {
    pub(super) fn value(message: impl Into<String>) -> Self {
        Self::Value(message.into())
    }

    /// A field has the wrong type.
    pub(super) fn field(field: &str, expected: &str) -> Self {
        Self::Types(format!(
            "1 validation error:\n  {{'type': '{expected}_type', 'loc': ('body', '{field}'), \
             'msg': 'Input should be a valid {expected}'}}\n"
        ))
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Schema(_) | Self::Types(_) | Self::Value(_) => StatusCode::BAD_REQUEST,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Route { status, .. } => *status,
            Self::Unsupported { .. } | Self::Model { .. } => StatusCode::NOT_FOUND,
        }
    }

    /// The body and its content type.
    pub(super) fn body(&self) -> (Vec<u8>, &'static str) {
        let message = match self {
            Self::Schema(message) | Self::Types(message) | Self::Value(message) => wire::quoted(message),
            Self::Internal => {
                return (b"Internal Server Error".to_vec(), "text/plain; charset=utf-8");
            }
            Self::Route { status, .. } => wire::quoted(status.canonical_reason().unwrap_or_default()),
            Self::Unsupported { endpoint } => wire::quoted(&format!("{endpoint} is not supported by the demo engine")),
            Self::Model { name } => wire::quoted(&format!("The model '{name}' does not exist")),
        };
        let body = match self {
            Self::Schema(_) => format!(r#"{{"error":{message}}}"#),
            Self::Types(_) => {
                format!(r#"{{"object":"error","message":{message},"type":"Bad Request","param":null,"code":400}}"#)
            }
            Self::Value(_) | Self::Internal => format!(r#"{{"error":{{"message":{message}}}}}"#),
            Self::Route { .. } | Self::Unsupported { .. } => format!(r#"{{"detail":{message}}}"#),
            Self::Model { .. } => format!(
                r#"{{"error":{{"message":{message},"type":"invalid_request_error","param":"model","code":"model_not_found"}}}}"#
            ),
        };
        (body.into_bytes(), "application/json")
    }

    /// The error event of a stream that has status 200; `None` if the refusal has its own status.
    pub(super) fn event(&self, dialect: Dialect) -> Option<Vec<u8>> {
        let Self::Value(message) = self else {
            return None;
        };
        let message = wire::quoted(message);
        let rest = match dialect {
            Dialect::Sglang0523 => r#","type":"invalid_request_error","code":400,"retryable":false"#,
            Dialect::Sglang056 => "",
        };
        Some(format!("data: {{\"error\":{{\"message\":{message}{rest}}}}}\n\n").into_bytes())
    }
}
