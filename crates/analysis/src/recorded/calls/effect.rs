//! Effect of a call on an address space, computed from its arguments and its result.

use pagewise_model::calls::{
    CallDetail, CallRecording, MAP_ANONYMOUS, MemoryCall, MemoryCallKind, ProgramImage,
};
use pagewise_model::{AddrRange, Bytes, Name};

use super::space::AddressSpace;
use super::words::{MAP_FIXED, MAP_HUGETLB, MREMAP_DONTUNMAP, SHM_REMAP, huge_size};

/// Effect of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallEffect {
    /// Bytes of memory that the call names; `None` if it names none or failed.
    pub(super) bytes: Option<u64>,
    /// Change of VIRT in bytes; `None` if unknown.
    pub(super) change: Option<i64>,
}

/// The sizes that lengths are rounded up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    page: u64,
    /// Default size of huge pages, for flags that name none.
    huge: u64,
}

impl Rounding {
    pub(super) fn from_recording(recording: &CallRecording) -> Rounding {
        let page = recording.page_size.bytes();
        let huge = recording.huge_page.as_ref().map_or(page, |huge| huge.0);
        Rounding { page, huge }
    }

    fn up(self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.page).unwrap_or(u64::MAX)
    }

    /// The range of whole pages at an address.
    fn range(self, start: u64, bytes: u64) -> AddrRange {
        AddrRange { start, end: start.saturating_add(self.up(bytes)) }
    }

    /// The range that `mmap` with those flags makes.
    fn mapped(self, start: u64, bytes: u64, flags: u64) -> AddrRange {
        if flags & MAP_HUGETLB == 0 || flags & MAP_ANONYMOUS == 0 {
            return self.range(start, bytes);
        }
        let size = huge_size(flags).unwrap_or(self.huge).max(self.page);
        let bytes = bytes.checked_next_multiple_of(size).unwrap_or(u64::MAX);
        self.range(start, bytes)
    }
}

/// The address space of a program at its start.
pub(super) fn space_of(image: &ProgramImage) -> AddressSpace {
    let mut space = AddressSpace::default();
    space.brk = image.brk.clone().ok();
    for mapped in image.mapped.as_deref().unwrap_or_default() {
        space.replace(mapped.range, &mapped.name);
    }
    space
}

/// Applies the effect of a call that began at `time_ns` to a space.
pub(super) fn apply(
    call: &MemoryCall,
    time_ns: u64,
    space: &mut AddressSpace,
    rounding: Rounding,
) -> CallEffect {
    let Ok(result) = call.result else {
        return CallEffect { bytes: None, change: Some(0) };
    };
    let before = space.size();
    let moved = SpaceChange { call, result, began_ns: time_ns, space, rounding };
    let (bytes, is_known) = moved.apply();
    let change = i128::from(space.size()) - i128::from(before);
    let change = i64::try_from(change).unwrap_or(if change < 0 { i64::MIN } else { i64::MAX });
    CallEffect { bytes, change: is_known.then_some(change) }
}

/// A call that succeeded, and the space that it changes.
struct SpaceChange<'a> {
    call: &'a MemoryCall,
    result: u64,
    began_ns: u64,
    space: &'a mut AddressSpace,
    rounding: Rounding,
}

impl SpaceChange<'_> {
    /// Returns the bytes that the call names, and whether its effect is known.
    fn apply(mut self) -> (Option<u64>, bool) {
        let [first, second, third, ..] = self.call.arguments;
        let bytes = match self.call.kind {
            MemoryCallKind::Brk => return self.brk(first),
            MemoryCallKind::Mmap => self.mmap(second),
            MemoryCallKind::Munmap => {
                self.space.remove(self.rounding.range(first, second), self.began_ns);
                Some(second)
            }
            MemoryCallKind::Mremap => self.mremap(first, second, third),
            MemoryCallKind::Shmat => self.shmat(third),
            MemoryCallKind::Shmdt => self.shmdt(),
            MemoryCallKind::MapShadowStack => {
                let range = self.rounding.range(self.result, second);
                self.place(range, &Name::default());
                Some(second)
            }
            MemoryCallKind::ProcessMadvise => Some(self.result),
            kind => names_a_size(kind).then_some(second),
        };
        (bytes, true)
    }

    fn place(&mut self, range: AddrRange, name: &Name) {
        self.space.place(range, name, self.call.done_ns);
    }

    /// The call returns the present break; it does not fail, but may leave the break unchanged.
    fn brk(&mut self, wanted: u64) -> (Option<u64>, bool) {
        let Some(before) = self.space.brk.replace(self.result) else {
            return (None, wanted == 0);
        };
        let [old, new] = [before, self.result].map(|at| self.rounding.up(at));
        if new > old {
            self.space.replace(AddrRange { start: old, end: new }, &"[heap]".into());
        } else {
            self.space.remove(AddrRange { start: new, end: old }, self.began_ns);
        }
        (Some(before.abs_diff(self.result)), true)
    }

    fn mmap(&mut self, length: u64) -> Option<u64> {
        let flags = self.call.arguments[3];
        let range = self.rounding.mapped(self.result, length, flags);
        let name = match &self.call.about {
            CallDetail::File(name) => name.clone(),
            CallDetail::Nothing | CallDetail::Text(_) | CallDetail::Pieces(_) => Name::default(),
        };
        self.put(range, &name, flags & MAP_FIXED != 0);
        Some(length)
    }

    /// Maps a range: over existing mappings if the caller fixed the address, else at an address
    /// that the kernel chose.
    fn put(&mut self, range: AddrRange, name: &Name, is_fixed: bool) {
        if is_fixed { self.space.replace(range, name) } else { self.place(range, name) }
    }

    /// The mappings move with their holes; a mapping grows at its end.
    fn mremap(&mut self, old: u64, old_size: u64, new_size: u64) -> Option<u64> {
        let flags = self.call.arguments[3];
        let is_fixed = flags & super::words::MREMAP_FIXED != 0;
        let from = self.rounding.range(old, old_size);
        let to = self.rounding.range(self.result, new_size);
        let pieces = if flags & MREMAP_DONTUNMAP != 0 {
            self.space.pieces_in(from)
        } else {
            self.space.remove(from, self.began_ns)
        };
        if is_fixed {
            self.space.remove(to, self.began_ns);
        }
        let name = pieces.last().map(|(_, name)| name.clone()).unwrap_or_default();
        for (piece, name) in &pieces {
            let shift = |at: u64| to.start.saturating_add(at - from.start).min(to.end);
            let there = AddrRange { start: shift(piece.start), end: shift(piece.end) };
            self.put(there, name, is_fixed);
        }
        let grown =
            AddrRange { start: to.start.saturating_add(from.len().0).min(to.end), end: to.end };
        self.put(grown, &name, is_fixed);
        Some(new_size)
    }

    fn pieces(&self) -> &[AddrRange] {
        match &self.call.about {
            CallDetail::Pieces(pieces) => pieces,
            CallDetail::Nothing | CallDetail::File(_) | CallDetail::Text(_) => &[],
        }
    }

    fn shmat(&mut self, flags: u64) -> Option<u64> {
        let pieces = self.pieces().to_vec();
        for &piece in &pieces {
            self.put(piece, &"/SYSV".into(), flags & SHM_REMAP != 0);
        }
        Some(size_of_all(&pieces))
    }

    fn shmdt(&mut self) -> Option<u64> {
        let pieces = self.pieces().to_vec();
        for &piece in &pieces {
            self.space.remove(piece, self.began_ns);
        }
        Some(size_of_all(&pieces))
    }
}

fn size_of_all(pieces: &[AddrRange]) -> u64 {
    pieces.iter().map(|piece| piece.len()).sum::<Bytes>().0
}

/// True if the second argument of a call is a size in bytes.
fn names_a_size(kind: MemoryCallKind) -> bool {
    matches!(
        kind,
        MemoryCallKind::Mprotect
            | MemoryCallKind::PkeyMprotect
            | MemoryCallKind::Madvise
            | MemoryCallKind::Msync
            | MemoryCallKind::Mlock
            | MemoryCallKind::Mlock2
            | MemoryCallKind::Munlock
            | MemoryCallKind::Mincore
            | MemoryCallKind::Mseal
            | MemoryCallKind::RemapFilePages
            | MemoryCallKind::Shmget
            | MemoryCallKind::Mbind
    )
}
