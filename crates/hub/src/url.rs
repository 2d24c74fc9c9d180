//! As much of URLs as downloading needs: absolute `http` and `https`, joining, origins, escaping.

use std::fmt;

/// An absolute URL without user, password or fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    https: bool,
    /// Host and port as written, in lower case.
    authority: String,
    /// Path and query; starts with `/`.
    rest: String,
}

impl Url {
    /// Parses an absolute URL; the error says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("a URL has no spaces, control or non-ASCII characters; escape them");
        }
        let Some((scheme, after)) = text.split_once("://") else {
            return Err("a URL starts with https:// or http://");
        };
        let https = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("only https:// and http:// are supported"),
        };
        let after = after.split('#').next().unwrap_or_default();
        let end = after.find(['/', '?']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        if authority.is_empty() || authority.contains(['@', '\\']) {
            return Err("a host is needed after ://, without user or password");
        }
        let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        Ok(Self { https, authority: authority.to_ascii_lowercase(), rest })
    }

    /// What `location` means, found at this URL.
    pub(crate) fn join(&self, location: &str) -> Result<Self, &'static str> {
        if let Some(after) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{after}", self.scheme()));
        }
        let scheme = location.split(['/', '?', '#']).next().unwrap_or_default();
        if scheme.contains(':') {
            return Self::parse(location);
        }
        let path = self.path();
        let rest = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') {
            format!("{path}{location}")
        } else {
            format!("{}{location}", &path[..=path.rfind('/').unwrap_or(0)])
        };
        let mut joined = Self::parse(&format!("{}://{}{rest}", self.scheme(), self.authority))?;
        joined.flatten();
        Ok(joined)
    }

    /// Takes out `.` and `..` segments.
    fn flatten(&mut self) {
        let (path, query) = match self.rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (self.rest.as_str(), None),
        };
        if !path.split('/').any(|s| matches!(s, "." | "..")) {
            return;
        }
        let mut out: Vec<&str> = Vec::new();
        let last = path.split('/').next_back();
        for segment in path.split('/').skip(1) {
            match segment {
                "." => {}
                ".." => drop(out.pop()),
                s => out.push(s),
            }
        }
        if matches!(last, Some("." | "..")) {
            out.push("");
        }
        let query = query.map(|q| format!("?{q}")).unwrap_or_default();
        self.rest = format!("/{}{query}", out.join("/"));
    }

    /// This folder's file `path`, which is escaped.
    pub(crate) fn file(&self, path: &str) -> Self {
        Self { rest: format!("{}/{}", self.path().trim_end_matches('/'), escape(path, true)), ..self.clone() }
    }

    /// With a query in place of the one it has.
    pub(crate) fn query(&self, query: &str) -> Self {
        Self { rest: format!("{}?{query}", self.path()), ..self.clone() }
    }

    fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    pub(crate) fn is_https(&self) -> bool {
        self.https
    }

    fn path(&self) -> &str {
        self.rest.split('?').next().unwrap_or("/")
    }

    /// Scheme, host and port: whom one talks to.
    pub(crate) fn origin(&self) -> (bool, &str) {
        let default = if self.https { ":443" } else { ":80" };
        (self.https, self.authority.strip_suffix(default).unwrap_or(&self.authority))
    }

    /// For people: without the query, which may be a signature.
    pub(crate) fn shown(&self) -> String {
        format!("{}://{}{}", self.scheme(), self.authority, self.path())
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority, self.rest)
    }
}

/// Percent-encodes everything but letters, digits and `-._~`, and `/` if it separates.
pub(crate) fn escape(text: &str, keep_slash: bool) -> String {
    use fmt::Write as _;
    text.bytes().fold(String::with_capacity(text.len()), |mut out, b| {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') || (keep_slash && b == b'/') {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined_as_browsers_do() {
        let base = Url::parse("https://Hub.example:8443/a/b/c?x=1").unwrap();
        for (location, joined) in [
            ("/p/q", "https://hub.example:8443/p/q"),
            ("d?y=%2F", "https://hub.example:8443/a/b/d?y=%2F"),
            ("../d", "https://hub.example:8443/a/d"),
            ("../../../d", "https://hub.example:8443/d"),
            ("./", "https://hub.example:8443/a/b/"),
            ("?z", "https://hub.example:8443/a/b/c?z"),
            ("//cdn.example/f", "https://cdn.example/f"),
            ("http://cdn.example/f#part", "http://cdn.example/f"),
            ("HTTPS://cdn.example", "https://cdn.example/"),
            ("a/b:c", "https://hub.example:8443/a/b/a/b:c"),
        ] {
            assert_eq!(base.join(location).unwrap().to_string(), joined, "{location}");
        }
        for bad in
            ["ftp://x/", "javascript:alert(1)", "https://", "https://u:p@h/", "https://h\\/", "a b", "é"]
        {
            assert!(base.join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_know_default_ports() {
        let origin = |s: &str| Url::parse(s).map(|u| (u.origin().0, u.origin().1.to_owned())).unwrap();
        assert_eq!(origin("https://h:443/x"), origin("https://H/y"));
        assert_ne!(origin("http://h:443/x"), origin("https://h/y"));
        assert_ne!(origin("http://h:81/x"), origin("http://h/x"));
        assert_ne!(origin("https://h.evil/x"), origin("https://h/x"));
    }

    #[test]
    fn files_of_a_folder_are_escaped() {
        let folder = Url::parse("http://m/models/x/").unwrap();
        assert_eq!(folder.file("a/b c?#%.bin").to_string(), "http://m/models/x/a/b%20c%3F%23%25.bin");
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(folder.query("q=1").shown(), "http://m/models/x/");
    }
}
