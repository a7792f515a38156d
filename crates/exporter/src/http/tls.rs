//! The section `tls_server_config` of a web configuration file: the server's certificate, versions
//! and algorithms of TLS, and the verification of client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    NamedGroup, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
};
use serde::Deserialize;

use super::client_certificate::{AnyClients, NamedClients};
use super::web_config::{WebConfigError, wrong};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsSection {
    pub(super) cert_file: PathBuf,
    pub(super) key_file: PathBuf,
    #[serde(default)]
    client_auth_type: String,
    #[serde(default)]
    pub(super) client_ca_file: Option<PathBuf>,
    #[serde(default)]
    client_allowed_sans: Option<Vec<String>>,
    #[serde(default)]
    min_version: String,
    #[serde(default)]
    max_version: String,
    #[serde(default)]
    cipher_suites: Option<Vec<String>>,
    #[serde(default)]
    prefer_server_cipher_suites: Option<bool>,
    #[serde(default)]
    curve_preferences: Option<Vec<String>>,
}

/// Elliptic curves by their names in Go.
const CURVES: [(&str, NamedGroup); 3] = [
    ("X25519", NamedGroup::X25519),
    ("CurveP256", NamedGroup::secp256r1),
    ("CurveP384", NamedGroup::secp384r1),
];

impl TlsSection {
    pub(super) fn read(
        &self,
        path: &Path,
        folder: &Path,
    ) -> Result<Arc<ServerConfig>, WebConfigError> {
        let refuse = |problem: String| wrong(path, format!("tls_server_config: {problem}"));
        let certificates = read_certificates(&folder.join(&self.cert_file))?;
        let key_file = folder.join(&self.key_file);
        let key = PrivateKeyDer::from_pem_file(&key_file)
            .map_err(|error| wrong(&key_file, format!("expected a private key in PEM: {error}")))?;
        let provider = Arc::new(self.provider().map_err(refuse)?);
        let versions = self.versions(&provider.cipher_suites).map_err(refuse)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .map_err(|error| refuse(error.to_string()))?;
        let builder = match self.client_verifier(path, folder, provider)? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let config = builder.with_single_cert(certificates, key);
        let mut config = config.map_err(|error| refuse(error.to_string()))?;
        config.ignore_client_order = self.prefer_server_cipher_suites.unwrap_or(true);
        Ok(Arc::new(config))
    }

    /// Creates the set of algorithms. As in Go, the cipher suites of TLS 1.3 cannot be disabled.
    fn provider(&self) -> Result<CryptoProvider, String> {
        let mut provider = rustls::crypto::ring::default_provider();
        if let Some(names) = self.cipher_suites.as_ref().filter(|it| !it.is_empty()) {
            let known: Vec<(String, SupportedCipherSuite)> = provider
                .cipher_suites
                .iter()
                .filter_map(|it| Some((suite_name(*it)?, *it)))
                .collect();
            let chosen = choose(names, &known, "cipher_suites")?;
            let older = chosen.into_iter().filter(|it| it.tls13().is_none());
            provider.cipher_suites.retain(|it| it.tls13().is_some());
            provider.cipher_suites.extend(older);
        }
        if let Some(names) = self.curve_preferences.as_ref().filter(|it| !it.is_empty()) {
            let group = |name: NamedGroup| provider.kx_groups.iter().find(|it| it.name() == name);
            let known: Vec<(String, &'static dyn SupportedKxGroup)> = CURVES
                .iter()
                .filter_map(|(text, name)| Some(((*text).to_owned(), *group(*name)?)))
                .collect();
            provider.kx_groups = choose(names, &known, "curve_preferences")?;
        }
        Ok(provider)
    }

    /// TLS versions from `min_version` to `max_version` that have cipher suites.
    fn versions(
        &self,
        suites: &[SupportedCipherSuite],
    ) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
        let number = |text: &str, default| match text {
            "" => Ok(default),
            "TLS12" => Ok(2),
            "TLS13" => Ok(3),
            _ => Err(format!("min_version, max_version: expected TLS12 or TLS13, found {text}")),
        };
        let (min, max) = (number(&self.min_version, 2)?, number(&self.max_version, 3)?);
        if min > max {
            return Err("expected a min_version up to max_version".into());
        }
        let has_older = suites.iter().any(|it| it.tls13().is_none());
        let all = [(2, &TLS12), (3, &TLS13)];
        let within = all.into_iter().filter(|it| (min..=max).contains(&it.0));
        let versions: Vec<_> = within.filter(|it| it.0 == 3 || has_older).map(|it| it.1).collect();
        match versions.is_empty() {
            true => Err("cipher_suites: expected one of TLS 1.2, found none".into()),
            false => Ok(versions),
        }
    }

    /// Creates the verifier of client certificates; `None` if the server requests no certificate.
    fn client_verifier(
        &self,
        path: &Path,
        folder: &Path,
        provider: Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, WebConfigError> {
        let refuse = |problem: &str| wrong(path, format!("tls_server_config: {problem}"));
        let names = self.client_allowed_sans.clone().unwrap_or_default();
        let kind = self.client_auth_type.as_str();
        if !names.is_empty() && kind != "RequireAndVerifyClientCert" {
            return Err(refuse(
                "client_allowed_sans needs the client_auth_type RequireAndVerifyClientCert: names in \
                 a certificate that is not verified prove nothing",
            ));
        }
        match kind {
            "" | "NoClientCert" if self.client_ca_file.is_some() => Err(refuse(
                "client_ca_file needs the client_auth_type RequireAndVerifyClientCert or \
                 VerifyClientCertIfGiven",
            )),
            "" | "NoClientCert" => Ok(None),
            "RequestClientCert" | "RequireAnyClientCert" => {
                let algorithms = provider.signature_verification_algorithms;
                let is_mandatory = kind == "RequireAnyClientCert";
                Ok(Some(Arc::new(AnyClients { algorithms, is_mandatory })))
            }
            "RequireAndVerifyClientCert" | "VerifyClientCertIfGiven" => {
                let file = self.client_ca_file.as_ref();
                let file = file.ok_or_else(|| refuse(&format!("{kind} needs client_ca_file")))?;
                let is_optional = kind == "VerifyClientCertIfGiven";
                let verifier = signed_by(&folder.join(file), provider, is_optional)?;
                Ok(Some(match names.is_empty() {
                    true => verifier,
                    false => Arc::new(NamedClients { verifier, names }),
                }))
            }
            other => Err(refuse(&format!(
                "client_auth_type: expected NoClientCert, RequestClientCert, RequireAnyClientCert, \
                 VerifyClientCertIfGiven or RequireAndVerifyClientCert, found {other}"
            ))),
        }
    }
}

/// Creates a verifier that accepts certificates of the authorities in a file.
fn signed_by(
    file: &Path,
    provider: Arc<CryptoProvider>,
    is_optional: bool,
) -> Result<Arc<dyn ClientCertVerifier>, WebConfigError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read_certificates(file)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = if is_optional { verifier.allow_unauthenticated() } else { verifier };
    verifier.build().map_err(|error| wrong(file, error.to_string()))
}

/// Returns the values with these names, in the order of the names; an error for an unknown name.
fn choose<T: Copy>(names: &[String], known: &[(String, T)], key: &str) -> Result<Vec<T>, String> {
    let of = |name: &String| {
        let found = known.iter().find(|it| it.0 == *name).map(|it| it.1);
        found.ok_or_else(|| {
            let all: Vec<&str> = known.iter().map(|it| it.0.as_str()).collect();
            format!("{key}: expected names of {}, found {name}", all.join(", "))
        })
    };
    names.iter().map(of).collect()
}

/// Name of a cipher suite in Go. The names of TLS 1.3 suites contain no version.
fn suite_name(suite: SupportedCipherSuite) -> Option<String> {
    suite.suite().as_str().map(|it| it.replacen("TLS13_", "TLS_", 1))
}

/// Reads the certificates in a file.
pub(crate) fn read_certificates(
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
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
