//! Reads a request's body: bounded in size and time, alone and together with all others, and then as a JSON object.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;
use crate::options::Limits;

/// Memory is counted in pieces of this size.
const PIECE: usize = 4096;

/// Reads bodies within their limits.
pub(crate) struct BodyReader {
    max_bytes: usize,
    time: Duration,
    /// Pieces that all bodies together may still take.
    memory: Arc<Semaphore>,
}

/// A body; the memory it takes counts until it is dropped.
pub(crate) struct RawBody {
    bytes: BytesMut,
    _memory: Option<OwnedSemaphorePermit>,
}

impl RawBody {
    /// The JSON object that it is. It can be many times larger than its text.
    pub(crate) fn parse(&self) -> Result<Map<String, Value>, ApiError> {
        parse(&self.bytes)
    }
}

impl BodyReader {
    pub(crate) fn new(limits: &Limits) -> BodyReader {
        let pieces = (limits.all_bodies_bytes.max(limits.body_bytes) / PIECE + 1).min(Semaphore::MAX_PERMITS);
        let memory = Arc::new(Semaphore::new(pieces));
        BodyReader { max_bytes: limits.body_bytes, time: limits.body, memory }
    }

    /// Reads what claims to be JSON.
    pub(crate) async fn json(&self, request: Request<Body>) -> Result<RawBody, ApiError> {
        let (head, body) = request.into_parts();
        check_headers(&head.headers)?;
        if declared(&head.headers).is_some_and(|bytes| bytes > self.max_bytes as u64) {
            return Err(self.too_large());
        }
        let read = timeout(self.time, self.read(body)).await;
        let (bytes, memory) = read.unwrap_or_else(|_| {
            let message = format!("the body did not arrive within {} s", self.time.as_secs_f64());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message).closing())
        })?;
        Ok(RawBody { bytes, _memory: memory })
    }

    async fn read(&self, mut body: Body) -> Result<(BytesMut, Option<OwnedSemaphorePermit>), ApiError> {
        let mut bytes = BytesMut::new();
        let mut memory: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let message = format!("the body ended too early or is not well formed: {error}");
                ApiError::new(StatusCode::BAD_REQUEST, message).code("incomplete_body").closing()
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.remaining() > self.max_bytes {
                return Err(self.too_large());
            }
            bytes.extend_from_slice(&data);
            let held = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let missing = (bytes.len().div_ceil(PIECE)).saturating_sub(held);
            if missing > 0 {
                let more = Arc::clone(&self.memory).try_acquire_many_owned(missing as u32).map_err(|_| {
                    let message = "too many large requests are being read at once; try again";
                    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
                        .code("server_busy")
                        .retry_after(1)
                        .closing()
                })?;
                match &mut memory {
                    Some(memory) => memory.merge(more),
                    None => memory = Some(more),
                }
            }
        }
        Ok((bytes, memory))
    }

    fn too_large(&self) -> ApiError {
        let message = format!("the body is larger than {} bytes", self.max_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("body_too_large").closing()
    }
}

fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// JSON in UTF-8, not compressed. A browser sends no such content type to a foreign site without asking first.
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let refused = |message: String| {
        Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).code("unsupported_media_type"))
    };
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let Some(content_type) = text(header::CONTENT_TYPE) else {
        return refused("expected the header Content-Type: application/json, found none".to_owned());
    };
    let mut parts = content_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            matches!(value.trim().trim_matches('"').to_ascii_lowercase().as_str(), "utf-8" | "utf8")
        }
        _ => true,
    });
    if !is_json || !is_utf8 {
        return refused(format!("expected Content-Type: application/json in UTF-8, found {content_type}"));
    }
    match text(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.eq_ignore_ascii_case("identity") => {
            refused(format!("expected a body that is not compressed, found Content-Encoding: {encoding}"))
        }
        _ => Ok(()),
    }
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let malformed =
        |message: String| Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("invalid_json"));
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.valid_up_to();
            return malformed(format!("the body is not UTF-8: byte {at} (from 0) begins no character"));
        }
    };
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => malformed("the body is JSON, but not an object".to_owned()),
        // The parser's message ends with line and column.
        Err(error) => malformed(format!("the body is not valid JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(content_type: &str, body: &[u8]) -> Result<Map<String, Value>, (u16, String)> {
        let limits = Limits { body_bytes: 1000, ..Limits::default() };
        let request = Request::builder().header("content-type", content_type);
        let request = request.body(Body::from(body.to_vec())).unwrap();
        let body = BodyReader::new(&limits).json(request).await;
        body.and_then(|body| body.parse()).map_err(|error| (error.status.as_u16(), error.message))
    }

    #[tokio::test]
    async fn statuses() {
        assert!(read("application/json", b"{\"a\": 1}").await.is_ok());
        assert!(read("Application/JSON; Charset=\"UTF-8\"", b"{}").await.is_ok());
        assert_eq!(read("text/plain", b"{}").await.unwrap_err().0, 415);
        assert_eq!(read("application/json; charset=latin1", b"{}").await.unwrap_err().0, 415);
        let error = read("application/json", b"{\"a\": 1,}").await.unwrap_err();
        assert!(error.0 == 400 && error.1.contains("line 1 column 9"), "{error:?}");
        let error = read("application/json", b"{\"a\": \"\xff\"}").await.unwrap_err();
        assert!(error.0 == 400 && error.1.contains("byte 7"), "{error:?}");
        for body in ["[]", "", "{\"a\": 1e999}", &"[".repeat(900)] {
            assert_eq!(read("application/json", body.as_bytes()).await.unwrap_err().0, 400);
        }
        assert_eq!(read("application/json", &[b' '; 1001]).await.unwrap_err().0, 413);
    }
}
