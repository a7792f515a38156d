//! Pushes to a collector, with and without TLS.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagewise_skip::{Lack, skip};
use serde_json::Value;

use crate::server::{free_address, wait};

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `pagewise export` that pushes one reading.
fn push(url: &str, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
    command.args(["export", "--every", "1h", "--diagnose-every", "0s", "--otlp", url]).args(args);
    Running(command.stderr(Stdio::piped()).spawn().unwrap())
}

/// The next line of the messages.
fn message(exporter: &mut Running) -> String {
    let mut line = String::new();
    BufReader::new(exporter.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    line
}

/// Head and body of a request.
fn request(stream: impl Read) -> (String, Value) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while reader.read_line(&mut head).unwrap() > 2 {}
    let length = head.lines().find_map(|it| it.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

fn names(pushed: &Value) -> Vec<&str> {
    let metrics = &pushed["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    metrics.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect()
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

#[test]
fn a_collector_gets_each_reading_as_json() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", collector.local_addr().unwrap());
    let _exporter = push(&url, &["--otlp-header", "X-Scope-OrgID=a=b"]);
    let (mut stream, _) = collector.accept().unwrap();
    let (head, pushed) = request(stream.try_clone().unwrap());
    stream.write_all(OK).unwrap();
    assert!(head.contains("\r\nX-Scope-OrgID: a=b\r\n"), "{head}");
    assert!(names(&pushed).contains(&"pagewise_group_uss_bytes"), "{pushed}");
}

/// A certificate for `localhost` that signs itself; `None` without openssl.
fn certificate(folder: &Path) -> Option<()> {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem \
                 -out cert.pem -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
                 -addext basicConstraints=critical,CA:FALSE";
    let mut command = Command::new("openssl");
    let output = command.args(words.split_whitespace()).current_dir(folder).output().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(())
}

/// A TLS server that prints what it gets and sends its input, and its port. It ends after this
/// number of connections, so that the test does not wait for one that fails.
fn tls_server(folder: &Path, connections: u32) -> (Running, u16) {
    let address = free_address();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-cert", "cert.pem", "-key", "key.pem"]);
    // One connection more, which checks that the server runs.
    command.args(["-naccept", &(connections + 1).to_string()]);
    command.args(["-accept", &address.to_string()]).current_dir(folder);
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let server = command.stdin(input).stdout(output).stderr(Stdio::null()).spawn().unwrap();
    wait("the server", || std::net::TcpStream::connect(address).is_ok());
    (Running(server), address.port())
}

#[test]
fn a_collector_with_tls_gets_a_reading_and_its_certificate_is_verified() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    if certificate(folder.path()).and_then(|()| certificate(other.path())).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let (mut server, port) = tls_server(folder.path(), 4);
    let secret = folder.path().join("token");
    fs::write(&secret, "Bearer secret\n").unwrap();
    let header = format!("Authorization=@{}", secret.display());
    let authority = folder.path().join("cert.pem").display().to_string();
    let foreign = other.path().join("cert.pem").display().to_string();
    let (by_name, by_address) =
        (format!("https://localhost:{port}"), format!("https://127.0.0.1:{port}"));
    // An authority of the machine, another one, and another name than that in the certificate.
    let wrong: [(&str, &[&str]); 3] = [
        (&by_name, &[]),
        (&by_name, &["--otlp-ca", &foreign]),
        (&by_address, &["--otlp-ca", &authority]),
    ];
    for (url, args) in wrong {
        let message = message(&mut push(url, &[args, &["--otlp-header", &header]].concat()));
        let is_refused = message.contains("invalid peer certificate");
        let has_none = args.is_empty() && message.contains("no certificates of authorities");
        assert!(is_refused || has_none, "{url} {args:?}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
    let _exporter = push(&by_name, &["--otlp-ca", &authority, "--otlp-header", &header]);
    let (head, pushed) = request(server.0.stdout.take().unwrap());
    server.0.stdin.take().unwrap().write_all(OK).unwrap();
    assert!(head.contains("\r\nAuthorization: Bearer secret\r\n"), "{head}");
    assert!(names(&pushed).contains(&"pagewise_group_uss_bytes"), "{pushed}");
}
