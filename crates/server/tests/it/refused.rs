//! What is refused, with which status, and in which words.

use serde_json::{Value, json};
use spinetail_server::{ApiKey, ServeError, ServeOptions, Server};

use crate::client::{Reply, ask, chat, get, post, raw, request, whole};
use crate::server::{TestServer, engine};

const CHAT: &str = "/v1/chat/completions";

fn send(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    raw(server.address, &request(method, path, headers, body), false)
}

#[test]
fn fields() {
    let server = TestServer::pip();
    for (changes, param) in [
        (json!({"frequency_penaltee": 1}), "frequency_penaltee"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
        (json!({"tool_choice": "auto"}), "tool_choice"),
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"n": 2}), "n"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"presence_penalty": 3}), "presence_penalty"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "hi", "mood": 1}]}), "messages[0].mood"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"chat_template_kwargs": 1}), "chat_template_kwargs"),
    ] {
        for stream in [false, true] {
            let mut body = ask("hi", changes.clone());
            if !body["stream_options"].is_object() {
                body["stream"] = stream.into();
            }
            let reply = chat(server.address, &body);
            assert_eq!((reply.status, reply.param().as_deref()), (400, Some(param)), "{changes}");
            assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
            assert!(reply.message().contains(param.rsplit('.').next().unwrap()), "{}", reply.message());
        }
    }
    let long = chat(server.address, &ask(&"word ".repeat(5000), json!({})));
    assert_eq!((long.status, long.param().as_deref()), (400, Some("messages")));
    assert_eq!(long.code(), "context_length_exceeded");
    // The engine is none the worse.
    whole(server.address, &ask("hi", json!({"max_tokens": 2})));
}

#[test]
fn null_and_metadata_are_fine() {
    let server = TestServer::pip();
    let body = ask(
        "hi",
        json!({
            "max_tokens": 2, "user": "me", "metadata": {"a": "b"}, "store": false, "service_tier": "auto",
            "stream_options": null, "tools": null, "response_format": {"type": "text"}, "logprobs": false, "n": 1,
            "parallel_tool_calls": false, "temperature": null, "top_p": null, "seed": null, "stop": null,
            "logit_bias": null, "max_completion_tokens": null, "stream": null, "model": null
        }),
    );
    whole(server.address, &body);
}

#[test]
fn lenient_ignores() {
    let server = TestServer::start(engine(), |options| options.lenient = true);
    let changes = json!({"max_tokens": 2, "frequency_penaltee": 1, "tools": [{"type": "function"}], "n": 3});
    whole(server.address, &ask("hi", changes));
    // What is understood still has to make sense.
    assert_eq!(chat(server.address, &ask("hi", json!({"temperature": -1}))).status, 400);
}

#[test]
fn bodies() {
    let server = TestServer::start(engine(), |options| options.limits.body_bytes = 10_000);
    let json_headers = [("content-type", "application/json")];
    let post = |body: &[u8]| send(&server, "POST", CHAT, &json_headers, body);
    let malformed = post(b"{\"messages\": [}");
    assert_eq!((malformed.status, malformed.code()), (400, "invalid_json".to_owned()));
    assert!(malformed.message().contains("line 1 column 15"), "{}", malformed.message());
    let not_utf8 = post(b"{\"messages\": \"\xff\xfe\"}");
    assert_eq!(not_utf8.status, 400);
    assert!(not_utf8.message().contains("byte 14"), "{}", not_utf8.message());
    for body in ["", "[]", "null", "{\"a\":1e999}", &"[".repeat(9000), "{\"messages\": NaN}"] {
        assert_eq!(post(body.as_bytes()).status, 400, "{body}");
    }
    let large = post(&vec![b' '; 2 << 20]);
    assert_eq!((large.status, large.code()), (413, "body_too_large".to_owned()));
    assert_eq!(send(&server, "POST", CHAT, &[("content-type", "text/plain")], b"{}").status, 415);
    assert_eq!(send(&server, "POST", CHAT, &[("content-encoding", "gzip")], b"{}").status, 415);
    let none = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(raw(server.address, none, true).status, 415);
    // Larger than allowed, with no length given beforehand.
    let mut chunked =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                        transfer-encoding: chunked\r\n\r\n"
            .to_vec();
    for _ in 0..40 {
        chunked.extend_from_slice(b"200\r\n");
        chunked.extend_from_slice(&[b' '; 512]);
        chunked.extend_from_slice(b"\r\n");
    }
    assert_eq!(raw(server.address, &chunked, false).status, 413);
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn methods_and_paths() {
    let server = TestServer::pip();
    let wrong = get(server.address, CHAT);
    assert_eq!((wrong.status, wrong.code()), (405, "method_not_allowed".to_owned()));
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert_eq!(post(server.address, "/health", &json!({})).status, 405);
    assert_eq!(send(&server, "OPTIONS", CHAT, &[], b"").status, 405);
    let unknown = post(server.address, "/v1/embeddings", &json!({}));
    assert_eq!((unknown.status, unknown.code()), (404, "unknown_url".to_owned()));
    assert!(unknown.message().contains("POST /v1/embeddings"));
    assert_eq!(get(server.address, "/").status, 404);
}

#[test]
fn request_ids() {
    let server = TestServer::pip();
    let id = |given: &str| {
        let reply = send(&server, "GET", "/nowhere", &[("x-request-id", given)], b"");
        reply.header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(id("mine-7"), "mine-7");
    assert!(id(&"x".repeat(500)).starts_with("req-"));
    assert!(id("").starts_with("req-"));
    assert_ne!(id(""), id(""));
}

#[test]
fn keys() {
    let server = TestServer::start(engine(), |options| options.api_key = ApiKey::new("s3cret").ok());
    let models = |headers: &[(&str, &str)]| send(&server, "GET", "/v1/models", headers, b"");
    let none = models(&[]);
    assert_eq!((none.status, none.code()), (401, "invalid_api_key".to_owned()));
    assert_eq!(none.header("www-authenticate"), Some("Bearer"));
    assert_eq!(models(&[("authorization", "Bearer s3cres")]).status, 401);
    assert_eq!(models(&[("authorization", "Basic s3cret")]).status, 401);
    assert_eq!(models(&[("authorization", "Bearer s3cret"), ("host", "model.example")]).status, 200);
    assert_eq!(get(server.address, "/nowhere").status, 401);
    assert_eq!(get(server.address, "/health").status, 200);
}

/// Other machines get in with a key only.
#[tokio::test]
async fn other_addresses_need_a_key() {
    for host in ["0.0.0.0", "::"] {
        let options = ServeOptions { host: host.to_owned(), port: 0, ..ServeOptions::default() };
        let error = Server::bind(engine(), options.clone()).await.err().unwrap();
        assert!(matches!(error, ServeError::NeedsKey { .. }) && error.to_string().contains("API key"));
    }
    let api_key = ApiKey::new("s3cret").ok();
    let open = ServeOptions { host: "0.0.0.0".to_owned(), port: 0, api_key, ..ServeOptions::default() };
    assert!(Server::bind(engine(), open).await.is_ok());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = Server::bind(engine(), ServeOptions { port, ..ServeOptions::default() }).await.err().unwrap();
    assert!(error.to_string().contains("another host or port"), "{error}");
}

/// Pages of elsewhere get nothing, under whatever name they found us.
#[test]
fn foreign_pages() {
    let server = TestServer::pip();
    let status = |headers: &[(&str, &str)]| send(&server, "GET", "/v1/models", headers, b"").status;
    assert_eq!(status(&[("host", "evil.example")]), 403);
    assert_eq!(status(&[("host", "127.0.0.1:8080")]), 200);
    assert_eq!(status(&[("origin", "https://evil.example")]), 403);
    assert_eq!(status(&[("origin", "null")]), 403);
    let local = send(&server, "GET", "/v1/models", &[("origin", "http://localhost:3000")], b"");
    assert_eq!((local.status, local.header("access-control-allow-origin")), (200, None));
    let app = "https://app.example";
    let server = TestServer::start(engine(), |options| options.allowed_origins = vec![app.to_owned()]);
    let asked = [
        ("origin", app),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let preflight = send(&server, "OPTIONS", CHAT, &asked, b"");
    assert_eq!((preflight.status, preflight.header("access-control-allow-origin")), (200, Some(app)));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("authorization,content-type"));
}

#[test]
fn errors_have_one_shape() {
    let server = TestServer::pip();
    for reply in
        [get(server.address, "/nowhere"), get(server.address, CHAT), chat(server.address, &json!({}))]
    {
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let Value::Object(error) = &reply.json()["error"] else { panic!("an object") };
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
    }
}
