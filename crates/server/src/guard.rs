//! Who may ask: the API key, and on loopback without one, which web pages.
//!
//! A page on the web can make the browser send requests to this machine, and by a name that it lets point here (DNS
//! rebinding) even read the answers. Without a key, therefore, a request must name this machine as its host, by
//! `localhost` or an address, and must not come from a page of elsewhere. With a key such a page has nothing to send.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::{ApiError, ServeError};
use crate::options::{ApiKey, ServeOptions};

/// The door.
pub(crate) struct Guard {
    key: Option<ApiKey>,
    /// Origins that may call, lower case; `*` for all.
    origins: Vec<String>,
}

impl Guard {
    pub(crate) fn new(options: &ServeOptions) -> Guard {
        let origins = options.allowed_origins.iter().map(|origin| origin.to_ascii_lowercase()).collect();
        Guard { key: options.api_key.clone(), origins }
    }

    /// Refuses who may not ask. `open` is for what everybody may see who can reach the port.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap, open: bool) -> Result<(), ApiError> {
        match &self.key {
            Some(_) if open => Ok(()),
            Some(key) => check_key(key, headers),
            None => self.check_place(uri, headers),
        }
    }

    fn check_place(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let refused = |message: String, code| Err(ApiError::new(StatusCode::FORBIDDEN, message).code(code));
        let named =
            headers.get(header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
        // Without any host it is no browser.
        if let Some(host) = uri.authority().map(|host| host.as_str().to_owned()).or(named)
            && !is_address_or_local(host_name(&host))
        {
            let message = format!(
                "the host {host:?} is not this machine; use localhost or an address, or start the server with an API key"
            );
            return refused(message, "host_not_allowed");
        }
        for origin in headers.get_all(header::ORIGIN) {
            let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
            let listed = self.origins.iter().any(|allowed| allowed == "*" || *allowed == origin);
            if !listed && !is_local_origin(&origin) {
                let message = format!("pages of the origin {origin:?} may not call this server");
                return refused(message, "origin_not_allowed");
            }
        }
        Ok(())
    }
}

fn check_key(key: &ApiKey, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let (scheme, token) = given.split_at(given.len().min("Bearer ".len()));
    if scheme.eq_ignore_ascii_case(b"Bearer ") && key.matches(token.trim_ascii()) {
        return Ok(());
    }
    let message = if given.is_empty() {
        "an API key is needed: send the header Authorization: Bearer KEY"
    } else {
        "Incorrect API key provided."
    };
    Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
}

/// The layer that tells browsers which pages may read answers; `None` if none may.
pub(crate) fn cors(options: &ServeOptions) -> Result<Option<CorsLayer>, ServeError> {
    let origins = &options.allowed_origins;
    if origins.is_empty() {
        return Ok(None);
    }
    let allow = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let parse = |origin: &String| {
            let valid = origin.contains("://") && !origin.ends_with('/');
            let value = HeaderValue::from_str(origin).ok().filter(|_| valid);
            value.ok_or_else(|| ServeError::Origin { origin: origin.clone() })
        };
        AllowOrigin::list(origins.iter().map(parse).collect::<Result<Vec<_>, _>>()?)
    };
    let layer = CorsLayer::new()
        .allow_origin(allow)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request());
    Ok(Some(layer))
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// An address cannot be made to point elsewhere.
fn is_address_or_local(name: &str) -> bool {
    is_localhost(name) || name.parse::<IpAddr>().is_ok()
}

fn is_local_origin(origin: &str) -> bool {
    let Some(host) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else {
        return false;
    };
    let name = host_name(host);
    is_localhost(name) || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(options: &ServeOptions, headers: &[(&str, &str)]) -> u16 {
        let map = headers.iter().map(|(name, value)| {
            (name.parse::<header::HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        });
        let result = Guard::new(options).check(&Uri::from_static("/v1/models"), &map.collect(), false);
        result.map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    #[test]
    fn without_a_key_only_this_machine() {
        let check = |headers: &[(&str, &str)]| check(&ServeOptions::default(), headers);
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "app.localhost", "192.168.1.2"]
        {
            assert_eq!(check(&[("host", host)]), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io", "[evil]", ""] {
            assert_eq!(check(&[("host", host)]), 403, "{host}");
        }
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            assert_eq!(check(&[("origin", origin)]), 200, "{origin}");
        }
        for origin in
            ["null", "https://evil.example", "http://localhost.evil.example", "http://10.0.0.1", "file://"]
        {
            assert_eq!(check(&[("origin", origin)]), 403, "{origin}");
        }
        assert_eq!(check(&[]), 200);
    }

    #[test]
    fn with_a_key_only_who_has_it() {
        let options = || ServeOptions { api_key: ApiKey::new("k3y").ok(), ..ServeOptions::default() };
        assert_eq!(check(&options(), &[("authorization", "Bearer k3y"), ("host", "model.example")]), 200);
        assert_eq!(check(&options(), &[("authorization", "bearer k3y")]), 200);
        for wrong in ["Bearer k3x", "Bearer ", "k3y", "Basic k3y", "Bearer k3y2", ""] {
            assert_eq!(check(&options(), &[("authorization", wrong)]), 401, "{wrong}");
        }
    }

    #[test]
    fn allowed_origins() {
        let options = |origin: &str| ServeOptions {
            allowed_origins: vec![origin.to_owned()],
            ..ServeOptions::default()
        };
        assert_eq!(check(&options("https://app.example"), &[("origin", "https://app.example")]), 200);
        assert_eq!(check(&options("https://app.example"), &[("origin", "https://b.example")]), 403);
        assert!(cors(&options("*")).unwrap().is_some());
        assert!(cors(&options("app.example")).is_err());
        assert!(cors(&ServeOptions::default()).unwrap().is_none());
    }
}
