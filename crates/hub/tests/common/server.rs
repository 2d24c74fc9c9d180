//! A hub and its CDN on loopback, in threads. Each answer is as it should be unless the test's script says otherwise.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Fills a buffer with the bytes from an offset on.
pub type ReadAt = dyn Fn(u64, &mut [u8]) + Send + Sync;

/// A file: its size, its hash, and any of its bytes.
#[derive(Clone)]
pub struct Content {
    pub bytes: u64,
    pub sha256: String,
    pub read: Arc<ReadAt>,
}

impl Content {
    pub fn of(bytes: Vec<u8>) -> Self {
        let sha256 = hex(&Sha256::digest(&bytes));
        let len = bytes.len() as u64;
        let read = move |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
        };
        Self { bytes: len, sha256, read: Arc::new(read) }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    pub cdn: bool,
    /// Without the query.
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    pub encoding: Option<String>,
    /// How many of the same path came before, to the same port.
    pub before: u32,
}

impl Request {
    /// Whether it asks for bytes of a file whose name ends so, where they are.
    pub fn is_bytes_of(&self, end: &str) -> bool {
        self.cdn && self.path.ends_with(end)
    }
}

/// What to do instead of answering well.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status, headers (each with its line end) and body.
    Answer(u16, String, Vec<u8>),
    /// The whole file with 200.
    IgnoreRange,
    /// Closes after so many bytes of the body.
    CloseAfter(u64),
    /// Closes in the middle of the head.
    CloseInHead,
    /// Closes before a byte.
    CloseAtOnce,
    /// Flips a bit of the byte at this place of the file.
    Flip(u64),
    /// Says that the bytes are from elsewhere.
    WrongRange,
    /// Sends bytes past the announced end.
    TooMuch,
    /// Says nothing for so long, then answers.
    Silent(Duration),
    /// Pauses so long after every 16 KiB.
    Slow(Duration),
    /// Leaves out Content-Length and Content-Range, and closes at the end.
    NoLength,
}

/// Says what to do about a request.
pub type Script = dyn Fn(&Request) -> Option<Fault> + Send + Sync;

struct State {
    files: Mutex<BTreeMap<String, Content>>,
    commit: Mutex<String>,
    script: Box<Script>,
    /// Files of one page of a listing.
    page: usize,
    log: Mutex<Vec<Request>>,
    counts: Mutex<HashMap<String, u32>>,
    sent: AtomicU64,
    stop: AtomicBool,
    hub: u16,
    cdn: u16,
}

/// Running servers; they end when it is dropped.
pub struct Server(Arc<State>);

impl Server {
    pub fn start(
        files: BTreeMap<String, Content>,
        script: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [hub, cdn] = listeners.each_ref().map(|l| l.local_addr().unwrap().port());
        let state = Arc::new(State {
            files: Mutex::new(files),
            commit: Mutex::new("a".repeat(40)),
            script: Box::new(script),
            page: 3,
            log: Mutex::default(),
            counts: Mutex::default(),
            sent: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            hub,
            cdn,
        });
        for (listener, is_cdn) in listeners.into_iter().zip([false, true]) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if state.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (state, Ok(stream)) = (Arc::clone(&state), stream) else { continue };
                    std::thread::spawn(move || {
                        let _ = state.serve(stream, is_cdn);
                    });
                }
            });
        }
        Self(state)
    }

    /// Serves folders of bytes.
    pub fn of(
        files: BTreeMap<String, Vec<u8>>,
        script: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        Self::start(files.into_iter().map(|(name, bytes)| (name, Content::of(bytes))).collect(), script)
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.hub)
    }

    /// The folder of the files, as a static mirror without any protocol.
    pub fn mirror(&self) -> String {
        format!("http://127.0.0.1:{}/mirror/tiny", self.0.cdn)
    }

    /// Another commit with other files.
    pub fn change(&self, commit: &str, files: BTreeMap<String, Vec<u8>>) {
        *self.0.files.lock().unwrap() = files.into_iter().map(|(n, b)| (n, Content::of(b))).collect();
        commit.clone_into(&mut self.0.commit.lock().unwrap());
    }

    /// The requests so far; they are forgotten.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.0.log.lock().unwrap())
    }

    /// Bytes of files sent so far.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
        for port in [self.0.hub, self.0.cdn] {
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
    }
}

fn head(status: u16, headers: &str) -> String {
    format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{headers}\r\n")
}

impl State {
    fn serve(&self, mut stream: TcpStream, cdn: bool) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let target = line.split(' ').nth(1).unwrap_or("/").to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
            }
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let before = {
            let mut counts = self.counts.lock().unwrap();
            let n = counts.entry(format!("{cdn} {path}")).or_default();
            std::mem::replace(n, *n + 1)
        };
        let request = Request {
            cdn,
            path: path.to_owned(),
            range: headers.remove("range"),
            authorization: headers.remove("authorization"),
            encoding: headers.remove("accept-encoding"),
            before,
        };
        self.log.lock().unwrap().push(request.clone());
        let fault = (self.script)(&request);
        self.answer(&mut stream, &request, query, fault.as_ref())?;
        stream.flush()?;
        stream.shutdown(Shutdown::Write)?;
        // Until the other side closes, so that what was sent is not lost to a reset.
        let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
        let _ = reader.read(&mut [0; 64]);
        Ok(())
    }

    fn answer(
        &self,
        out: &mut TcpStream,
        r: &Request,
        query: &str,
        fault: Option<&Fault>,
    ) -> std::io::Result<()> {
        match fault {
            Some(Fault::CloseAtOnce) => return Ok(()),
            Some(Fault::CloseInHead) => return out.write_all(b"HTTP/1.1 200 OK\r\nContent-Le"),
            Some(Fault::Answer(status, headers, body)) => {
                let length = format!("{headers}Content-Length: {}\r\n", body.len());
                out.write_all(head(*status, &length).as_bytes())?;
                return out.write_all(body);
            }
            Some(Fault::Silent(time)) => std::thread::sleep(*time),
            _ => {}
        }
        let commit = self.commit.lock().unwrap().clone();
        let files = self.files.lock().unwrap().clone();
        if r.cdn {
            let name = r.path.trim_start_matches("/mirror/tiny").trim_start_matches('/');
            let Some(content) = files.get(name) else {
                return out.write_all(head(404, "Content-Length: 0\r\n").as_bytes());
            };
            // A tag that says nothing of the hash, as those of CDNs do.
            let tag = format!("ETag: \"cdn-{}\"\r\n", &content.sha256[..8]);
            return self.body(out, r, content, &tag, fault);
        }
        let json = |out: &mut TcpStream, body: String, extra: String| {
            let headers =
                format!("{extra}Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
            out.write_all(head(200, &headers).as_bytes())?;
            out.write_all(body.as_bytes())
        };
        if let Some(rest) = r.path.strip_prefix("/api/models/acme/tiny/tree/") {
            let from: usize = query.split("cursor=").nth(1).and_then(|c| c.parse().ok()).unwrap_or(0);
            let items: Vec<_> = files.iter().skip(from).take(self.page).map(|(n, c)| item(n, c)).collect();
            let next =
                format!("</api/models/acme/tiny/tree/{rest}?recursive=true&cursor={}>", from + self.page);
            let more = from + self.page < files.len();
            let link = if more { format!("Link: {next}; rel=\"next\"\r\n") } else { String::new() };
            return json(out, format!("[{}]", items.join(",")), link);
        }
        if r.path.starts_with("/api/models/acme/tiny/revision/") {
            return json(out, format!("{{\"id\": \"acme/tiny\", \"sha\": \"{commit}\"}}"), String::new());
        }
        let name = r.path.split_once("/resolve/").and_then(|(_, rest)| rest.split_once('/')).map(|(_, n)| n);
        let Some((name, content)) = name.and_then(|n| Some((n, files.get(n)?))) else {
            return out.write_all(head(404, "Content-Length: 0\r\n").as_bytes());
        };
        if !is_lfs(name) {
            let tag = format!("ETag: \"{}\"\r\nX-Repo-Commit: {commit}\r\n", &content.sha256[..40]);
            return self.body(out, r, content, &tag, fault);
        }
        let (sha256, bytes, cdn) = (&content.sha256, content.bytes, self.cdn);
        let linked = format!(
            "Location: http://127.0.0.1:{cdn}/{name}?sig=1\r\nX-Linked-ETag: \"{sha256}\"\r\nX-Linked-Size: {bytes}\r\nX-Repo-Commit: {commit}\r\nContent-Length: 0\r\n"
        );
        out.write_all(head(302, &linked).as_bytes())
    }

    fn body(
        &self,
        out: &mut TcpStream,
        r: &Request,
        content: &Content,
        tag: &str,
        fault: Option<&Fault>,
    ) -> std::io::Result<()> {
        let total = content.bytes;
        let range = r.range.as_ref().and_then(|s| s.strip_prefix("bytes=")?.split_once('-'));
        let range = range.filter(|_| !matches!(fault, Some(Fault::IgnoreRange | Fault::NoLength)));
        let (status, from, to) = match range {
            None => (200, 0, total),
            Some((a, b)) => {
                let from: u64 = a.parse().unwrap_or(0);
                (206, from, b.parse::<u64>().map_or(total, |b| total.min(b + 1)))
            }
        };
        if status == 206 && from >= total {
            let headers = format!("Content-Range: bytes */{total}\r\nContent-Length: 0\r\n");
            return out.write_all(head(416, &headers).as_bytes());
        }
        let mut headers = tag.to_owned();
        if !matches!(fault, Some(Fault::NoLength)) {
            headers += &format!("Content-Length: {}\r\n", to - from);
        }
        if status == 206 {
            let said = if matches!(fault, Some(Fault::WrongRange)) { from + 1 } else { from };
            headers += &format!("Content-Range: bytes {said}-{}/{total}\r\n", to - 1);
        }
        out.write_all(head(status, &headers).as_bytes())?;
        let mut buffer = vec![0; 16 << 10];
        let (mut at, mut left) = (from, to - from);
        if let Some(Fault::CloseAfter(n)) = fault {
            left = left.min(*n);
        }
        while left > 0 && !self.stop.load(Ordering::Relaxed) {
            let n = left.min(buffer.len() as u64) as usize;
            (content.read)(at, &mut buffer[..n]);
            if let Some(Fault::Flip(place)) = fault
                && (at..at + n as u64).contains(place)
            {
                buffer[(place - at) as usize] ^= 1;
            }
            out.write_all(&buffer[..n])?;
            self.sent.fetch_add(n as u64, Ordering::Relaxed);
            at += n as u64;
            left -= n as u64;
            if let Some(Fault::Slow(pause)) = fault {
                std::thread::sleep(*pause);
            }
        }
        if matches!(fault, Some(Fault::TooMuch)) {
            out.write_all(b"and more")?;
        }
        Ok(())
    }
}

fn is_lfs(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".bin")
}

fn item(name: &str, c: &Content) -> String {
    let (bytes, oid) = (c.bytes, "0".repeat(40));
    let lfs = format!(", \"lfs\": {{\"oid\": \"{}\", \"size\": {bytes}, \"pointerSize\": 130}}", c.sha256);
    let lfs = if is_lfs(name) { lfs.as_str() } else { "" };
    format!("{{\"type\": \"file\", \"path\": \"{name}\", \"oid\": \"{oid}\", \"size\": {bytes}{lfs}}}")
}
