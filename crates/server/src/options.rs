//! What a server is started with.
//!
//! Must not read the environment or files: whoever starts the server does, and passes values.

use std::time::Duration;

use subtle::ConstantTimeEq as _;

use crate::error::ServeError;

/// Everything that can be set. The default listens on loopback, port 8080, without a key.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Name or address to listen on. Any but a loopback one needs an [`api_key`](Self::api_key).
    pub host: String,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// The key that requests must carry, if one is wanted.
    pub api_key: Option<ApiKey>,
    /// The model's name in requests and answers.
    pub model_id: String,
    /// Other names that requests may use for it.
    pub model_aliases: Vec<String>,
    /// Whether unknown and unsupported request fields are ignored, with a line in the log, instead of refused.
    pub lenient: bool,
    /// Web origins (`https://example.org`) whose pages may call the server; `*` allows all. Empty: no CORS.
    pub allowed_origins: Vec<String>,
    /// Bounds of what clients may take.
    pub limits: Limits,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            api_key: None,
            model_id: "default".to_owned(),
            model_aliases: Vec::new(),
            lenient: false,
            allowed_origins: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Bounds of what clients may take, and how long they may take for it.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Requests that may wait for the engine; one more is answered with 429.
    pub queue: usize,
    /// Connections open at once; further ones wait to be accepted.
    pub connections: usize,
    /// Bytes of a request's body; more is answered with 413.
    pub body_bytes: usize,
    /// Bytes of all bodies being read at once; past it, 503.
    pub all_bodies_bytes: usize,
    /// Time for a request's head to arrive, which is also how long an idle connection is kept.
    pub head: Duration,
    /// Time for a request's body to arrive.
    pub body: Duration,
    /// Time in which a client that is being written to must take something.
    pub write: Duration,
    /// Tokens that may lie ready for a client that reads slowly.
    pub unread_tokens: usize,
    /// Time that the engine waits, in all, for one such client before it drops the answer.
    pub stall: Duration,
    /// Time between comments on a stream on which nothing else happens.
    pub keep_alive: Duration,
    /// Time that running answers get to finish after the server was told to stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue: 64,
            connections: 512,
            body_bytes: 8 << 20,
            all_bodies_bytes: 64 << 20,
            head: Duration::from_secs(30),
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            unread_tokens: 4096,
            stall: Duration::from_secs(10),
            keep_alive: Duration::from_secs(5),
            grace: Duration::from_secs(20),
        }
    }
}

/// A key that requests must carry as `Authorization: Bearer KEY`. It shows in no log.
#[derive(Clone)]
pub struct ApiKey(String);

impl ApiKey {
    /// A key from text such as a file's; white space around it is dropped.
    pub fn new(text: &str) -> Result<ApiKey, ServeError> {
        let key = text.trim();
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(ServeError::Key);
        }
        Ok(ApiKey(key.to_owned()))
    }

    /// Takes the same time for every wrong key of the right length.
    pub(crate) fn matches(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let key = ApiKey::new(" s3cret\n").unwrap();
        assert!(key.matches(b"s3cret"));
        assert!(!key.matches(b"s3cres") && !key.matches(b"s3cret ") && !key.matches(b""));
        assert!(!format!("{key:?}").contains("s3cret"));
        assert!(ApiKey::new(" \n").is_err() && ApiKey::new("two words").is_err());
    }
}
