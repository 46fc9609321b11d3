//! The engine's refusals, as SGLang writes them.

use http::StatusCode;

use super::options::Dialect;
use super::wire;

/// A request that is not served. SGLang has five shapes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The check of the raw JSON: 400 with a bare string, even for a stream.
    Schema(String),
    /// Types that do not fit: 400 in OpenAI's shape, even for a stream.
    Types(String),
    /// A value that cannot be served: 400, inside the stream if there is one.
    Value(String),
    /// An exception that the engine did not expect: 500 in plain text.
    Internal,
    /// 404 or 405, with the methods that would have been fine.
    Route { status: StatusCode, allow: Option<&'static str> },
    /// 404: SGLang has the route and this engine does not.
    Lacks { endpoint: &'static str },
    /// 404 in OpenAI's shape: the model does not exist.
    Model { name: String },
}

impl Refusal {
    pub(super) fn value(message: impl Into<String>) -> Self {
        Self::Value(message.into())
    }

    /// A type error of one field.
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
            Self::Lacks { .. } | Self::Model { .. } => StatusCode::NOT_FOUND,
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
            Self::Lacks { endpoint } => wire::quoted(&format!("{endpoint} is not supported by the demo engine")),
            Self::Model { name } => wire::quoted(&format!("The model '{name}' does not exist")),
        };
        let body = match self {
            Self::Schema(_) => format!(r#"{{"error":{message}}}"#),
            Self::Types(_) => {
                format!(r#"{{"object":"error","message":{message},"type":"Bad Request","param":null,"code":400}}"#)
            }
            Self::Value(_) | Self::Internal => format!(r#"{{"error":{{"message":{message}}}}}"#),
            Self::Route { .. } | Self::Lacks { .. } => format!(r#"{{"detail":{message}}}"#),
            Self::Model { .. } => format!(
                r#"{{"error":{{"message":{message},"type":"invalid_request_error","param":"model","code":"model_not_found"}}}}"#
            ),
        };
        (body.into_bytes(), "application/json")
    }

    /// The event of a stream that is refused after its 200; none for what is
    /// refused before.
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
