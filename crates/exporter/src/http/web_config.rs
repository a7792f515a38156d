//! `web.config.file`: TLS and passwords, in the format that Prometheus exporters share.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use serde::Deserialize;

use super::auth::{Credentials, UserTable};
use super::tls::TlsSection;

/// Time between two checks of the files for changes.
const RELOAD: Duration = Duration::from_secs(5);
/// Maximum cost of bcrypt hashes. Each step doubles the time; with a higher cost, a scrape would
/// take seconds.
const MAX_BCRYPT_COST: u32 = 14;

/// Reason why a file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not YAML, or has an unsupported key.
    #[error("{}: {error}", path.display())]
    Yaml {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        error: serde_norway::Error,
    },
    /// A value is invalid.
    #[error("{}: {problem}", path.display())]
    Value {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
}

/// Configuration of TLS and passwords.
#[derive(Debug, Default)]
pub struct WebConfig {
    path: Option<PathBuf>,
    tls: Option<Arc<ServerConfig>>,
    users: UserTable,
    /// Header lines that are added to all responses.
    headers: Arc<str>,
    /// Configuration file, certificates and keys, with the time of their last change.
    files: Vec<(PathBuf, Option<SystemTime>)>,
    looked: Option<Instant>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    tls_server_config: Option<TlsSection>,
    #[serde(default)]
    http_server_config: Option<HttpSection>,
    #[serde(default)]
    basic_auth_users: Option<BTreeMap<String, String>>,
}

/// The server supports only HTTP/1.1, so `http2` can have either value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSection {
    #[serde(default, rename = "http2")]
    _http2: Option<bool>,
    #[serde(default)]
    headers: Option<HeaderSection>,
}

/// Header lines of all responses.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderSection {
    #[serde(default, rename = "Content-Security-Policy")]
    content_security_policy: Option<String>,
    #[serde(default, rename = "X-Frame-Options")]
    x_frame_options: Option<String>,
    #[serde(default, rename = "X-Content-Type-Options")]
    x_content_type_options: Option<String>,
    #[serde(default, rename = "X-XSS-Protection")]
    x_xss_protection: Option<String>,
    #[serde(default, rename = "Strict-Transport-Security")]
    strict_transport_security: Option<String>,
}

impl WebConfig {
    /// Loads a web configuration file. Paths in the file are relative to its folder.
    ///
    /// # Errors
    /// [`WebConfigError`] names the file and the key. Unsupported keys are errors, because ignoring
    /// them could make the metrics public.
    pub fn load(path: &Path) -> Result<WebConfig, WebConfigError> {
        let text = fs::read_to_string(path).map_err(|error| io_error(path, error))?;
        let file: Option<ConfigFile> = serde_norway::from_str(&text)
            .map_err(|error| WebConfigError::Yaml { path: path.into(), error })?;
        let file = file.unwrap_or_default();
        let headers = file.http_server_config.and_then(|it| it.headers).unwrap_or_default();
        let headers = headers.read(path)?;
        let mut files = vec![path.to_path_buf()];
        let folder = path.parent().unwrap_or(Path::new(""));
        let tls = file.tls_server_config.map(|section| {
            files.extend([folder.join(&section.cert_file), folder.join(&section.key_file)]);
            files.extend(section.client_ca_file.iter().map(|it| folder.join(it)));
            section.read(path, folder)
        });
        let users = file.basic_auth_users.unwrap_or_default();
        for (user, hash) in &users {
            check_hash(path, user, hash)?;
        }
        Ok(WebConfig {
            path: Some(path.into()),
            tls: tls.transpose()?,
            users: UserTable::new(users),
            headers: headers.into(),
            files: files.into_iter().map(|it| (changed(&it), it)).map(|(a, b)| (b, a)).collect(),
            looked: None,
        })
    }

    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.clone()
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn headers(&self) -> &str {
        &self.headers
    }

    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    pub(super) fn is_verified(&self, credentials: &Credentials) -> bool {
        self.users.is_verified(credentials)
    }

    pub(super) fn verify(&mut self, credentials: &Credentials) -> bool {
        self.users.verify(credentials)
    }

    /// Reads the files again if one of them has changed. If the new files have errors, the old
    /// configuration stays: a certificate and its key are replaced one after the other, and do not
    /// match until both are replaced.
    pub(super) fn reload_if_changed(&mut self, now: Instant) {
        let Some(path) = &self.path else { return };
        if self.looked.is_some_and(|it| now.saturating_duration_since(it) < RELOAD) {
            return;
        }
        self.looked = Some(now);
        if self.files.iter().all(|(file, time)| changed(file) == *time) {
            return;
        }
        if let Ok(fresh) = WebConfig::load(path) {
            *self = WebConfig { looked: self.looked, ..fresh };
        }
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|it| it.modified()).ok()
}

fn io_error(path: &Path, error: io::Error) -> WebConfigError {
    WebConfigError::Io { path: path.into(), error }
}

pub(super) fn wrong(path: &Path, problem: impl Into<String>) -> WebConfigError {
    WebConfigError::Value { path: path.into(), problem: problem.into() }
}

fn check_hash(path: &Path, user: &str, hash: &str) -> Result<(), WebConfigError> {
    let key = format!("basic_auth_users: {user}");
    let parts = bcrypt::HashParts::from_str(hash)
        .map_err(|_| wrong(path, format!("{key}: expected a bcrypt hash ($2b$10$...)")))?;
    if parts.get_cost() > MAX_BCRYPT_COST {
        let cost = parts.get_cost();
        let problem =
            format!("{key}: expected a bcrypt cost of at most {MAX_BCRYPT_COST}, found {cost}");
        return Err(wrong(path, problem));
    }
    Ok(())
}

impl HeaderSection {
    /// Creates the header lines. Headers with empty values are omitted, and so is
    /// `X-Content-Type-Options`, which each response has anyway.
    fn read(&self, path: &Path) -> Result<String, WebConfigError> {
        let mut lines = String::new();
        for (name, value, accepted) in self.values() {
            let Some(value) = value.as_deref().filter(|it| !it.is_empty()) else { continue };
            let is_plain = value.bytes().all(|b| (b' '..=b'~').contains(&b));
            if !is_plain || !accepted.is_empty() && !accepted.contains(&value) {
                let expected = match accepted {
                    [] => "printable ASCII characters".to_owned(),
                    _ => accepted.join(" or "),
                };
                let problem = format!(
                    "http_server_config: headers: {name}: expected {expected}, found {value:?}"
                );
                return Err(wrong(path, problem));
            }
            // Each response has this header anyway.
            if name != "X-Content-Type-Options" {
                lines.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        Ok(lines)
    }

    /// Name and value of each header, with its accepted values; the list is empty if all values are
    /// accepted.
    fn values(&self) -> [(&'static str, &Option<String>, &'static [&'static str]); 5] {
        [
            ("Content-Security-Policy", &self.content_security_policy, &[]),
            ("X-Frame-Options", &self.x_frame_options, &["deny", "sameorigin"]),
            ("X-Content-Type-Options", &self.x_content_type_options, &["nosniff"]),
            ("X-XSS-Protection", &self.x_xss_protection, &[]),
            ("Strict-Transport-Security", &self.strict_transport_security, &[]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<WebConfig, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("web.yml");
        fs::write(&path, text).expect("a file");
        WebConfig::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_has_no_tls_and_no_users() {
        let config = load("").expect("no error");
        assert!(!config.has_tls() && !config.has_users());
    }

    #[test]
    fn passwords_are_bcrypt_hashes() {
        let hash = bcrypt::hash("x", 4).expect("a hash");
        assert!(
            load(&format!("basic_auth_users:\n  ann: {hash}\n")).expect("no error").has_users()
        );
        let error = load("basic_auth_users:\n  ann: secret\n").expect_err("no hash");
        assert!(error.contains("ann: expected a bcrypt hash"), "{error}");
    }

    #[test]
    fn a_key_that_is_not_supported_is_an_error() {
        assert!(load("tls_server_config:\n  cert: x\n").is_err());
        assert!(load("http_server_config: {headers: {Server: x}}\n").is_err());
        assert!(load("rate_limit: {}\n").is_err());
        let error = load("tls_server_config:\n  cert_file: a.pem\n  key_file: b.pem\n");
        assert!(error.expect_err("no such file").contains("a.pem"));
    }

    #[test]
    fn headers_have_the_values_that_the_format_allows() {
        let headers = |text: &str| {
            let config = load(&format!("http_server_config: {{headers: {{{text}}}}}\n"));
            config.map(|it| it.headers().to_owned())
        };
        let all = "Strict-Transport-Security: max-age=60, X-Frame-Options: deny, \
                   X-Content-Type-Options: nosniff, X-XSS-Protection: '', \
                   Content-Security-Policy: \"default-src 'none'\"";
        let expected = "Content-Security-Policy: default-src 'none'\r\nX-Frame-Options: deny\r\n\
                        Strict-Transport-Security: max-age=60\r\n";
        assert_eq!(headers(all).as_deref(), Ok(expected));
        let error = headers("X-Frame-Options: allow").expect_err("another value");
        assert!(error.contains("X-Frame-Options: expected deny or sameorigin, found \"allow\""));
        // A value must not be able to add another header.
        assert!(headers("X-XSS-Protection: \"0\\r\\nSet-Cookie: a=b\"").is_err());
    }
}
