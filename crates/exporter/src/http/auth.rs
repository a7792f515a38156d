//! Basic authentication with bcrypt hashes.

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Maximum number of verified credentials that are cached, so that not each scrape runs bcrypt.
const MAX_VERIFIED: usize = 16;
/// A bcrypt hash of cost 10 that no password has. It is checked for unknown users, so that the
/// response takes as long as for known users.
const NO_USER: &str = "$2b$10$.....................................................";

/// User name and password that a client sent.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    user: String,
    password: Vec<u8>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Parses the value of the header `Authorization`; `None` if it has another form.
    pub(super) fn parse(header: &[u8]) -> Option<Credentials> {
        let (scheme, encoded) = header.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
        let at = decoded.iter().position(|&b| b == b':')?;
        let user = String::from_utf8(decoded[..at].to_vec()).ok()?;
        Some(Credentials { user, password: decoded[at + 1..].to_vec() })
    }

    /// Compares all bytes, so that the duration does not depend on the position of the first
    /// difference.
    fn is_same(&self, other: &Credentials) -> bool {
        let (a, b) = (&self.password, &other.password);
        let differs = a.iter().zip(b).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        self.user == other.user && a.len() == b.len() && differs == 0
    }
}

/// Users with the bcrypt hashes of their passwords.
#[derive(Debug, Default)]
pub(super) struct UserTable {
    hashes: BTreeMap<String, String>,
    verified: VecDeque<Credentials>,
}

impl UserTable {
    pub(super) fn new(hashes: BTreeMap<String, String>) -> UserTable {
        UserTable { hashes, verified: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// True if these credentials are in the cache of verified credentials.
    pub(super) fn is_verified(&self, credentials: &Credentials) -> bool {
        self.verified.iter().fold(false, |found, it| found | it.is_same(credentials))
    }

    /// Verifies a password with bcrypt, which takes some hundredths of a second. Returns true if it
    /// is right.
    pub(super) fn verify(&mut self, credentials: &Credentials) -> bool {
        if self.is_verified(credentials) {
            return true;
        }
        let hash = self.hashes.get(&credentials.user);
        let is_right = bcrypt::verify(&credentials.password, hash.map_or(NO_USER, String::as_str));
        let is_right = is_right.unwrap_or(false) && hash.is_some();
        if is_right {
            self.verified.truncate(MAX_VERIFIED - 1);
            self.verified.push_front(credentials.clone());
        }
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_of_a_known_user_is_accepted() {
        let hash = bcrypt::hash("secret", 4).expect("a hash");
        let mut users = UserTable::new([("ann".to_owned(), hash)].into());
        let of = |text: &str| {
            let header = format!("Basic {}", STANDARD.encode(text));
            Credentials::parse(header.as_bytes()).expect("credentials")
        };
        assert!(!users.verify(&of("ann:wrong")));
        assert!(!users.verify(&of("bob:secret")));
        assert!(!users.is_verified(&of("ann:secret")));
        assert!(users.verify(&of("ann:secret")));
        assert!(users.is_verified(&of("ann:secret")) && !users.is_verified(&of("ann:secretx")));
        assert!(bcrypt::verify("x", NO_USER).is_ok_and(|is_right| !is_right));
        assert!(Credentials::parse(b"Basic !").is_none());
        assert!(Credentials::parse(b"Bearer x").is_none());
    }
}
