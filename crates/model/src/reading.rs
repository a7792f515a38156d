//! A value that may be missing, with the reason. Absence is data: it travels to the view.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A value, or why there is none. Never 0 for "not known".
pub type Reading<T> = Result<T, Absent>;

/// Why a value is missing. Cheap to clone: a reason is often the same for 65,000 mappings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why", content = "detail")]
#[non_exhaustive]
pub enum Absent {
    /// The kernel that was asked does not have it; `0` names the release that brought it, where known.
    NotInThisKernel(Arc<str>),
    /// We may not read it; `0` names what it takes.
    NotPermitted(Arc<str>),
    /// The machine cannot give it; `0` names what stands in the way.
    NotSupported(Arc<str>),
    /// A counter that never ran.
    NeverScheduled,
    /// We did not ask, to be polite or because the source is a copy; `0` says how to ask.
    NotCollected(Arc<str>),
    /// What was read does not decide it; `0` says what would.
    Ambiguous(Arc<str>),
    /// It was there and went away while we read (a process that ended).
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
            Absent::Vanished => f.write_str("vanished while it was read"),
        }
    }
}

impl std::error::Error for Absent {}

/// Adds two readings; the first absence wins.
pub fn sum<T: std::ops::Add<Output = T>>(a: Reading<T>, b: Reading<T>) -> Reading<T> {
    Ok(a? + b?)
}

/// Stores a [`Reading`] as the bare value or as `{"absent": {...}}`:
/// use with `#[serde(with = "pagewise_model::reading::plain")]`.
pub mod plain {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Absent, Reading};

    #[derive(Serialize)]
    struct Missing<'a> {
        absent: &'a Absent,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Found {
        absent: Absent,
    }

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        Missing(Found),
        Value(T),
    }

    /// Writes the value, or an object with the one key `absent`.
    ///
    /// # Errors
    /// What the serializer returns.
    pub fn serialize<T: Serialize, S: Serializer>(
        reading: &Reading<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match reading {
            Ok(value) => value.serialize(serializer),
            Err(absent) => Missing { absent }.serialize(serializer),
        }
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// What the deserializer returns, or that the value fits neither shape.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Reading<T>, D::Error> {
        Ok(match Either::deserialize(deserializer)? {
            Either::Missing(found) => Err(found.absent),
            Either::Value(value) => Ok(value),
        })
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
    fn absent_is_not_zero_in_a_sum() {
        let absent: Reading<Bytes> = Err(Absent::Vanished);
        assert_eq!(sum(Ok(Bytes(1)), absent), Err(Absent::Vanished));
    }
}
