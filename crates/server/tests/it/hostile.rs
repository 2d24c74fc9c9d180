//! Clients that go away, do not read, do not finish, or come all at once. After each the next one is answered.

use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{ask, chat, connect, get, raw, read, read_chunk, read_head, request, whole};
use crate::server::{TestServer, engine};

const CHAT: &str = "/v1/chat/completions";
const SPAIN: &str = "What is the capital of Spain?";
const MADRID: &str = "The capital of Spain is Madrid.";
/// An answer that would take far longer than any test waits: no end token, and room for thousands of others.
const ENDLESS: &str = r#"{"max_tokens": 4000, "logit_bias": {"6111": -100, "6113": -100}}"#;

fn endless(changes: &Value) -> Value {
    let mut all: Value = serde_json::from_str(ENDLESS).unwrap();
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ask("Tell me a long story.", all)
}

fn bytes(body: &Value) -> Vec<u8> {
    request("POST", CHAT, &[], body.to_string().as_bytes())
}

/// Waits until the engine has as much to do as said.
fn wait_for(server: &TestServer, running: usize, waiting: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let health = get(server.address, "/health").json();
        if health["running"] == running && health["waiting"] == waiting {
            return;
        }
        assert!(Instant::now() < deadline, "{health}, expected {running} running and {waiting} waiting");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn going_away_ends_the_answer() {
    let server = TestServer::pip();
    for stream in [true, false] {
        let mut client = connect(server.address);
        client.write_all(&bytes(&endless(&json!({"stream": stream})))).unwrap();
        if stream {
            // Some of it is read first.
            let mut reader = BufReader::new(client.try_clone().unwrap());
            assert_eq!(read_head(&mut reader).0, 200);
            for _ in 0..3 {
                read_chunk(&mut reader).unwrap();
            }
        }
        wait_for(&server, 1, 0);
        drop(client);
        wait_for(&server, 0, 0);
        assert_eq!(whole(server.address, &ask(SPAIN, json!({}))).content, MADRID);
    }
}

#[test]
fn going_away_while_waiting_or_reading_the_prompt() {
    let server = TestServer::pip();
    let mut first = connect(server.address);
    first.write_all(&bytes(&endless(&json!({"stream": true})))).unwrap();
    wait_for(&server, 1, 0);
    for stream in [true, false] {
        let mut waiting = connect(server.address);
        waiting.write_all(&bytes(&endless(&json!({"stream": stream})))).unwrap();
        wait_for(&server, 1, 1);
        drop(waiting);
        wait_for(&server, 1, 0);
    }
    drop(first);
    wait_for(&server, 0, 0);
    // A prompt of thousands of tokens is given up between two chunks.
    let mut long = connect(server.address);
    long.write_all(&bytes(&ask(&"word ".repeat(1900), json!({})))).unwrap();
    wait_for(&server, 1, 0);
    drop(long);
    wait_for(&server, 0, 0);
    assert_eq!(whole(server.address, &ask(SPAIN, json!({}))).content, MADRID);
}

#[test]
fn a_long_prompt_keeps_its_connection_alive() {
    let server = TestServer::start(engine(), |options| options.limits.keep_alive = Duration::from_millis(50));
    let body = ask(&"word ".repeat(1500), json!({"stream": true, "max_tokens": 2}));
    let reply = chat(server.address, &body);
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(text.starts_with(": "), "{text}");
    assert!(text.contains("\n\n: prompt ") && text.contains("/1"), "{text}");
    reply.chunks();
}

#[test]
fn half_closed() {
    let server = TestServer::pip();
    // Half a body, then no more.
    let mut half = bytes(&ask(SPAIN, json!({})));
    half.truncate(half.len() - 20);
    let cut = raw(server.address, &half, true);
    assert_eq!((cut.status, cut.code()), (400, "incomplete_body".to_owned()));
    // A whole request: small answers and streams come; a whole answer says why it does not.
    assert_eq!(raw(server.address, &request("GET", "/v1/models", &[], b""), true).status, 200);
    assert_eq!(raw(server.address, &bytes(&ask(SPAIN, json!({"n": 2}))), true).status, 400);
    let stream = raw(server.address, &bytes(&ask(SPAIN, json!({"stream": true}))), true);
    let chunks = stream.chunks();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    let gone = raw(server.address, &bytes(&endless(&json!({}))), true);
    assert_eq!((gone.status, gone.code()), (400, "client_closed".to_owned()));
    wait_for(&server, 0, 0);
    // Half a head.
    let mut client = connect(server.address);
    client.write_all(b"POST /v1/chat/comp").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let _ = client.read_to_end(&mut Vec::new());
    assert_eq!(whole(server.address, &ask(SPAIN, json!({}))).content, MADRID);
}

#[test]
fn not_http_at_all() {
    let server = TestServer::pip();
    for noise in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"\r\n\r\n\r\n",
    ] {
        let mut client = connect(server.address);
        let _ = client.write_all(noise);
        let _ = client.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    }
    let head = format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    assert_eq!(raw(server.address, head.as_bytes(), false).status, 431);
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn slow_senders_are_cut_off() {
    let server = TestServer::start(engine(), |options| {
        options.limits.head = Duration::from_millis(300);
        options.limits.body = Duration::from_millis(300);
    });
    let start = Instant::now();
    let mut head = connect(server.address);
    head.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = head.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"));
    let mut body = bytes(&ask(SPAIN, json!({})));
    body.truncate(body.len() - 5);
    let mut client = connect(server.address);
    client.write_all(&body).unwrap();
    assert_eq!(read(client).status, 408);
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// A client that reads nothing holds up the engine for a while, not for ever.
#[test]
fn slow_readers_are_given_up() {
    let server = TestServer::start(engine(), |options| {
        // Long chunks, so that the system's buffers are full soon.
        options.model_id = "m".repeat(60_000);
        options.limits.unread_tokens = 4;
        options.limits.stall = Duration::from_millis(300);
        options.limits.write = Duration::from_millis(600);
    });
    let mut client = connect(server.address);
    client.write_all(&bytes(&endless(&json!({"stream": true})))).unwrap();
    wait_for(&server, 1, 0);
    wait_for(&server, 0, 0);
    assert_eq!(whole(server.address, &ask(SPAIN, json!({}))).content, MADRID);
    drop(client);
}

/// A hundred at once: as many as fit are answered, each rightly; the others are told when to come again.
#[test]
fn a_hundred_at_once() {
    let server = TestServer::start(engine(), |options| options.limits.queue = 8);
    let ask_one = |index: usize| {
        let (question, expected) = match index % 3 {
            0 => (SPAIN, MADRID),
            1 => ("What is the capital of France?", "The capital of France is Paris."),
            _ => ("What is the capital of Italy?", "The capital of Italy is Rome."),
        };
        let reply = chat(server.address, &ask(question, json!({})));
        match reply.status {
            200 => assert_eq!(reply.json()["choices"][0]["message"]["content"], expected),
            429 => {
                let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=60).contains(&seconds));
                assert_eq!(
                    (reply.code(), &reply.json()["error"]["type"]),
                    ("queue_full".to_owned(), &json!("rate_limit_error"))
                );
            }
            other => panic!("{other}: {}", reply.message()),
        }
        reply.status
    };
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..100).map(|index| scope.spawn(move || ask_one(index))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let answered = statuses.iter().filter(|&&status| status == 200).count();
    assert!((9..100).contains(&answered), "{answered}");
    wait_for(&server, 0, 0);
    assert_eq!(whole(server.address, &ask(SPAIN, json!({}))).content, MADRID);
}

/// More connections than allowed wait for their turn.
#[test]
fn connections_are_bounded() {
    let server = TestServer::start(engine(), |options| {
        options.limits.connections = 2;
        options.limits.head = Duration::from_millis(500);
    });
    let idle: Vec<_> = (0..8).map(|_| connect(server.address)).collect();
    assert_eq!(get(server.address, "/health").status, 200);
    drop(idle);
}
