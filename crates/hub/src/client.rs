//! HTTP as downloading needs it: one GET, redirects followed by hand, failures sorted into those worth another try and
//! the rest.
//!
//! The token goes to the endpoint's own scheme, host and port and to nobody else, wherever a redirect leads.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, header};

use crate::error::HubError;
use crate::url::Url;

/// Redirects of one request.
const MAX_REDIRECTS: usize = 10;

/// Bytes of a server's explanation that are read.
const MEANING_BYTES: u64 = 2048;

/// Something that must not be shown.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Keeps it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// When to try again.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Attempts in a row that may bring nothing.
    pub attempts: u32,
    /// The first pause; each further one is twice as long, give or take a quarter.
    pub first_pause: Duration,
    /// The longest pause of our own choosing.
    pub longest_pause: Duration,
    /// The longest pause that a server may ask for; past it, its wish is an error.
    pub longest_wait: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 8,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            longest_wait: Duration::from_secs(600),
        }
    }
}

/// How to talk to servers. Nothing of it is read from the environment: that is for whoever fills this in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub: `https://huggingface.co`, or another that speaks its protocol.
    pub endpoint: String,
    /// Sent to the endpoint's own host only.
    pub token: Option<Secret>,
    /// What this program calls itself.
    pub user_agent: String,
    /// Longest time to a connection, TLS included.
    pub connect_timeout: Duration,
    /// Longest silence of a server.
    pub read_timeout: Duration,
    /// When to try again.
    pub retry: Retry,
    /// `http://host:port` or the like.
    pub proxy: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            user_agent: concat!("spinetail/", env!("CARGO_PKG_VERSION")).to_owned(),
            connect_timeout: Duration::from_secs(20),
            read_timeout: Duration::from_secs(45),
            retry: Retry::default(),
            proxy: None,
        }
    }
}

/// Set once when everybody should stop.
#[derive(Debug, Default)]
pub(crate) struct StopFlag(AtomicBool);

impl StopFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps, unless it is time to stop.
    fn sleep(&self, time: Duration) -> Result<(), Fault> {
        let end = Instant::now() + time;
        loop {
            if self.is_set() {
                return Err(Fault::Stop(HubError::Cancelled));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// Why something was not had.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Another attempt may do; the server may have said when.
    Again { why: String, wait: Option<Duration> },
    /// The source is no longer what its listing says: everything has to be looked at anew.
    Changed(String),
    /// It will not be had.
    Stop(HubError),
}

impl<E: Into<HubError>> From<E> for Fault {
    fn from(e: E) -> Self {
        Self::Stop(e.into())
    }
}

impl Fault {
    pub(crate) fn again(why: impl Into<String>) -> Self {
        Self::Again { why: why.into(), wait: None }
    }
}

/// What the hub itself says about a file, on the way to where its bytes are.
#[derive(Debug, Default, Clone)]
pub(crate) struct Linked {
    /// The SHA-256 of a large file; the hub's own tag of a small one.
    pub(crate) etag: Option<String>,
    pub(crate) bytes: Option<u64>,
    pub(crate) commit: Option<String>,
}

/// An answer of 200, 206 or 416.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Length of the body, if announced.
    pub(crate) length: Option<u64>,
    /// First byte and length of the whole file, from `Content-Range`.
    pub(crate) range: (Option<u64>, Option<u64>),
    pub(crate) etag: Option<String>,
    pub(crate) linked: Linked,
    /// The next page of a listing.
    pub(crate) next: Option<String>,
    pub(crate) body: Box<dyn Read + Send>,
}

/// Talks to servers.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    pub(crate) retry: Retry,
    endpoint: Url,
    token: Option<Secret>,
    /// Whether any server has answered yet. Until one has, the address is more likely wrong than the network broken.
    answered: Arc<AtomicBool>,
}

/// Attempts at a first contact: enough for a lost packet, few enough for a mistyped address.
const FIRST_CONTACT_ATTEMPTS: u32 = 3;

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
}

/// An entity tag without quotes and weakness.
fn bare_tag(tag: &str) -> String {
    tag.trim_start_matches("W/").trim_matches('"').to_owned()
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Self, HubError> {
        let setting =
            |what, expected, found: &str| HubError::Setting { what, expected, found: found.to_owned() };
        let endpoint = Url::parse(settings.endpoint.trim_end_matches('/'))
            .map_err(|why| setting("endpoint", why, &settings.endpoint))?;
        let visible = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_graphic());
        if settings.token.as_ref().is_some_and(|t| !visible(&t.0)) {
            return Err(setting("token", "letters, digits and signs, as it was issued", "something else"));
        }
        let proxy = settings.proxy.as_deref().map(ureq::Proxy::new).transpose();
        let proxy = proxy.map_err(|_| {
            setting("proxy", "http://host:port", settings.proxy.as_deref().unwrap_or_default())
        })?;
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .user_agent(settings.user_agent.as_str())
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_send_request(Some(settings.connect_timeout))
            .timeout_recv_response(Some(settings.read_timeout))
            .timeout_per_read(Some(settings.read_timeout))
            .build()
            .new_agent();
        Ok(Self {
            agent,
            retry: settings.retry.clone(),
            endpoint,
            token: settings.token.clone(),
            answered: Arc::default(),
        })
    }

    pub(crate) fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// The bytes of `url` from `from` to `to` (not included) or its end; all of it if `from` is absent.
    pub(crate) fn get(&self, url: &Url, from: Option<u64>, to: Option<u64>) -> Result<Answer, Fault> {
        let (mut at, mut linked) = (url.clone(), Linked::default());
        for _ in 0..=MAX_REDIRECTS {
            let home = at.origin() == url.origin();
            let response = self.send(&at, from, to)?;
            self.answered.store(true, Ordering::Relaxed);
            let headers = response.headers();
            if home {
                let size = text(headers, "x-linked-size").and_then(|s| s.parse().ok());
                let tag = text(headers, "x-linked-etag").map(|t| bare_tag(&t));
                linked.commit = text(headers, "x-repo-commit").or(linked.commit);
                linked.bytes = size.or(linked.bytes);
                linked.etag = tag.or(linked.etag);
            }
            match response.status().as_u16() {
                200 | 206 | 416 => return answer(&at, response, linked),
                301 | 302 | 303 | 307 | 308 => {
                    let wrong = |why: String| HubError::Redirect { url: url.shown(), why };
                    let to = text(headers, "location")
                        .ok_or_else(|| wrong("redirected without saying where".to_owned()))?;
                    let next = at.join(&to).map_err(|e| wrong(format!("redirected to {to:?}: {e}")))?;
                    if at.is_https() && !next.is_https() {
                        return Err(wrong(format!("redirected from https to {}", next.shown())).into());
                    }
                    at = next;
                }
                status => return Err(self.failure(url, &at, status, response)),
            }
        }
        let why = format!("redirected more than {MAX_REDIRECTS} times, the last to {}", at.shown());
        Err(HubError::Redirect { url: url.shown(), why }.into())
    }

    fn send(
        &self,
        url: &Url,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Result<ureq::http::Response<ureq::Body>, Fault> {
        let mut request = self.agent.get(url.to_string()).header(header::ACCEPT_ENCODING, "identity");
        if let Some(from) = from {
            let to = to.map(|t| t.saturating_sub(1).to_string()).unwrap_or_default();
            request = request.header(header::RANGE, format!("bytes={from}-{to}"));
        }
        if let Some(token) = self.token.as_ref().filter(|_| self.is_endpoint(url)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.0));
        }
        // The client looks a name up in a thread of its own, and panics where the system gives none.
        let thread = std::thread::Builder::new().spawn(|| ());
        let _ = thread.map_err(|error| HubError::Thread { error })?.join();
        request.call().map_err(|e| sorted(url, e))
    }

    fn is_endpoint(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    /// What a status that brings no bytes means, found at `url` on the way from `asked`.
    fn failure(
        &self,
        asked: &Url,
        url: &Url,
        status: u16,
        response: ureq::http::Response<ureq::Body>,
    ) -> Fault {
        let seconds = text(response.headers(), "retry-after").and_then(|s| s.trim().parse::<u64>().ok());
        let wait = seconds.map(Duration::from_secs);
        let said =
            text(response.headers(), "x-error-message").or_else(|| text(response.headers(), "x-error-code"));
        let meaning = said.unwrap_or_else(|| explanation(response));
        let shown = url.shown();
        match status {
            429 if wait > Some(self.retry.longest_wait) => {
                HubError::RateLimited { url: shown, seconds: seconds.unwrap_or(0) }.into()
            }
            408 | 425 | 429 | 500..=599 => Fault::Again { why: format!("{shown} answered {status}"), wait },
            // A signed link that has run out: asking the hub again gives a fresh one.
            _ if url.origin() != asked.origin() && (status != 404 || self.is_endpoint(asked)) => {
                Fault::again(format!("{shown} answered {status}, as expired links do"))
            }
            401 | 403 => {
                let token = self.token.is_some() && self.is_endpoint(url);
                HubError::Refused { url: shown, status, meaning, token }.into()
            }
            404 | 410 => HubError::NotFound { url: shown }.into(),
            _ => HubError::Status { url: shown, status, meaning }.into(),
        }
    }

    /// Does `work` until it succeeds or has failed too often.
    pub(crate) fn retrying<T>(
        &self,
        what: &Url,
        stop: &StopFlag,
        mut work: impl FnMut() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut failures = 0;
        loop {
            match work() {
                Err(Fault::Again { why, wait }) => {
                    failures += 1;
                    self.pause(what, stop, failures, why, wait)?;
                }
                other => return other,
            }
        }
    }

    /// Waits before the next attempt, or gives up.
    pub(crate) fn pause(
        &self,
        what: &Url,
        stop: &StopFlag,
        failures: u32,
        why: String,
        wait: Option<Duration>,
    ) -> Result<(), Fault> {
        let answered = self.answered.load(Ordering::Relaxed);
        let attempts =
            if answered { self.retry.attempts } else { self.retry.attempts.min(FIRST_CONTACT_ATTEMPTS) };
        if failures >= attempts {
            return Err(HubError::Network { url: what.shown(), attempts: failures, why }.into());
        }
        let own = self.retry.first_pause * 2u32.saturating_pow(failures.saturating_sub(1).min(16));
        let own = own.min(self.retry.longest_pause).mul_f64(jitter());
        stop.sleep(wait.unwrap_or(own).min(self.retry.longest_wait))
    }

    /// Whether an error says that `url` does not exist. Some file stores answer 403 where others answer 404.
    pub(crate) fn is_absence(&self, url: &Url, error: &HubError) -> bool {
        match error {
            HubError::NotFound { .. } => true,
            HubError::Refused { status, .. } => *status == 403 && !self.is_endpoint(url),
            _ => false,
        }
    }

    /// A whole small file and the answer's head, or `None` if there is none. `limit` is in bytes.
    pub(crate) fn small(
        &self,
        url: &Url,
        limit: u64,
        stop: &StopFlag,
    ) -> Result<Option<(Vec<u8>, Answer)>, Fault> {
        self.retrying(url, stop, || match self.get(url, None, None) {
            Ok(mut answer) => {
                let bytes = bounded(url, &mut answer, limit)?;
                Ok(Some((bytes, answer)))
            }
            Err(Fault::Stop(e)) if self.is_absence(url, &e) => Ok(None),
            Err(other) => Err(other),
        })
    }
}

/// Reads all of a body that must not be longer than `limit`.
fn bounded(url: &Url, answer: &mut Answer, limit: u64) -> Result<Vec<u8>, Fault> {
    let too_large = |found| HubError::TooLarge { url: url.shown(), limit, found };
    if let Some(n) = answer.length.filter(|&n| n > limit) {
        return Err(too_large(n.to_string()).into());
    }
    let mut bytes = Vec::new();
    let read = answer.body.by_ref().take(limit + 1).read_to_end(&mut bytes);
    if bytes.len() as u64 > limit {
        return Err(too_large("more".to_owned()).into());
    }
    read.map_err(|e| Fault::again(format!("{}: {e}", url.shown())))?;
    match answer.length {
        Some(n) if n != bytes.len() as u64 => {
            Err(Fault::again(format!("{}: closed after {} of {n} bytes", url.shown(), bytes.len())))
        }
        _ => Ok(bytes),
    }
}

fn answer(url: &Url, response: ureq::http::Response<ureq::Body>, linked: Linked) -> Result<Answer, Fault> {
    let headers = response.headers();
    let encoding = text(headers, "content-encoding").unwrap_or_default();
    if !matches!(encoding.as_str(), "" | "identity") {
        let found = format!("a body encoded as {encoding:?}, which was not asked for");
        return Err(HubError::Answer { url: url.shown(), expected: "the file's own bytes", found }.into());
    }
    let range = text(headers, "content-range").map(|s| content_range(&s)).unwrap_or_default();
    let next = text(headers, "link").and_then(|s| next_page(&s));
    let etag = text(headers, "etag").map(|t| bare_tag(&t));
    let status = response.status().as_u16();
    let length = response.body().content_length();
    Ok(Answer {
        status,
        length,
        range,
        etag,
        linked,
        next,
        body: Box::new(response.into_body().into_reader()),
    })
}

/// First byte and total of `bytes A-B/TOTAL` or `bytes */TOTAL`.
fn content_range(text: &str) -> (Option<u64>, Option<u64>) {
    let Some((range, total)) = text.strip_prefix("bytes ").and_then(|s| s.split_once('/')) else {
        return (None, None);
    };
    let first = range.split('-').next().and_then(|s| s.trim().parse().ok());
    (first, total.trim().parse().ok())
}

/// The target of `rel="next"` of a `Link` header.
fn next_page(text: &str) -> Option<String> {
    text.split(',').find_map(|link| {
        let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = rest.split(';').any(|p| matches!(p.trim(), "rel=\"next\"" | "rel=next"));
        is_next.then(|| target.to_owned())
    })
}

/// Sorts what went wrong before there was an answer.
fn sorted(url: &Url, e: ureq::Error) -> Fault {
    use ureq::Error as E;
    let shown = url.shown();
    match e {
        E::BadUri(_) | E::Http(_) => {
            HubError::Answer { url: shown, expected: "a URL", found: e.to_string() }.into()
        }
        E::LargeResponseHeader(..) => {
            HubError::Answer { url: shown, expected: "short headers", found: e.to_string() }.into()
        }
        // A certificate that does not fit will not fit the next time.
        E::Rustls(_) | E::Tls(_) | E::TlsRequired | E::Pem(_) => HubError::Answer {
            url: shown,
            expected: "a TLS connection with a certificate that a public authority vouches for",
            found: e.to_string(),
        }
        .into(),
        E::HostNotFound => Fault::again(format!("{shown}: no address for this host")),
        other => Fault::again(format!("{shown}: {other}")),
    }
}

/// What a server says about a failure, as far as it can be shown on a line.
fn explanation(response: ureq::http::Response<ureq::Body>) -> String {
    let mut bytes = Vec::new();
    let _ = response.into_body().into_reader().take(MEANING_BYTES).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let json: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let said = json.as_ref().and_then(|v| v.get("error")).and_then(|v| v.as_str());
    let plain = !text.trim_start().starts_with('<');
    let said = said.unwrap_or(if plain { &text } else { "" });
    said.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A factor between 0.75 and 1.25, so that many clients do not come back at once.
fn jitter() -> f64 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    0.75 + 0.5 * (random >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_taken_apart() {
        assert_eq!(content_range("bytes 5-9/10"), (Some(5), Some(10)));
        assert_eq!(content_range("bytes */10"), (None, Some(10)));
        assert_eq!(content_range("bytes 5-9/*"), (Some(5), None));
        assert_eq!(content_range("items 5-9/10"), (None, None));
        assert_eq!(next_page("<https://h/a?c=1>; rel=\"next\"").as_deref(), Some("https://h/a?c=1"));
        assert_eq!(next_page("<a>; rel=\"prev\", <b>; rel=\"next\"").as_deref(), Some("b"));
        assert_eq!(next_page("<a>; rel=\"prev\""), None);
        assert_eq!(bare_tag("W/\"x\""), "x");
    }

    #[test]
    fn secrets_are_not_shown() {
        let settings = Settings { token: Some(Secret::new("hf_abc")), ..Settings::default() };
        assert!(!format!("{settings:?}").contains("hf_abc"));
        let client = Client::new(&settings).unwrap();
        assert!(!format!("{client:?}").contains("hf_abc"));
        for bad in ["", "a b", "a\nb"] {
            let settings = Settings { token: Some(Secret::new(bad)), ..Settings::default() };
            assert!(!Client::new(&settings).unwrap_err().to_string().contains('\n'));
        }
    }

    #[test]
    fn jitter_stays_in_its_bounds() {
        (0..1000).for_each(|_| assert!((0.75..1.25).contains(&jitter())));
    }
}
