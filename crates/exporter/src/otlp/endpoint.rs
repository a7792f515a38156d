//! Address of an OpenTelemetry collector, and the HTTP request that pushes metrics to it, with or
//! without TLS.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::otlp_json;
use crate::exporter::ExportedSweep;
use crate::http::{WebConfigError, read_certificates};

/// Timeout of connecting, and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a response that are read.
const MAX_ANSWER: usize = 4 << 10;
/// Files with the certificate authorities of the machine, by distribution: Debian and Alpine,
/// Fedora, openSUSE, others.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Names of the headers that each request has. Users cannot set these headers.
const OWN_HEADERS: [&str; 5] =
    ["host", "content-type", "content-length", "connection", "transfer-encoding"];

/// Address of a collector, with the headers and the TLS configuration of its requests.
#[derive(Clone)]
pub struct OtlpEndpoint {
    authority: String,
    path: String,
    /// Header lines that the user added.
    headers: String,
    tls: Option<CollectorTls>,
}

#[derive(Clone)]
struct CollectorTls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

/// Omits the headers, because they often contain a password.
impl fmt::Debug for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("OtlpEndpoint");
        debug.field("authority", &self.authority).field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reason why a push failed.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The form of the URL is not supported.
    #[error("expected http://HOST:PORT or https://HOST:PORT, with or without /PATH, found {0}")]
    Url(String),
    /// The header is not valid. Its value can be a password and is not shown.
    #[error(
        "the header {0:?} needs a name without blanks, and a value of printable ASCII characters"
    )]
    Header(String),
    /// The user set a header that each request has already.
    #[error("the header {0} is set by pagewise")]
    OwnHeader(String),
    /// The machine has no file with certificate authorities for TLS.
    #[error("no certificates of authorities, in any of {}: name a file of them", .0.join(", "))]
    NoAuthorities(&'static [&'static str]),
    /// A file with certificate authorities cannot be read.
    #[error(transparent)]
    Authorities(WebConfigError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    /// The collector cannot be reached.
    #[error("cannot push to {0}: {1}")]
    Io(String, io::Error),
    /// The collector refused the metrics.
    #[error("{0} answered {1}")]
    Refused(String, String),
}

impl OtlpEndpoint {
    /// Parses a URL. The default port is 4318; the default path is `/v1/metrics`. `authorities` is
    /// a file with CA certificates to verify an `https` collector; with `None`, the CA certificates
    /// of the machine are used.
    ///
    /// # Errors
    /// [`OtlpError`] if the URL or the certificates are not valid. No request is sent here.
    pub fn new(url: &str, authorities: Option<&Path>) -> Result<OtlpEndpoint, OtlpError> {
        let refuse = || OtlpError::Url(url.into());
        let (is_tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(refuse()),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, "v1/metrics"));
        let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(rest) {
            return Err(refuse());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
            _ => (authority, "4318"),
        };
        let tls = match is_tls {
            false => None,
            true => {
                let plain = host.trim_start_matches('[').trim_end_matches(']');
                let name = ServerName::try_from(plain.to_owned()).map_err(|_| refuse())?;
                Some(CollectorTls { name, config: client_config(authorities)? })
            }
        };
        let path = if path.is_empty() { "v1/metrics" } else { path };
        Ok(OtlpEndpoint {
            authority: format!("{host}:{port}"),
            path: format!("/{path}"),
            headers: String::new(),
            tls,
        })
    }

    /// Adds a header to all requests.
    ///
    /// # Errors
    /// [`OtlpError`] if the name contains characters that are not permitted, if each request has
    /// the header already, or if the value could end the header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<OtlpEndpoint, OtlpError> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(OtlpError::Header(name.into()));
        }
        if OWN_HEADERS.iter().any(|it| it.eq_ignore_ascii_case(name)) {
            return Err(OtlpError::OwnHeader(name.into()));
        }
        if !value.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(OtlpError::Header(name.into()));
        }
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        Ok(self)
    }

    /// Pushes the metrics of a sweep.
    ///
    /// # Errors
    /// [`OtlpError`] if the collector cannot be reached or refuses the metrics.
    pub fn push(&self, sweep: &ExportedSweep, started_unix_ns: u64) -> Result<(), OtlpError> {
        let body = otlp_json(sweep, started_unix_ns).to_string();
        let answer = self
            .post(body.as_bytes())
            .map_err(|error| OtlpError::Io(self.authority.clone(), error))?;
        let status = answer.lines().next().unwrap_or_default();
        if status.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
            return Ok(());
        }
        Err(OtlpError::Refused(self.authority.clone(), status.chars().take(200).collect()))
    }

    fn post(&self, body: &[u8]) -> io::Result<String> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => return self.post_to(stream, body),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn post_to(&self, stream: TcpStream, body: &[u8]) -> io::Result<String> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        match &self.tls {
            None => self.exchange(stream, body),
            Some(tls) => {
                let client = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone());
                let client = client.map_err(io::Error::other)?;
                self.exchange(StreamOwned::new(client, stream), body)
            }
        }
    }

    fn exchange(&self, mut stream: impl Read + Write, body: &[u8]) -> io::Result<String> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n{}\r\n",
            self.path,
            self.authority,
            body.len(),
            self.headers
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        stream.flush()?;
        let mut answer = Vec::new();
        let read = stream.take(MAX_ANSWER as u64).read_to_end(&mut answer);
        // Collectors close connections in different ways, so an error after the status line is
        // ignored.
        match read {
            Err(error) if !answer.contains(&b'\n') => Err(error),
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }
}

fn client_config(authorities: Option<&Path>) -> Result<Arc<ClientConfig>, OtlpError> {
    let mut system = SYSTEM_AUTHORITIES.iter().map(Path::new).filter(|it| it.exists());
    let file = authorities.or_else(|| system.next());
    let file = file.ok_or(OtlpError::NoAuthorities(&SYSTEM_AUTHORITIES))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read_certificates(file).map_err(OtlpError::Authorities)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(OtlpError::Tls)?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_defaults_for_port_and_path() {
        let of = |url: &str| OtlpEndpoint::new(url, None).ok().map(|it| (it.authority, it.path));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of("http://localhost"), pair("localhost:4318", "/v1/metrics"));
        assert_eq!(of("http://[::1]:9/otlp/v1/metrics"), pair("[::1]:9", "/otlp/v1/metrics"));
        for wrong in ["ftp://x", "x", "http://", "http://a b", "http://user@x", "http://a\r\nb"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let error = OtlpEndpoint::new("https://x", Some(empty.path())).expect_err("no authority");
        assert!(error.to_string().contains("expected a certificate in PEM"), "{error}");
    }

    #[test]
    fn a_header_has_a_name_and_a_value_on_one_line() {
        let with = |name: &str, value: &str| {
            let endpoint = OtlpEndpoint::new("http://x", None).expect("a URL");
            let endpoint = endpoint.with_header(name, value);
            endpoint.map(|it| it.headers).map_err(|error| error.to_string())
        };
        let header = with("Authorization", "Bearer a=b").expect("a header");
        assert_eq!(header, "Authorization: Bearer a=b\r\n");
        for (name, value) in [("", "x"), ("a b", "x"), ("a:", "x"), ("a", "secret\r\nb: c")] {
            let error = with(name, value).expect_err("no header");
            assert!(error.contains("needs a name") && !error.contains("secret"), "{error}");
        }
        let error = with("content-Length", "1").expect_err("a header of each request");
        assert!(error.contains("content-Length is set by pagewise"), "{error}");
        let endpoint = OtlpEndpoint::new("http://x", None).expect("a URL");
        let debug = format!("{:?}", endpoint.with_header("A", "secret"));
        assert!(!debug.contains("secret"), "{debug}");
    }
}
