//! `web.config.file`: TLS and passwords, in the format that Prometheus' exporters share.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use serde::Deserialize;

use super::auth::{Credentials, UserTable};

/// Time between two looks at the files.
const RELOAD: Duration = Duration::from_secs(5);
/// bcrypt costs twice the time for each step; above this one a scrape would take seconds.
const MAX_BCRYPT_COST: u32 = 14;

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// A file that cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// Not YAML, or with a key that is not supported.
    #[error("{}: {error}", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The error.
        error: serde_norway::Error,
    },
    /// A value that is wrong.
    #[error("{}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// TLS and passwords of the server.
#[derive(Debug, Default)]
pub struct WebConfig {
    path: Option<PathBuf>,
    tls: Option<Arc<ServerConfig>>,
    users: UserTable,
    /// The files and the time of their last change.
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsSection {
    cert_file: PathBuf,
    key_file: PathBuf,
    #[serde(default)]
    client_auth_type: String,
    #[serde(default)]
    client_ca_file: Option<PathBuf>,
    #[serde(default)]
    min_version: String,
    #[serde(default)]
    max_version: String,
}

/// This server has HTTP/1.1 only, so `http2` may have either value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSection {
    #[serde(default, rename = "http2")]
    _http2: Option<bool>,
}

impl WebConfig {
    /// Reads a file. Paths in it are relative to its folder.
    ///
    /// # Errors
    /// [`WebConfigError`] names the file and the key. A key that this server does not support is an
    /// error: ignoring it could make the metrics public.
    pub fn load(path: &Path) -> Result<WebConfig, WebConfigError> {
        let text = fs::read_to_string(path).map_err(|error| io_error(path, error))?;
        let file: Option<ConfigFile> = serde_norway::from_str(&text)
            .map_err(|error| WebConfigError::Yaml { path: path.into(), error })?;
        let file = file.unwrap_or_default();
        let _ = file.http_server_config;
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

    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    pub(super) fn is_verified(&self, credentials: &Credentials) -> bool {
        self.users.is_verified(credentials)
    }

    pub(super) fn verify(&mut self, credentials: &Credentials) -> bool {
        self.users.verify(credentials)
    }

    /// Reads the files again if one has changed. Files with errors are ignored until they are
    /// right, since a certificate and its key are not replaced at once.
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

fn wrong(path: &Path, problem: impl Into<String>) -> WebConfigError {
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

impl TlsSection {
    fn read(&self, path: &Path, folder: &Path) -> Result<Arc<ServerConfig>, WebConfigError> {
        let certificates = read_certificates(&folder.join(&self.cert_file))?;
        let key_file = folder.join(&self.key_file);
        let key = PrivateKeyDer::from_pem_file(&key_file)
            .map_err(|error| wrong(&key_file, format!("expected a private key in PEM: {error}")))?;
        let versions = self.versions().ok_or_else(|| {
            wrong(path, "tls_server_config: min_version, max_version: expected TLS12 or TLS13")
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| wrong(path, format!("tls_server_config: {error}")))?;
        let builder = match self.client_auth_type.as_str() {
            "" | "NoClientCert" => builder.with_no_client_auth(),
            kind @ ("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven") => {
                let file = self.client_ca_file.as_ref().ok_or_else(|| {
                    wrong(path, format!("tls_server_config: {kind} needs client_ca_file"))
                })?;
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(read_certificates(&folder.join(file))?);
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match kind {
                    "VerifyClientCertIfGiven" => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| wrong(path, format!("client_ca_file: {error}")))?,
                )
            }
            other => {
                let problem = format!(
                    "tls_server_config: client_auth_type: expected NoClientCert, \
                     VerifyClientCertIfGiven or RequireAndVerifyClientCert, found {other}"
                );
                return Err(wrong(path, problem));
            }
        };
        let config = builder.with_single_cert(certificates, key);
        config.map(Arc::new).map_err(|error| wrong(path, format!("tls_server_config: {error}")))
    }

    /// `None` if a version is unknown, or none is left.
    fn versions(&self) -> Option<Vec<&'static SupportedProtocolVersion>> {
        let number = |text: &str, default| match text {
            "" => Some(default),
            "TLS12" => Some(2),
            "TLS13" => Some(3),
            _ => None,
        };
        let (min, max) = (number(&self.min_version, 2)?, number(&self.max_version, 3)?);
        let all = [(2, &TLS12), (3, &TLS13)];
        let versions: Vec<_> =
            all.into_iter().filter(|it| (min..=max).contains(&it.0)).map(|it| it.1).collect();
        (!versions.is_empty()).then_some(versions)
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match read {
        Ok(list) => {
            let list: Vec<CertificateDer<'static>> = list;
            if list.is_empty() {
                return Err(wrong(path, "expected a certificate in PEM, found none"));
            }
            Ok(list)
        }
        Err(error) => Err(wrong(path, format!("expected certificates in PEM: {error}"))),
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
        assert!(load("tls_server_config:\n  cipher_suites: [x]\n").is_err());
        assert!(load("rate_limit: {}\n").is_err());
        let error = load("tls_server_config:\n  cert_file: a.pem\n  key_file: b.pem\n");
        assert!(error.expect_err("no such file").contains("a.pem"));
    }
}
