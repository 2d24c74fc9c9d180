//! A small blocking HTTP client that shows what came over the wire.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The error's `param`.
    pub(crate) fn param(&self) -> Option<String> {
        self.json()["error"]["param"].as_str().map(str::to_owned)
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// `data:` lines of a stream, which must be nothing but events and comments.
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let text = std::str::from_utf8(&self.body).unwrap();
        assert!(text.ends_with("\n\n"));
        let blocks = text.trim_end_matches('\n').split("\n\n");
        blocks
            .filter(|block| !block.starts_with(':'))
            .map(|block| {
                assert!(!block.contains('\n'), "{block}");
                block.strip_prefix("data: ").unwrap().to_owned()
            })
            .collect()
    }

    /// The chunks of a stream, which must end with `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// A request as bytes.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let mut put = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
    let has = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    if !has("host") {
        put("host", "localhost");
    }
    if !has("content-type") && method == "POST" {
        put("content-type", "application/json");
    }
    if !has("content-length") && method == "POST" {
        put("content-length", &body.len().to_string());
    }
    headers.iter().for_each(|(name, value)| put(name, value));
    put("connection", "close");
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// Sends bytes, and reads the response to the end of the connection.
pub(crate) fn raw(address: SocketAddr, bytes: &[u8], half_close: bool) -> Reply {
    let mut stream = connect(address);
    // A server that has refused already may not take the rest.
    let _ = stream.write_all(bytes);
    if half_close {
        let _ = stream.shutdown(Shutdown::Write);
    }
    read(stream)
}

pub(crate) fn read(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    let mut body = Vec::new();
    let mut reply = Reply { status, headers, body: Vec::new() };
    if reply.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(&mut reader) {
            body.extend_from_slice(&chunk);
        }
    } else if let Some(length) = reply.header("content-length") {
        body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
    }
    reply.body = body;
    reply
}

pub(crate) fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}

/// A chunk of a chunked body; `None` at its end.
pub(crate) fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut size = String::new();
    reader.read_line(&mut size).unwrap();
    let size = usize::from_str_radix(size.trim(), 16).unwrap_or_else(|_| panic!("no chunk size: {size:?}"));
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).unwrap();
    assert!(chunk.ends_with(b"\r\n"));
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    raw(address, &request("GET", path, &[], b""), false)
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    raw(address, &request("POST", path, &[], body.to_string().as_bytes()), false)
}

pub(crate) fn chat(address: SocketAddr, body: &Value) -> Reply {
    post(address, "/v1/chat/completions", body)
}

/// A greedy chat request without thinking, with changes.
pub(crate) fn ask(question: &str, changes: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": question}], "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}
    });
    let Value::Object(changes) = changes else { panic!("an object") };
    body.as_object_mut().unwrap().extend(changes);
    body
}

/// What was answered, whichever way it came.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Said {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) finish: String,
    pub(crate) usage: Value,
}

/// A whole chat answer.
pub(crate) fn whole(address: SocketAddr, body: &Value) -> Said {
    let reply = chat(address, body);
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    let json = reply.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choice = &json["choices"][0];
    Said {
        reasoning: text(&choice["message"]["reasoning_content"]),
        content: text(&choice["message"]["content"]),
        finish: text(&choice["finish_reason"]),
        usage: json["usage"].clone(),
    }
}

/// A streamed chat answer, with its deltas.
pub(crate) fn streamed(address: SocketAddr, body: &Value) -> (Said, Vec<Value>) {
    let mut body = body.clone();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = chat(address, &body).chunks();
    let mut said = Said::default();
    let mut deltas = Vec::new();
    for chunk in &chunks {
        if let Some(usage) = chunk.get("usage").filter(|usage| !usage.is_null()) {
            said.usage = usage.clone();
        }
        let Some(choice) = chunk["choices"].get(0) else { continue };
        said.reasoning.push_str(choice["delta"]["reasoning_content"].as_str().unwrap_or_default());
        said.content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        said.finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
        deltas.push(choice["delta"].clone());
    }
    (said, deltas)
}

/// The answer, which must be the same both ways.
pub(crate) fn both(address: SocketAddr, body: &Value) -> Said {
    let mut whole = whole(address, body);
    let (mut streamed, _) = streamed(address, body);
    // The second request finds the first one's prompt.
    for said in [&mut whole, &mut streamed] {
        said.usage["prompt_tokens_details"] = Value::Null;
    }
    assert_eq!(whole, streamed);
    whole
}
