//! Verifiers of client certificates. They check the signature and the names of a certificate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Accepts the certificates that another verifier accepts and that contain one of these names.
#[derive(Debug)]
pub(super) struct NamedClients {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) names: Vec<String>,
}

/// Accepts every certificate. Only the client's possession of the private key is verified.
#[derive(Debug)]
pub(super) struct AnyClients {
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    pub(super) is_mandatory: bool,
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(certificate, others, now)?;
        match has_name(certificate, &self.names) {
            true => Ok(verified),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

impl ClientCertVerifier for AnyClients {
    fn client_auth_mandatory(&self) -> bool {
        self.is_mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

// Tags of ASN.1 elements in DER (X.690, RFC 5280).
const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
/// Tag of the extensions of a certificate: `[3]`.
const EXTENSIONS: u8 = 0xa3;
const EMAIL_NAME: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI_NAME: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;
/// DER encoding of the object identifier of subjectAltName: 2.5.29.17.
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// True if a subject alternative name of the certificate (DNS, e-mail, URI, IP address) is in
/// `names`.
fn has_name(certificate: &[u8], names: &[String]) -> bool {
    let found = alternative_names(certificate).unwrap_or_default();
    elements(found).any(|(tag, value)| names.iter().any(|name| is_same(tag, value, name)))
}

fn is_same(tag: u8, value: &[u8], name: &str) -> bool {
    match tag {
        EMAIL_NAME | DNS_NAME | URI_NAME => value == name.as_bytes(),
        IP_ADDRESS => address(value).is_some_and(|it| name.parse() == Ok(it)),
        _ => false,
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(|it| Ipv4Addr::from(it).into()),
        _ => <[u8; 16]>::try_from(value).ok().map(|it| Ipv6Addr::from(it).into()),
    }
}

/// Content of the subjectAltName extension; `None` if the certificate has none.
fn alternative_names(certificate: &[u8]) -> Option<&[u8]> {
    let certificate = first(certificate, SEQUENCE)?;
    let signed = first(certificate, SEQUENCE)?;
    let extensions = first(signed, EXTENSIONS)?;
    let mut extensions = elements(first(extensions, SEQUENCE)?);
    let names = extensions.find_map(|(_, extension)| {
        let is_names = first(extension, OBJECT_IDENTIFIER)? == SUBJECT_ALTERNATIVE_NAME;
        is_names.then(|| first(extension, OCTET_STRING)).flatten()
    })?;
    first(names, SEQUENCE)
}

/// Content of the first element with a tag; `None` if the bytes do not contain it.
fn first(der: &[u8], tag: u8) -> Option<&[u8]> {
    elements(der).find(|it| it.0 == tag).map(|it| it.1)
}

/// Tags and contents of consecutive elements, up to the first truncated element.
fn elements(mut der: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = element(der)?;
        der = rest;
        Some((tag, content))
    })
}

/// Tag and content of the first element, and the bytes after it; `None` if the element is
/// truncated.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            (bytes.iter().fold(0, |length, &b| length << 8 | usize::from(b)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes an element of at most 127 bytes.
    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        [&[tag, u8::try_from(content.len()).expect("a short element")], &content[..]].concat()
    }

    /// Encodes the parts of a certificate that the verifier reads.
    fn certificate(names: &[(u8, &[u8])]) -> Vec<u8> {
        let names: Vec<u8> = names.iter().flat_map(|(tag, value)| der(*tag, &[value])).collect();
        let names = der(OCTET_STRING, &[&der(SEQUENCE, &[&names])]);
        let other = der(SEQUENCE, &[&der(OBJECT_IDENTIFIER, &[&[0x55, 0x1d, 0x13]]), &names]);
        let critical = [0x01, 0x01, 0xff];
        let identifier = der(OBJECT_IDENTIFIER, &[&SUBJECT_ALTERNATIVE_NAME]);
        let extension = der(SEQUENCE, &[&identifier, &critical, &names]);
        let extensions = der(EXTENSIONS, &[&der(SEQUENCE, &[&other[..0], &extension])]);
        let signed = der(SEQUENCE, &[&der(0xa0, &[&[2, 1, 2]]), &der(2, &[&[7]]), &extensions]);
        der(SEQUENCE, &[&signed])
    }

    #[test]
    fn a_name_of_each_kind_is_compared_as_a_whole() {
        let names: [(u8, &[u8]); 4] = [
            (DNS_NAME, b"scraper.example"),
            (EMAIL_NAME, b"ann@example"),
            (URI_NAME, b"spiffe://example/s"),
            (IP_ADDRESS, &[10, 0, 0, 7]),
        ];
        let certificate = certificate(&names);
        let has = |name: &str| has_name(&certificate, &["other".into(), name.into()]);
        for name in ["scraper.example", "ann@example", "spiffe://example/s", "10.0.0.7"] {
            assert!(has(name), "{name}");
        }
        for name in ["example", "scraper.example.org", "10.0.0.70", "", "a.scraper.example"] {
            assert!(!has(name), "{name}");
        }
        assert!(!has_name(&certificate, &[]));
    }

    #[test]
    fn an_address_of_ipv6_has_one_value_and_several_texts() {
        let mut address = [0; 16];
        address[15] = 1;
        let certificate = certificate(&[(IP_ADDRESS, &address)]);
        assert!(has_name(&certificate, &["::1".into()]));
        assert!(has_name(&certificate, &["0:0:0:0:0:0:0:1".into()]));
        assert!(!has_name(&certificate, &["::2".into()]));
    }

    proptest! {
        #[test]
        fn a_damaged_certificate_has_fewer_names_and_no_others(at in 0usize..120, byte: u8, cut in 0usize..120) {
            let mut text = certificate(&[(DNS_NAME, b"scraper.example")]);
            if let Some(changed) = text.get_mut(at) {
                *changed = byte;
            }
            text.truncate(cut);
            prop_assert!(!has_name(&text, &["another.example.org".into()]));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            prop_assert!(!has_name(&bytes, &["scraper.example".into()]));
        }
    }
}
