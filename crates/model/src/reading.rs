//! A value, or the reason of its absence. Analyses pass the reason on to the views.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A value, or the reason of its absence. An unknown value is never replaced by 0.
pub type Reading<T> = Result<T, Absent>;

/// Reason why a value is absent. It is cheap to clone, because 65,000 mappings often have the same
/// reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why", content = "detail")]
#[non_exhaustive]
pub enum Absent {
    /// The kernel does not provide the value; `0` is the release that introduced it, or empty if
    /// unknown.
    NotInThisKernel(Arc<str>),
    /// A permission is missing; `0` is the permission.
    NotPermitted(Arc<str>),
    /// The machine cannot provide the value; `0` is the reason.
    NotSupported(Arc<str>),
    /// The counter never ran.
    NeverScheduled,
    /// The value was not read, to limit the cost or because the source is a copy; `0` is the option
    /// or command that reads it.
    NotCollected(Arc<str>),
    /// The values that were read do not determine the value; `0` is the command or file that would.
    Ambiguous(Arc<str>),
    /// The source has no such value; `0` is the source.
    NotRecorded(Arc<str>),
    /// The object no longer existed when it was read (for example a process that ended).
    Vanished,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::NotInThisKernel(since) if since.is_empty() => f.write_str("not in this kernel"),
            Absent::NotInThisKernel(since) => write!(f, "not in this kernel (since {since})"),
            Absent::NotPermitted(needs) => write!(f, "not permitted: needs {needs}"),
            Absent::NotSupported(by) => write!(f, "not supported: {by}"),
            Absent::NeverScheduled => f.write_str("the counter never ran"),
            Absent::NotCollected(how) => write!(f, "not collected: {how}"),
            Absent::Ambiguous(what) => write!(f, "ambiguous: {what}"),
            Absent::NotRecorded(source) => write!(f, "{source} does not record it"),
            Absent::Vanished => f.write_str("vanished while it was read"),
        }
    }
}

impl std::error::Error for Absent {}

/// Adds two readings. If both are absent, the reason of `a` is returned.
pub fn sum<T: std::ops::Add<Output = T>>(a: Reading<T>, b: Reading<T>) -> Reading<T> {
    Ok(a? + b?)
}

/// Stores a [`Reading`] as the bare value or as `{"absent": {...}}`:
/// use with `#[serde(with = "pagewise_model::reading::plain")]`.
pub mod plain {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::value::{
        MapAccessDeserializer, SeqAccessDeserializer, StringDeserializer, UnitDeserializer,
    };
    use serde::de::{
        DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    };
    use serde::ser::{SerializeMap, Serializer};
    use serde::{Deserialize, Serialize};

    use super::Reading;

    /// The only key of a JSON object that represents an absent value.
    const ABSENT: &str = "absent";

    /// Writes the value, or an object with the only key `absent`.
    ///
    /// # Errors
    /// Returns the error of the serializer.
    pub fn serialize<T: Serialize, S: Serializer>(
        reading: &Reading<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match reading {
            Ok(value) => value.serialize(serializer),
            Err(absent) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(ABSENT, absent)?;
                map.end()
            }
        }
    }

    /// Reads the output of [`serialize`]. The first key of an object shows if the object is the
    /// value itself or the reason of its absence, so the deserializer does not buffer the object.
    ///
    /// # Errors
    /// Returns the error of the deserializer, or an error if the input is neither a value nor an
    /// absent value.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Reading<T>, D::Error> {
        deserializer.deserialize_any(Either(PhantomData))
    }

    struct Either<T>(PhantomData<T>);

    macro_rules! pass_on {
        ($($visit:ident($type:ty),)*) => {
            $(fn $visit<E: Error>(self, value: $type) -> Result<Reading<T>, E> {
                T::deserialize(value.into_deserializer()).map(Ok)
            })*
        };
    }

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
        type Value = Reading<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value or {\"absent\": ...}")
        }

        pass_on! {
            visit_bool(bool),
            visit_i64(i64),
            visit_u64(u64),
            visit_f64(f64),
            visit_str(&str),
        }

        fn visit_unit<E: Error>(self) -> Result<Reading<T>, E> {
            T::deserialize(UnitDeserializer::new()).map(Ok)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Reading<T>, A::Error> {
            T::deserialize(SeqAccessDeserializer::new(seq)).map(Ok)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Reading<T>, A::Error> {
            let first = map.next_key::<String>()?;
            if first.as_deref() == Some(ABSENT) {
                let absent = map.next_value()?;
                return match map.next_key::<String>()? {
                    None => Ok(Err(absent)),
                    Some(more) => Err(A::Error::custom(format!("`{more}` beside `{ABSENT}`"))),
                };
            }
            T::deserialize(MapAccessDeserializer::new(Peeked { first, map })).map(Ok)
        }
    }

    /// Map access for a map whose first key has already been read.
    struct Peeked<A> {
        first: Option<String>,
        map: A,
    }

    impl<'de, A: MapAccess<'de>> MapAccess<'de> for Peeked<A> {
        type Error = A::Error;

        fn next_key_seed<K: DeserializeSeed<'de>>(
            &mut self,
            seed: K,
        ) -> Result<Option<K::Value>, A::Error> {
            match self.first.take() {
                Some(key) => {
                    let key: StringDeserializer<A::Error> = key.into_deserializer();
                    seed.deserialize(key).map(Some)
                }
                None => self.map.next_key_seed(seed),
            }
        }

        fn next_value_seed<V: DeserializeSeed<'de>>(
            &mut self,
            seed: V,
        ) -> Result<V::Value, A::Error> {
            self.map.next_value_seed(seed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "plain")]
        value: Reading<Bytes>,
    }

    #[test]
    fn a_reading_survives_json_with_its_reason() {
        for value in [
            Ok(Bytes(7)),
            Err(Absent::NotPermitted("CAP_SYS_ADMIN".into())),
            Err(Absent::NeverScheduled),
        ] {
            let holder = Holder { value };
            let json = serde_json::to_string(&holder).unwrap();
            assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder, "{json}");
        }
    }

    #[test]
    fn an_object_is_a_value_unless_its_one_key_is_absent() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Outer {
            #[serde(with = "plain")]
            inner: Reading<Vec<Holder>>,
        }
        let outer = Outer { inner: Ok(vec![Holder { value: Ok(Bytes(1)) }]) };
        let json = serde_json::to_string(&outer).unwrap();
        assert_eq!(serde_json::from_str::<Outer>(&json).unwrap(), outer, "{json}");
        let both = r#"{"value": {"absent": {"why": "vanished"}, "more": 1}}"#;
        assert!(serde_json::from_str::<Holder>(both).is_err());
        assert!(serde_json::from_str::<Holder>(r#"{"value": "text"}"#).is_err());
    }

    #[test]
    fn absent_is_not_zero_in_a_sum() {
        let absent: Reading<Bytes> = Err(Absent::Vanished);
        assert_eq!(sum(Ok(Bytes(1)), absent), Err(Absent::Vanished));
    }
}
