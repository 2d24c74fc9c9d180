//! Shutting down, and outliving an engine that fails.

use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{ask, chat, connect, get, read, read_chunk, read_head, request, whole};
use crate::completions::copy;
use crate::server::{TestServer, engine, open, shared};

const SPAIN: &str = "What is the capital of Spain?";
const MADRID: &str = "The capital of Spain is Madrid.";

#[test]
fn running_answers_finish_before_the_end() {
    let mut server = TestServer::pip();
    let body = ask(SPAIN, json!({"stream": true})).to_string();
    let mut client = connect(server.address);
    client.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    assert_eq!(read_head(&mut reader).0, 200);
    server.stop();
    let mut text = Vec::new();
    while let Some(chunk) = read_chunk(&mut reader) {
        text.extend_from_slice(&chunk);
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn after_the_grace_answers_are_cancelled() {
    let mut server = TestServer::start(engine(), |options| options.limits.grace = Duration::from_millis(200));
    let endless = json!({"max_tokens": 4000, "logit_bias": {"6111": -100, "6113": -100}});
    let send = |stream: bool| {
        let mut body = ask(SPAIN, endless.clone());
        body["stream"] = stream.into();
        let mut client = connect(server.address);
        client.write_all(&request("POST", "/v1/chat/completions", &[], body.to_string().as_bytes())).unwrap();
        client
    };
    let mut running = BufReader::new(send(true));
    // It streams: from here on an error can only be an event.
    assert_eq!(read_head(&mut running).0, 200);
    let waiting = send(false);
    while get(server.address, "/health").json()["waiting"] != 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    server.stop();
    let mut text = String::new();
    while let Some(chunk) = read_chunk(&mut running) {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let last = text.trim_end().rsplit("data: ").next().unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert_eq!(error["error"]["code"], "shutting_down");
    let waiting = read(waiting);
    assert_eq!((waiting.status, waiting.code()), (503, "shutting_down".to_owned()));
    server.join();
    assert!(start.elapsed() < Duration::from_secs(30));
}

/// Logits that are not numbers end the request with an error that says so, and only that request.
#[test]
fn not_a_number() {
    let source = shared().join("models/pip");
    if !source.exists() {
        println!("skipped: {} is absent", source.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    copy(&source, folder.path());
    // A container would notice: it has checksums. So would loading, if a norm were spoiled.
    spoil(folder.path(), "lm_head.weight");
    let server = TestServer::start(open(folder.path()), |_| {});
    for stream in [false, true] {
        let reply = chat(server.address, &ask(SPAIN, json!({"stream": stream})));
        assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (500, Some("server_error")));
        assert!(reply.message().contains("not a number"), "{}", reply.message());
    }
    assert_eq!(get(server.address, "/health").status, 200);
}

/// Makes a tensor of a checkpoint one of NaNs.
fn spoil(folder: &Path, tensor: &str) {
    let index = std::fs::read(folder.join("model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let shard = folder.join(index["weight_map"][tensor].as_str().unwrap());
    let mut bytes = std::fs::read(&shard).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let offset = |end: usize| 8 + header + tensors[tensor]["data_offsets"][end].as_u64().unwrap() as usize;
    let range = offset(0)..offset(1);
    bytes[range].fill(0xFF);
    std::fs::remove_file(&shard).unwrap();
    std::fs::write(&shard, bytes).unwrap();
}

#[test]
fn two_servers_share_an_engine() {
    let (first, second) = (TestServer::pip(), TestServer::pip());
    let said = std::thread::scope(|scope| {
        let both = [&first, &second]
            .map(|server| scope.spawn(move || whole(server.address, &ask(SPAIN, json!({}))).content));
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(said, [MADRID, MADRID]);
}

/// Requests one after the other on a connection, which ends when nothing more comes.
#[test]
fn connections_are_kept_for_a_while() {
    let server = TestServer::start(engine(), |options| options.limits.head = Duration::from_millis(500));
    let body = ask(SPAIN, json!({})).to_string();
    let bytes = request("POST", "/v1/chat/completions", &[], body.as_bytes());
    let bytes = String::from_utf8(bytes).unwrap().replace("connection: close\r\n", "");
    let mut client = connect(server.address);
    // The second comes before the first is answered.
    client.write_all(bytes.repeat(2).as_bytes()).unwrap();
    let mut reader = BufReader::new(client);
    for _ in 0..2 {
        let (status, headers) = read_head(&mut reader);
        assert_eq!(status, 200);
        let length = headers.iter().find(|(name, _)| name == "content-length").unwrap().1.parse().unwrap();
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        assert!(String::from_utf8(body).unwrap().contains(MADRID));
    }
    let start = Instant::now();
    assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    assert!(start.elapsed() < Duration::from_secs(30));
}
