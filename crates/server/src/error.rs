//! What can go wrong: when starting ([`ServeError`]), and for one request ([`ApiError`]), in OpenAI's shape.
//!
//! Every HTTP status that is not 200 comes from here.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use spinetail_engine::EngineError;
use spinetail_engine::text::{ParamError, TemplateError, TextError, TokenizerError};

/// Why the server could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {host}:{port}: {error}; choose another host or port")]
    Listen {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// The system's reason.
        error: std::io::Error,
    },
    /// Others could reach the server, and nothing would keep them out.
    #[error(
        "{host} can be reached from other machines, which needs an API key; give one, or listen on 127.0.0.1"
    )]
    NeedsKey {
        /// Name or address.
        host: String,
    },
    /// A key that no header could carry.
    #[error(
        "the API key is empty or has characters that a header cannot carry; use visible ASCII characters without spaces"
    )]
    Key,
    /// An origin that no header could carry.
    #[error("{origin:?} is no web origin; give something like https://example.org, or *")]
    Origin {
        /// What was given.
        origin: String,
    },
    /// The engine could not make a session, or has no tokenizer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A thread could not be started.
    #[error("cannot start the engine's thread: {0}; close other programs, or raise the limit on threads")]
    Thread(std::io::Error),
}

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds after which trying again makes sense.
    pub(crate) retry_after: Option<u64>,
    /// Whether the connection is of no more use: part of the request is still on it.
    pub(crate) closes: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            closes: false,
        }
    }

    /// A field of the request is at fault.
    pub(crate) fn bad_field(param: impl Into<String>, reason: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        let message = format!("{param}: {reason}");
        ApiError::new(StatusCode::BAD_REQUEST, message).param(param).code("invalid_value")
    }

    pub(crate) fn param(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> ApiError {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn closing(mut self) -> ApiError {
        self.closes = true;
        self
    }

    /// The engine stops because the server does.
    pub(crate) fn shutting_down() -> ApiError {
        let message = "the server is shutting down; try again when it is back";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("shutting_down").retry_after(5)
    }

    /// Something went wrong that is not the request's fault.
    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).code("engine_error")
    }

    /// A prompt that leaves no room.
    pub(crate) fn context(param: &'static str, tokens: impl std::fmt::Display, context: usize) -> ApiError {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, the prompt has {tokens} tokens. Please \
             reduce its length, or start the server with a larger context."
        );
        ApiError::new(StatusCode::BAD_REQUEST, message).param(param).code("context_length_exceeded")
    }

    /// What the engine refused or failed at. `field` is the request's field that holds the prompt.
    pub(crate) fn from_engine(error: &EngineError, field: &'static str) -> ApiError {
        match error {
            EngineError::Text(error) => ApiError::from_text(error, field),
            EngineError::Param(error) => error.clone().into(),
            EngineError::PromptTooLong { tokens, context } => ApiError::context(field, tokens, *context),
            EngineError::TextTooLong { least, context } => {
                ApiError::context(field, format_args!("at least {least}"), *context)
            }
            EngineError::EmptyPrompt => ApiError::bad_field(field, error),
            other => ApiError::internal(other.to_string()),
        }
    }

    fn from_text(error: &TextError, field: &'static str) -> ApiError {
        match error {
            TextError::Template(TemplateError::Refused { param, reason }) => {
                ApiError::bad_field(param.as_str(), reason)
            }
            // The template compiled when the model was loaded: it is this conversation that it fails on.
            TextError::Template(TemplateError::Failed { .. } | TemplateError::OutOfFuel { .. })
            | TextError::Tokenizer(TokenizerError::Split { .. } | TokenizerError::TooLarge { .. }) => {
                ApiError::bad_field(field, error)
            }
            TextError::Template(_) | TextError::NoTemplate { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, error.to_string()).code("no_chat_template")
            }
            other => ApiError::internal(other.to_string()),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body, which is also the data of an error event on a stream.
    pub(crate) fn body(&self) -> Value {
        let (message, param) = (shortened(&self.message), self.param.as_deref().map(shortened));
        json!({"error": {"message": message, "type": self.kind(), "param": param, "code": self.code}})
    }
}

/// Messages quote the request, which may be megabytes of one word.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 1000;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl From<ParamError> for ApiError {
    fn from(error: ParamError) -> ApiError {
        ApiError::bad_field(error.param, error.reason)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_bounded() {
        let error = ApiError::bad_field("é".repeat(100_000), "no");
        assert!(error.body().to_string().len() < 5000);
        assert_eq!(ApiError::bad_field("stop", "no").body()["error"]["message"], "stop: no");
    }
}
