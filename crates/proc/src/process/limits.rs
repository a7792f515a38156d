//! `/proc/<pid>/limits`.

use pagewise_model::process::{ResourceLimit, ResourceLimits};

use crate::ProcError;
use crate::text::{lines, number};

/// Reads a whole `limits`, which does not contain capabilities.
///
/// # Errors
/// [`ProcError::Parse`] where one of the four memory limits is missing.
pub fn parse(text: &[u8]) -> Result<ResourceLimits, ProcError> {
    let limit = |name: &'static str| {
        let row = lines(text).find_map(|(_, line)| line.strip_prefix(name.as_bytes()));
        row.and_then(columns).ok_or_else(|| ProcError::parse("limits", 1, name, text))
    };
    Ok(ResourceLimits {
        stack: limit("Max stack size ")?,
        address_space: limit("Max address space ")?,
        data: limit("Max data size ")?,
        locked: limit("Max locked memory ")?,
        locks_freely: None,
    })
}

/// The soft limit of tasks of the user (`RLIMIT_NPROC`); `None` without a limit.
pub fn max_processes(text: &[u8]) -> Option<u64> {
    let row = lines(text).find_map(|(_, line)| line.strip_prefix(b"Max processes "));
    row.and_then(columns)?.soft
}

fn columns(row: &[u8]) -> Option<ResourceLimit> {
    let mut words = row.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Some(ResourceLimit { soft: bound(words.next()?)?, hard: bound(words.next()?)? })
}

/// `None` for a word that is not a limit; the inner `None` is unlimited.
fn bound(word: &[u8]) -> Option<Option<u64>> {
    if word == b"unlimited" { Some(None) } else { number(word).map(Some) }
}
