//! The first words of large anonymous mappings, where glibc's malloc keeps the size of a chunk.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagewise_model::mapping::{Backing, Mapping, Sharing};
use pagewise_model::snapshot::MappingHead;
use pagewise_model::{Bytes, Name, PageSize, Pid};
use pagewise_sys::remote;

use crate::ProcRoot;

/// Minimum size of a mapping whose head is read. By default, glibc maps larger requests separately;
/// this threshold can be configured or adapt.
const LARGE: Bytes = Bytes::kib(128);

/// Bit 63 of a pagemap entry: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Reads the heads of all large private anonymous mappings whose first page is in memory.
///
/// A page that is not in memory is not read, because reading it would make it resident in the
/// target.
pub(crate) fn read(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    page_size: PageSize,
) -> Vec<MappingHead> {
    let Ok(pagemap) = root.open(pid, "pagemap") else { return Vec::new() };
    let large = mappings.iter().filter(|m| is_candidate(m)).map(|m| m.range.start);
    let present: Vec<u64> = large.filter(|&at| is_present(&pagemap, at, page_size)).collect();
    let Ok(words) = remote::read_each::<16>(pid.0, &present) else { return Vec::new() };
    let heads = present.iter().zip(words);
    heads
        .filter_map(|(&address, bytes)| Some(MappingHead { address, words: words_of(bytes?) }))
        .collect()
}

/// True for memory that may be a chunk or a heap of glibc.
pub(crate) fn is_candidate(mapping: &Mapping) -> bool {
    mapping.size() >= LARGE
        && mapping.sharing == Sharing::Private
        && mapping.prot.read
        && mapping.prot.write
        && mapping.backing() == Backing::Anonymous
        && is_unnamed(&mapping.name)
}

/// Returns true if malloc can have created a mapping of this name. Such a mapping has no name, or a
/// name such as `[anon:...]` in newer allocators.
fn is_unnamed(name: &Name) -> bool {
    name.is_empty() || name.as_bytes().starts_with(b"[anon:")
}

fn is_present(pagemap: &File, address: u64, page_size: PageSize) -> bool {
    let mut entry = [0; 8];
    let at = page_size.count(Bytes(address)).saturating_mul(8);
    pagemap.read_exact_at(&mut entry, at).is_ok() && u64::from_ne_bytes(entry) & PRESENT != 0
}

/// The two words of a head.
pub(crate) fn words_of(bytes: [u8; 16]) -> [u64; 2] {
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_ne_bytes(half.try_into().expect("half of 16 bytes are 8")))
}
