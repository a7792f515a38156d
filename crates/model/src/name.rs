//! A name that the kernel or a program chose (of a path, a process, a thread): any bytes, cheap to
//! clone.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// Bytes that the kernel or a program chose. They may contain newlines, escape sequences and
/// invalid UTF-8. Only views convert them to text, and views escape them.
///
/// In a snapshot a name is a JSON string, or `{"hex": "..."}` if it is not valid UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Creates a name from `bytes`.
    pub fn new(bytes: &[u8]) -> Name {
        Name(bytes.into())
    }

    /// The unchanged bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True if the name is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name as text without loss of information and without effect on a terminal. Control
    /// characters, invisible direction marks and bytes that are not valid UTF-8 become escapes such
    /// as `\n`, `\x1b`, `\u{202e}`.
    ///
    /// ```
    /// use pagewise_model::Name;
    ///
    /// assert_eq!(Name::new(b"a\x1b[2Jb\xff").escaped(), r"a\x1b[2Jb\xff");
    /// ```
    pub fn escaped(&self) -> Cow<'_, str> {
        escape(&self.0)
    }

    /// The last component of a path, or the whole name if it contains no `/`.
    pub fn base(&self) -> &[u8] {
        self.0.rsplit(|&b| b == b'/').next().unwrap_or(&self.0)
    }
}

/// True if a character may be written to a terminal or a page without an escape: it is visible, and
/// neither a control character nor a direction mark.
pub fn is_plain(c: char) -> bool {
    !(c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'))
}

/// Like [`Name::escaped`], for any bytes.
pub fn escape(bytes: &[u8]) -> Cow<'_, str> {
    use fmt::Write;
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.chars().all(is_plain)
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                _ if is_plain(c) => out.push(c),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if c.is_ascii() => {
                    write!(out, "\\x{:02x}", u32::from(c)).expect("a String takes all")
                }
                c => write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a String takes all"),
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").expect("a String takes all");
        }
    }
    Cow::Owned(out)
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name::new(text.as_bytes())
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Name {
        Name::new(bytes)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escaped())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let hex: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("hex", &hex)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or {\"hex\": \"...\"}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                Ok(Name::from(text))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Name, A::Error> {
                let Some((key, hex)) = map.next_entry::<String, String>()? else {
                    return Err(de::Error::custom("an empty object is no name"));
                };
                if key != "hex" {
                    return Err(de::Error::unknown_field(&key, &["hex"]));
                }
                unhex(&hex)
                    .map(|bytes| Name::new(&bytes))
                    .ok_or_else(|| de::Error::custom("bad hex digits"))
            }
        }
        deserializer.deserialize_any(NameVisitor)
    }
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || !hex.len().is_multiple_of(2) {
        return None;
    }
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_survives_json(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let name = Name::new(&bytes);
            let json = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<Name>(&json).unwrap(), name);
        }

        #[test]
        fn escaped_text_has_no_control_character(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let name = Name::new(&bytes);
            prop_assert!(!name.escaped().chars().any(char::is_control));
        }
    }
}
