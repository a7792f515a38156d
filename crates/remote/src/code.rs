//! Existing instructions of a target that remote calls use: `syscall; ret`, and the call of
//! `rt_sigreturn` that every C library has for returns from signal handlers.

use memchr::memmem;
use pagewise_model::mapping::Sharing;
use pagewise_model::{AddrRange, Mapping};

use crate::arch::{RESTORE, SYSCALL_AND_RETURN};
use crate::memory::TargetMemory;

/// Addresses of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeAddresses {
    /// Address of `syscall; ret`.
    pub(crate) syscall: u64,
    /// Address of `mov $15, %rax; syscall`, which calls `rt_sigreturn`.
    pub(crate) restore: u64,
}

/// Maximum number of code bytes that are searched.
const SEARCHED: u64 = 256 << 20;
/// Number of code bytes that are read at a time.
const PIECE: usize = 1 << 20;

impl CodeAddresses {
    /// Finds both addresses in the executable private mappings of files; mappings of the C library
    /// are searched first.
    pub(crate) fn find(memory: &TargetMemory, mappings: &[Mapping]) -> Option<CodeAddresses> {
        let is_code = |it: &&Mapping| {
            it.prot.exec && it.prot.read && it.sharing == Sharing::Private && it.inode != 0
        };
        let mut candidates: Vec<&Mapping> = mappings.iter().filter(is_code).collect();
        candidates.sort_by_key(|mapping| !is_c_library(mapping));
        let (mut syscall, mut restore) = (None, None);
        let mut searched = 0;
        for mapping in candidates {
            for at in (mapping.range.start..mapping.range.end).step_by(PIECE) {
                // Consecutive pieces overlap by at least the longest pattern.
                let length = (mapping.range.end - at).min(PIECE as u64 + 16);
                let bytes = memory.read_up_to(at, usize::try_from(length).unwrap_or(0));
                let find = |pattern: &[u8]| {
                    let offset = memmem::find(&bytes, pattern).filter(|_| !pattern.is_empty())?;
                    Some(at + offset as u64)
                };
                syscall = syscall.or_else(|| find(SYSCALL_AND_RETURN));
                restore = restore.or_else(|| RESTORE.iter().find_map(|pattern| find(pattern)));
                if let (Some(syscall), Some(restore)) = (syscall, restore) {
                    return Some(CodeAddresses { syscall, restore });
                }
                searched += length;
                if searched > SEARCHED {
                    return None;
                }
            }
        }
        None
    }
}

fn is_c_library(mapping: &Mapping) -> bool {
    let file = mapping.name.base();
    [&b"libc.so"[..], b"libc-2.", b"ld-"].iter().any(|start| file.starts_with(start))
}

/// Returns a free range for a mapping of `length` bytes, with a free page on both sides. The range
/// is near the middle of the largest gap between mappings, so that the kernel does not merge the
/// new mapping with mappings of the program.
pub(crate) fn free_range(mappings: &[Mapping], length: u64, page: u64) -> Option<AddrRange> {
    /// Lowest address of the range: the kernel or the program may refuse lower addresses, or treat
    /// them specially.
    const LOWEST: u64 = 1 << 32;
    /// End of the addresses that every x86-64 program can use.
    const HIGHEST: u64 = (1 << 47) - (1 << 21);
    let ends = std::iter::once(LOWEST).chain(mappings.iter().map(|it| it.range.end.max(LOWEST)));
    let starts = mappings.iter().map(|it| it.range.start).chain(std::iter::once(HIGHEST));
    let gaps = ends.zip(starts).map(|(end, start)| (start.min(HIGHEST).saturating_sub(end), end));
    let (space, start) = gaps.max()?;
    if space < length.checked_add(2 * page)? {
        return None;
    }
    let start = (start + (space - length) / 2) & !(page - 1);
    Some(AddrRange { start, end: start + length })
}

#[cfg(test)]
mod tests {
    use pagewise_proc::maps;

    use super::*;

    #[test]
    fn a_free_range_touches_no_mapping() {
        let text = b"5555555000-5555557000 r-xp 00000000 00:00 0\n7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n";
        let mappings = maps::parse(text).mappings;
        let range = free_range(&mappings, 1 << 20, 4096).unwrap();
        assert_eq!(range.len().0, 1 << 20);
        let wide = AddrRange { start: range.start - 4096, end: range.end + 4096 };
        assert!(mappings.iter().all(|it| it.range.intersection(wide).is_none()));
    }
}
