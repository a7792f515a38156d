//! Tests of the HTTP server, also with slow and hostile clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagewise_exporter::{GroupRules, PublishedScrape, ScrapeServer, SeriesLimits, WebConfig};
use pagewise_skip::{Lack, skip};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::parser::parse;
use crate::sweeps::{export, exporter, named, process, sweep};

/// A server in a thread, which ends when the value is dropped.
struct RunningServer {
    address: SocketAddr,
    published: Arc<PublishedScrape>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunningServer {
    fn start(web: WebConfig, has_sweep: bool) -> RunningServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let published = Arc::new(PublishedScrape::new(Duration::from_secs(15)));
        if has_sweep {
            let exported = export(sweep(1, vec![process(5, 1, &["job"], 10)], Vec::new()));
            published.publish(&exported, Duration::ZERO);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&published);
        let mut server = ScrapeServer::new(vec![listener], shared, web).unwrap();
        let stop = Arc::clone(&is_over);
        let thread = thread::spawn(move || server.run(|| stop.load(Ordering::Relaxed)).unwrap());
        RunningServer { address, published, is_over, thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends a request on a new connection, and returns the response.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"))
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn a_scrape_has_the_format_that_the_client_accepts() {
    let server = RunningServer::start(WebConfig::default(), true);
    let open = server.get("/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{open}");
    parse(body(&open), true).unwrap();
    let plain = server.get("/metrics?x=y", "");
    assert!(plain.contains("Content-Type: text/plain; version=0.0.4"), "{plain}");
    let series = parse(body(&plain), false).unwrap();
    assert_eq!(series[&("pagewise_scrapes_total".to_owned(), Vec::new())], 2.0);
}

#[test]
fn other_pages_are_the_state_and_a_landing_page() {
    let server = RunningServer::start(WebConfig::default(), true);
    assert!(server.get("/", "").contains("href=\"/metrics\""));
    assert!(server.get("/healthz", "").ends_with("ok\n"));
    assert!(server.get("/etc/passwd", "").starts_with("HTTP/1.1 404"));
    assert!(server.ask("POST /metrics HTTP/1.1\r\n\r\n").contains("Allow: GET, HEAD"));
    let head = server.ask("HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && !head.contains("Content-Length: 0\r\n"), "{head}");
    let early = RunningServer::start(WebConfig::default(), false);
    assert!(early.get("/metrics", "").starts_with("HTTP/1.1 503"));
    assert!(early.get("/healthz", "").starts_with("HTTP/1.1 503"));
}

#[test]
fn a_connection_answers_requests_one_after_the_other() {
    let server = RunningServer::start(WebConfig::default(), true);
    let mut stream = server.connect();
    let two = "GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
    stream.write_all(two.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2, "{answer}");
}

#[test]
fn a_scrape_is_of_one_sweep_while_others_are_published() {
    let server = RunningServer::start(WebConfig::default(), true);
    let sweep_of = |count: u32| {
        let processes = (1..=count).map(|pid| process(pid, 0, &["job"], 1)).collect();
        export(sweep(u64::from(count), processes, Vec::new()))
    };
    let sweeps: Vec<_> = (1..=40).map(sweep_of).collect();
    thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            for it in sweeps.iter().cycle().take(800) {
                server.published.publish(it, Duration::ZERO);
            }
        });
        while !publishing.is_finished() {
            let answer = server.get("/metrics", "");
            let series = parse(body(&answer), false).unwrap();
            let value = |name: &str, labels: &[(&str, &str)]| {
                let labels = labels.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect();
                series[&(name.to_owned(), labels)]
            };
            let all = value("pagewise_processes", &[]);
            assert_eq!(value("pagewise_group_processes", &[("groupname", "job")]), all);
        }
    });
}

#[test]
fn large_and_broken_requests_are_refused() {
    let server = RunningServer::start(WebConfig::default(), true);
    let huge = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(8 << 10));
    assert!(server.ask(&huge).starts_with("HTTP/1.1 431"));
    assert!(server.ask("\0\0\0\0\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(server.ask("GET / HTTP/2.0\r\n\r\n").starts_with("HTTP/1.1 505"));
    assert!(server.ask("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").contains(" 413 "));
    assert!(server.get("/healthz", "").ends_with("ok\n"));
}

#[test]
fn a_scrape_is_answered_despite_a_thousand_slow_connections() {
    // Each connection takes two descriptors: this process has both ends.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = RunningServer::start(WebConfig::default(), true);
    let mut slow = Vec::new();
    for _ in 0..1000 {
        // The listening queue can be full for a short time.
        let Ok(mut stream) = TcpStream::connect(server.address) else { break };
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        slow.push(stream);
    }
    assert!(server.get("/metrics", "").starts_with("HTTP/1.1 200"));
    let began = Instant::now();
    assert!(server.get("/healthz", "").ends_with("ok\n"));
    // If the server served the slow clients one after the other, each would take 10 s.
    assert!(began.elapsed() < Duration::from_secs(100));
}

#[test]
fn passwords_are_needed_if_there_are_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    // Hash of the password `secret` with the lowest cost.
    let hash = bcrypt::hash("secret", 4).unwrap();
    std::fs::write(&path, format!("basic_auth_users:\n  ann: {hash}\n")).unwrap();
    let server = RunningServer::start(WebConfig::load(&path).unwrap(), true);
    let without = server.get("/metrics", "");
    assert!(
        without.starts_with("HTTP/1.1 401") && without.contains("WWW-Authenticate: Basic"),
        "{without}"
    );
    // The credentials are ann:wrong, then ann:secret.
    assert!(server.get("/metrics", "Authorization: Basic YW5uOndyb25n\r\n").contains(" 401 "));
    for _ in 0..2 {
        let right = server.get("/metrics", "Authorization: Basic YW5uOnNlY3JldA==\r\n");
        assert!(right.starts_with("HTTP/1.1 200"), "{right}");
    }
}

#[test]
fn the_server_ends_while_clients_are_connected() {
    let server = RunningServer::start(WebConfig::default(), true);
    let idle = server.connect();
    let mut half = server.connect();
    half.write_all(b"GET /").unwrap();
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_secs(60));
    drop((idle, half));
}

/// Returns the status line, and true if the body has the length that the head states.
fn answer_of(stream: &mut TcpStream) -> (String, bool) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let is_whole = head.contains(&format!("\r\nContent-Length: {}\r\n", body.len()));
    (head.lines().next().unwrap().to_owned(), is_whole)
}

const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";

#[test]
fn an_answer_under_way_is_completed_when_the_server_ends() {
    let server = RunningServer::start(WebConfig::default(), true);
    // The response is larger than the buffers of the sockets.
    let named = |pid: u32| named(process(pid, 1, &["x"], 1), format!("{pid}").as_bytes());
    let limits = SeriesLimits { max_series: 1_000_000, max_groups: 100_000, max_cgroups: 1 };
    let large = exporter(GroupRules::by_comm(), limits).export(sweep(
        1,
        (1..=10_000).map(named).collect(),
        Vec::new(),
    ));
    server.published.publish(&large, Duration::ZERO);
    let mut stream = server.connect();
    stream.write_all(SCRAPE).unwrap();
    let mut begin = [0; 16];
    stream.read_exact(&mut begin).unwrap();
    server.is_over.store(true, Ordering::Relaxed);
    thread::sleep(Duration::from_millis(600));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let text = String::from_utf8([&begin[..], &rest].concat()).unwrap();
    assert!(text.len() > 8 << 20 && text.ends_with("pagewise_scrapes_total 1\n"), "{}", text.len());
}

#[test]
fn a_request_that_has_come_is_answered_when_the_server_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let published = Arc::new(PublishedScrape::new(Duration::from_secs(15)));
    let exported = export(sweep(1, vec![process(5, 1, &["job"], 10)], Vec::new()));
    published.publish(&exported, Duration::ZERO);
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.write_all(SCRAPE).unwrap();
    let mut server = ScrapeServer::new(vec![listener], published, WebConfig::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| server.run(|| true).unwrap());
        assert_eq!(answer_of(&mut stream), ("HTTP/1.1 200 OK".into(), true));
    });
}

#[test]
fn a_changed_file_of_passwords_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    let write = |password: &str| {
        let hash = bcrypt::hash(password, 4).unwrap();
        std::fs::write(&path, format!("basic_auth_users:\n  ann: {hash}\n")).unwrap();
    };
    write("secret");
    let server = RunningServer::start(WebConfig::load(&path).unwrap(), true);
    // The credentials are ann:secret and ann:other.
    let is_right = |credentials: &str| {
        let answer = server.get("/metrics", &format!("Authorization: Basic {credentials}\r\n"));
        answer.starts_with("HTTP/1.1 200")
    };
    let (secret, other) = ("YW5uOnNlY3JldA==", "YW5uOm90aGVy");
    assert!(is_right(secret) && !is_right(other));
    // With a partly written file, the earlier passwords stay valid.
    std::fs::write(&path, "basic_auth_users:\n  ann: $2b$").unwrap();
    assert!(is_right(secret));
    write("other");
    let began = Instant::now();
    while !is_right(other) {
        assert!(began.elapsed() < Duration::from_secs(60), "the file is not read again");
        thread::sleep(Duration::from_millis(200));
    }
    assert!(!is_right(secret));
}

/// Runs openssl in a folder; `None` if it is not installed.
fn openssl(folder: &Path, words: &str) -> Option<()> {
    let mut command = Command::new("openssl");
    let output = command.args(words.split(' ')).current_dir(folder).output().ok()?;
    assert!(output.status.success(), "{words}: {output:?}");
    Some(())
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

/// Creates a self-signed certificate and its key; `None` if openssl is not installed.
fn certificate(folder: &Path) -> Option<()> {
    let files = "-keyout key.pem -out cert.pem -days 2";
    let name = "-subj /CN=localhost -addext subjectAltName=DNS:localhost";
    openssl(folder, &format!("req -x509 {NEW_KEY} {files} {name}"))
}

/// Creates a client certificate that another authority has signed.
fn client_certificate(folder: &Path) -> Option<()> {
    let authority = "-keyout ca-key.pem -out ca.pem -days 2 -subj /CN=authority";
    openssl(folder, &format!("req -x509 {NEW_KEY} {authority}"))?;
    let request = "-keyout client-key.pem -out client.csr -subj /CN=client";
    openssl(folder, &format!("req {NEW_KEY} {request}"))?;
    let extensions = "basicConstraints=critical,CA:FALSE\n\
                      subjectAltName=DNS:scraper.example,IP:10.0.0.7\n";
    std::fs::write(folder.join("extensions"), extensions).unwrap();
    let signed = "-in client.csr -out client.pem -days 2 -extfile extensions";
    openssl(folder, &format!("x509 -req {signed} -CA ca.pem -CAkey ca-key.pem -CAcreateserial"))
}

/// Scrapes with the TLS client of openssl, and returns the response.
fn tls_scrape(server: &RunningServer, folder: &Path, options: &str) -> String {
    let address = server.address.to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address, "-servername", "localhost"])
        .args(["-CAfile", "cert.pem", "-verify_return_error", "-quiet"])
        .args(options.split(' '))
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The write fails if the server has rejected the client.
    let _ = client.stdin.take().unwrap().write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
    let output = client.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tls_is_served_with_the_certificate_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    if certificate(folder.path()).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let path = folder.path().join("web.yml");
    std::fs::write(&path, "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n").unwrap();
    let server = RunningServer::start(WebConfig::load(&path).unwrap(), true);
    for version in ["-tls1_2", "-tls1_3"] {
        let answer = tls_scrape(&server, folder.path(), version);
        assert!(answer.starts_with("HTTP/1.1 200"), "{version}: {answer}");
        parse(body(&answer), false).unwrap();
    }
    // A client without TLS must not get the metrics.
    let mut plain = server.connect();
    plain.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.windows(8).any(|it| it == b"pagewise"), "{answer:?}");
}

/// Starts a server with additional keys in `tls_server_config`; returns the error if it is
/// rejected.
fn serve_tls(folder: &Path, keys: &str) -> Result<RunningServer, String> {
    let path = folder.join("web.yml");
    let config = format!(
        "tls_server_config: {{cert_file: cert.pem, key_file: key.pem, {keys}}}\n\
         http_server_config: {{headers: {{X-Frame-Options: sameorigin}}}}\n"
    );
    std::fs::write(&path, config).unwrap();
    let web = WebConfig::load(&path).map_err(|error| error.to_string())?;
    Ok(RunningServer::start(web, true))
}

/// True if an openssl client with these options gets the metrics.
fn serves(server: &RunningServer, folder: &Path, options: &str) -> bool {
    tls_scrape(server, folder, options).starts_with("HTTP/1.1 200")
}

#[test]
fn algorithms_of_tls_are_those_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if certificate(folder).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let is_served = |server: &RunningServer, options: &str| serves(server, folder, options);
    let suites = "cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256], \
                  prefer_server_cipher_suites: false, curve_preferences: [CurveP384]";
    let server = serve_tls(folder, suites).unwrap();
    assert!(is_served(&server, "-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256"));
    assert!(!is_served(&server, "-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384"));
    assert!(is_served(&server, "-tls1_3 -groups P-384"));
    assert!(!is_served(&server, "-tls1_3 -groups X25519"));
    // Without a cipher suite for TLS 1.2, this version is disabled.
    let server = serve_tls(folder, "cipher_suites: [TLS_AES_128_GCM_SHA256]").unwrap();
    assert!(is_served(&server, "-tls1_3") && !is_served(&server, "-tls1_2"));
    let server = serve_tls(folder, "cipher_suites: [], curve_preferences: []").unwrap();
    assert!(is_served(&server, "-tls1_2 -cipher ECDHE-ECDSA-AES256-GCM-SHA384"));

    let error = |keys: &str| serve_tls(folder, keys).err().unwrap();
    let old = error("cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]");
    assert!(old.contains("found TLS_RSA_WITH_AES_128_CBC_SHA"), "{old}");
    assert!(old.contains("TLS_AES_128_GCM_SHA256, ") && old.contains("CHACHA20"), "{old}");
    let curve = error("curve_preferences: [CurveP521]");
    assert!(curve.contains("of X25519, CurveP256, CurveP384, found CurveP521"), "{curve}");
    let none = error("cipher_suites: [TLS_AES_128_GCM_SHA256], max_version: TLS12");
    assert!(none.contains("cipher_suites: expected one of TLS 1.2"), "{none}");
    assert!(error("min_version: TLS11").contains("found TLS11"));
    assert!(error("min_version: TLS13, max_version: TLS12").contains("min_version up to"));
}

#[test]
fn every_answer_has_the_headers_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("web.yml");
    let hash = bcrypt::hash("secret", 4).unwrap();
    let config = format!(
        "http_server_config: {{headers: {{Strict-Transport-Security: max-age=60}}}}\n\
         basic_auth_users:\n  ann: {hash}\n"
    );
    std::fs::write(&path, config).unwrap();
    let server = RunningServer::start(WebConfig::load(&path).unwrap(), true);
    let password = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    let answers = [
        (" 200 ", server.get("/metrics", password)),
        (" 404 ", server.get("/x", password)),
        (" 401 ", server.get("/metrics", "")),
        (" 400 ", server.ask("\0\r\n\r\n")),
    ];
    for (status, answer) in answers {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(status), "{head}");
        assert!(head.contains("\r\nStrict-Transport-Security: max-age=60"), "{head}");
        let length = format!("Content-Length: {}\r\n", body.len());
        assert!(head.contains(&length), "{head}");
    }
}

#[test]
fn a_client_needs_one_of_the_names_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if certificate(folder).and_then(|()| client_certificate(folder)).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let signed = "-cert client.pem -key client-key.pem";
    let is_served = |names: &str, options: &str| {
        let keys = format!(
            "client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem, \
             client_allowed_sans: [{names}]"
        );
        let server = serve_tls(folder, &keys).unwrap();
        serves(&server, folder, options)
    };
    for version in ["-tls1_2", "-tls1_3"] {
        let options = &format!("{version} {signed}");
        assert!(is_served("x, scraper.example", options), "{version}");
        assert!(is_served("10.0.0.7", options), "{version}");
        assert!(!is_served("scraper.example.org", options), "{version}");
        assert!(!is_served("localhost", &format!("{version} -cert cert.pem -key key.pem")));
    }
    // A client can write any name into a certificate that the server does not verify.
    for kind in ["NoClientCert", "RequireAnyClientCert"] {
        let keys = format!("client_auth_type: {kind}, client_allowed_sans: [x]");
        let error = serve_tls(folder, &keys).err().unwrap();
        assert!(error.contains("needs the client_auth_type RequireAndVerify"), "{error}");
    }
}

#[test]
fn a_certificate_that_is_not_verified_is_asked_for_but_proves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if certificate(folder).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let is_served = |server: &RunningServer, options: &str| serves(server, folder, options);
    let own = "-cert cert.pem -key key.pem";
    for version in ["-tls1_2", "-tls1_3"] {
        let server = serve_tls(folder, "client_auth_type: RequestClientCert").unwrap();
        assert!(is_served(&server, version) && is_served(&server, &format!("{version} {own}")));
        let server = serve_tls(folder, "client_auth_type: RequireAnyClientCert").unwrap();
        assert!(!is_served(&server, version) && is_served(&server, &format!("{version} {own}")));
    }
    let error = serve_tls(folder, "client_ca_file: cert.pem").err().unwrap();
    assert!(error.contains("client_ca_file needs the client_auth_type"), "{error}");
}

#[test]
fn a_client_needs_a_certificate_of_the_authority_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    if certificate(folder.path()).and_then(|()| client_certificate(folder.path())).is_none() {
        return skip(&Lack::Tool("openssl"));
    }
    let path = folder.path().join("web.yml");
    let serve = |kind: &str| {
        let config = format!(
            "tls_server_config: {{cert_file: cert.pem, key_file: key.pem, \
             client_auth_type: {kind}, client_ca_file: ca.pem}}\n"
        );
        std::fs::write(&path, config).unwrap();
        RunningServer::start(WebConfig::load(&path).unwrap(), true)
    };
    let signed = "-cert client.pem -key client-key.pem";
    // The client uses the server's certificate, which another authority has signed.
    let foreign = "-cert cert.pem -key key.pem";
    let is_served = |server: &RunningServer, options: &str| serves(server, folder.path(), options);
    let server = serve("RequireAndVerifyClientCert");
    for version in ["-tls1_2", "-tls1_3"] {
        assert!(is_served(&server, &format!("{version} {signed}")), "{version}");
        assert!(!is_served(&server, &format!("{version} {foreign}")), "{version}");
        assert!(!is_served(&server, version), "{version}");
    }
    let server = serve("VerifyClientCertIfGiven");
    assert!(is_served(&server, signed) && is_served(&server, "-tls1_3"));
    assert!(!is_served(&server, foreign));
}
