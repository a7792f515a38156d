//! Arguments of calls in words: flags, protections, advice, files. The numeric values are those of
//! x86-64 and aarch64.

use std::fmt::Write;

use pagewise_model::Name;
use pagewise_model::calls::{CallDetail, MemoryCall, MemoryCallKind};

pub(super) const MAP_FIXED: u64 = 0x10;
pub(super) const MAP_HUGETLB: u64 = 0x4_0000;
pub(super) const MREMAP_FIXED: u64 = 2;
pub(super) const MREMAP_DONTUNMAP: u64 = 4;
pub(super) const SHM_REMAP: u64 = 0o40_000;

/// Format of an argument in words.
#[derive(Clone, Copy)]
enum Arg {
    /// An address.
    Pointer,
    /// An address that has a meaning only if the preceding argument contains one of these flags.
    PointerIf(u64),
    /// A decimal number.
    Number,
    /// A signed decimal number of 32 bits.
    Int,
    /// A hexadecimal number.
    Hex,
    /// A file descriptor, with the name of its file if the name is known.
    File,
    /// A pointer to a text; the text is written if it is known.
    Text,
    /// One of several names of values.
    One(&'static [(u64, &'static str)]),
    /// Names of bits, joined by `|`.
    Flags(&'static [(u64, &'static str)]),
    /// Names of bits, joined by `|`, with the size of huge pages.
    HugeFlags(&'static [(u64, &'static str)]),
    /// Names of bits, joined by `|`; the lowest bits are the permissions of a file.
    Mode(&'static [(u64, &'static str)]),
}

const PROT: Arg = Arg::Flags(&[
    (0, "PROT_NONE"),
    (1, "PROT_READ"),
    (2, "PROT_WRITE"),
    (4, "PROT_EXEC"),
    (8, "PROT_SEM"),
    (0x0100_0000, "PROT_GROWSDOWN"),
    (0x0200_0000, "PROT_GROWSUP"),
]);

const MAP: Arg = Arg::HugeFlags(&[
    (3, "MAP_SHARED_VALIDATE"),
    (1, "MAP_SHARED"),
    (2, "MAP_PRIVATE"),
    (MAP_FIXED, "MAP_FIXED"),
    (0x0000_0020, "MAP_ANONYMOUS"),
    (0x0000_0040, "MAP_32BIT"),
    (0x0000_0080, "MAP_ABOVE4G"),
    (0x0000_0100, "MAP_GROWSDOWN"),
    (0x0000_0800, "MAP_DENYWRITE"),
    (0x0000_1000, "MAP_EXECUTABLE"),
    (0x0000_2000, "MAP_LOCKED"),
    (0x0000_4000, "MAP_NORESERVE"),
    (0x0000_8000, "MAP_POPULATE"),
    (0x0001_0000, "MAP_NONBLOCK"),
    (0x0002_0000, "MAP_STACK"),
    (MAP_HUGETLB, "MAP_HUGETLB"),
    (0x0008_0000, "MAP_SYNC"),
    (0x0010_0000, "MAP_FIXED_NOREPLACE"),
]);

const MREMAP: Arg = Arg::Flags(&[
    (1, "MREMAP_MAYMOVE"),
    (MREMAP_FIXED, "MREMAP_FIXED"),
    (MREMAP_DONTUNMAP, "MREMAP_DONTUNMAP"),
]);

const ADVICE: Arg = Arg::One(ADVICE_NAMES);

const ADVICE_NAMES: &[(u64, &str)] = &[
    (0, "MADV_NORMAL"),
    (1, "MADV_RANDOM"),
    (2, "MADV_SEQUENTIAL"),
    (3, "MADV_WILLNEED"),
    (4, "MADV_DONTNEED"),
    (8, "MADV_FREE"),
    (9, "MADV_REMOVE"),
    (10, "MADV_DONTFORK"),
    (11, "MADV_DOFORK"),
    (12, "MADV_MERGEABLE"),
    (13, "MADV_UNMERGEABLE"),
    (14, "MADV_HUGEPAGE"),
    (15, "MADV_NOHUGEPAGE"),
    (16, "MADV_DONTDUMP"),
    (17, "MADV_DODUMP"),
    (18, "MADV_WIPEONFORK"),
    (19, "MADV_KEEPONFORK"),
    (20, "MADV_COLD"),
    (21, "MADV_PAGEOUT"),
    (22, "MADV_POPULATE_READ"),
    (23, "MADV_POPULATE_WRITE"),
    (24, "MADV_DONTNEED_LOCKED"),
    (25, "MADV_COLLAPSE"),
    (100, "MADV_HWPOISON"),
    (101, "MADV_SOFT_OFFLINE"),
    (102, "MADV_GUARD_INSTALL"),
    (103, "MADV_GUARD_REMOVE"),
];

/// Returns the name of an advice of `madvise`.
pub(crate) fn advice(number: u64) -> Option<&'static str> {
    ADVICE_NAMES.iter().find(|(known, _)| *known == number).map(|(_, word)| *word)
}

const MSYNC: Arg = Arg::Flags(&[(1, "MS_ASYNC"), (2, "MS_INVALIDATE"), (4, "MS_SYNC")]);
const MLOCK: Arg = Arg::Flags(&[(1, "MLOCK_ONFAULT")]);
const MLOCKALL: Arg = Arg::Flags(&[(1, "MCL_CURRENT"), (2, "MCL_FUTURE"), (4, "MCL_ONFAULT")]);
const KEY: Arg = Arg::One(&[(0, "IPC_PRIVATE")]);
const SHMGET: Arg = Arg::Mode(&[
    (0o1000, "IPC_CREAT"),
    (0o2000, "IPC_EXCL"),
    (0o4000, "SHM_HUGETLB"),
    (0o10_000, "SHM_NORESERVE"),
]);
const SHMAT: Arg = Arg::Flags(&[
    (0o10_000, "SHM_RDONLY"),
    (0o20_000, "SHM_RND"),
    (SHM_REMAP, "SHM_REMAP"),
    (0o100_000, "SHM_EXEC"),
]);
const SHMCTL: Arg = Arg::One(&[
    (0, "IPC_RMID"),
    (1, "IPC_SET"),
    (2, "IPC_STAT"),
    (3, "IPC_INFO"),
    (11, "SHM_LOCK"),
    (12, "SHM_UNLOCK"),
    (13, "SHM_STAT"),
    (14, "SHM_INFO"),
    (15, "SHM_STAT_ANY"),
]);
const MEMFD: Arg = Arg::HugeFlags(&[
    (1, "MFD_CLOEXEC"),
    (2, "MFD_ALLOW_SEALING"),
    (4, "MFD_HUGETLB"),
    (8, "MFD_NOEXEC_SEAL"),
    (16, "MFD_EXEC"),
]);
const OPEN: Arg =
    Arg::Flags(&[(1, "UFFD_USER_MODE_ONLY"), (0o4000, "O_NONBLOCK"), (0o2_000_000, "O_CLOEXEC")]);
const ARCH: Arg = Arg::One(&[
    (0x1001, "ARCH_SET_GS"),
    (0x1002, "ARCH_SET_FS"),
    (0x1003, "ARCH_GET_FS"),
    (0x1004, "ARCH_GET_GS"),
    (0x1011, "ARCH_GET_CPUID"),
    (0x1012, "ARCH_SET_CPUID"),
    (0x1021, "ARCH_GET_XCOMP_SUPP"),
    (0x1022, "ARCH_GET_XCOMP_PERM"),
    (0x1023, "ARCH_REQ_XCOMP_PERM"),
    (0x2001, "ARCH_MAP_VDSO_X32"),
    (0x2002, "ARCH_MAP_VDSO_32"),
    (0x2003, "ARCH_MAP_VDSO_64"),
    (0x3001, "ARCH_CET_STATUS"),
    (0x4001, "ARCH_GET_UNTAG_MASK"),
    (0x4002, "ARCH_ENABLE_TAGGED_ADDR"),
    (0x5001, "ARCH_SHSTK_ENABLE"),
    (0x5002, "ARCH_SHSTK_DISABLE"),
    (0x5003, "ARCH_SHSTK_LOCK"),
    (0x5004, "ARCH_SHSTK_UNLOCK"),
    (0x5005, "ARCH_SHSTK_STATUS"),
]);
const POLICY: Arg = Arg::One(&[
    (0, "MPOL_DEFAULT"),
    (1, "MPOL_PREFERRED"),
    (2, "MPOL_BIND"),
    (3, "MPOL_INTERLEAVE"),
    (4, "MPOL_LOCAL"),
    (5, "MPOL_PREFERRED_MANY"),
    (6, "MPOL_WEIGHTED_INTERLEAVE"),
]);
const MOVE: Arg =
    Arg::Flags(&[(1, "MPOL_MF_STRICT"), (2, "MPOL_MF_MOVE"), (4, "MPOL_MF_MOVE_ALL")]);
const SHADOW_STACK: Arg = Arg::Flags(&[(1, "SHADOW_STACK_SET_TOKEN")]);

/// Returns the formats of the arguments of a call.
const fn shape(kind: MemoryCallKind) -> &'static [Arg] {
    use Arg::{File, Hex, Int, Number, Pointer, PointerIf, Text};
    match kind {
        MemoryCallKind::Brk | MemoryCallKind::Shmdt => &[Pointer],
        MemoryCallKind::Mmap => &[Pointer, Number, PROT, MAP, File, Hex],
        MemoryCallKind::Munmap | MemoryCallKind::Mlock | MemoryCallKind::Munlock => {
            &[Pointer, Number]
        }
        MemoryCallKind::Mremap => {
            &[Pointer, Number, Number, MREMAP, PointerIf(MREMAP_FIXED | MREMAP_DONTUNMAP)]
        }
        MemoryCallKind::Mprotect => &[Pointer, Number, PROT],
        MemoryCallKind::PkeyMprotect => &[Pointer, Number, PROT, Int],
        MemoryCallKind::Madvise => &[Pointer, Number, ADVICE],
        MemoryCallKind::ProcessMadvise => &[Int, Pointer, Number, ADVICE, Hex],
        MemoryCallKind::Msync => &[Pointer, Number, MSYNC],
        MemoryCallKind::Mlock2 => &[Pointer, Number, MLOCK],
        MemoryCallKind::Mlockall => &[MLOCKALL],
        MemoryCallKind::Munlockall => &[],
        MemoryCallKind::Mincore => &[Pointer, Number, Pointer],
        MemoryCallKind::Mseal => &[Pointer, Number, Hex],
        MemoryCallKind::RemapFilePages => &[Pointer, Number, PROT, Number, MAP],
        MemoryCallKind::Shmget => &[KEY, Number, SHMGET],
        MemoryCallKind::Shmat => &[Int, Pointer, SHMAT],
        MemoryCallKind::Shmctl => &[Int, SHMCTL, Pointer],
        MemoryCallKind::MemfdCreate => &[Text, MEMFD],
        MemoryCallKind::MemfdSecret | MemoryCallKind::Userfaultfd => &[OPEN],
        MemoryCallKind::ArchPrctl => &[ARCH, Pointer],
        MemoryCallKind::SetMempolicy => &[POLICY, Pointer, Number],
        MemoryCallKind::Mbind => &[Pointer, Number, POLICY, Pointer, Number, MOVE],
        MemoryCallKind::MigratePages => &[Int, Number, Pointer, Pointer],
        MemoryCallKind::MovePages => &[Int, Number, Pointer, Pointer, Pointer, MOVE],
        MemoryCallKind::MapShadowStack => &[Pointer, Number, SHADOW_STACK],
    }
}

pub(super) fn returns_an_address(kind: MemoryCallKind) -> bool {
    use MemoryCallKind::{Brk, MapShadowStack, Mmap, Mremap, Shmat};
    matches!(kind, Brk | Mmap | Mremap | Shmat | MapShadowStack)
}

/// Writes the arguments of a call in words. The result is a [`Name`], because it may contain the
/// name of a file.
pub(super) fn arguments(call: &MemoryCall) -> Name {
    let mut words = Vec::new();
    let mut before = 0;
    for (&arg, &value) in shape(call.kind).iter().zip(&call.arguments) {
        if let Arg::PointerIf(flags) = arg
            && before & flags == 0
        {
            break;
        }
        if !words.is_empty() {
            words.extend_from_slice(b", ");
        }
        match (arg, &call.about) {
            (Arg::File, CallDetail::File(name)) => {
                words.extend_from_slice(format!("{}<", int(value)).as_bytes());
                words.extend_from_slice(name.as_bytes());
                words.push(b'>');
            }
            (Arg::Text, CallDetail::Text(text)) => {
                words.push(b'"');
                words.extend_from_slice(text.as_bytes());
                words.push(b'"');
            }
            _ => words.extend_from_slice(word(arg, value).as_bytes()),
        }
        before = value;
    }
    Name::new(&words)
}

fn word(arg: Arg, value: u64) -> String {
    match arg {
        Arg::Pointer | Arg::PointerIf(_) | Arg::Text if value == 0 => "NULL".to_owned(),
        Arg::Pointer | Arg::PointerIf(_) | Arg::Text => format!("{value:#x}"),
        Arg::Hex if value == 0 => "0".to_owned(),
        Arg::Hex => format!("{value:#x}"),
        Arg::Number => value.to_string(),
        Arg::Int | Arg::File => int(value).to_string(),
        Arg::One(words) => one(words, value),
        Arg::Flags(words) => flags(words, value),
        Arg::HugeFlags(words) => huge_flags(words, value),
        Arg::Mode(words) => format!("{}{:#o}", join(flags(words, value & !0o777)), value & 0o777),
    }
}

fn int(value: u64) -> i32 {
    // The kernel reads the lower half of the register.
    let low = value.to_ne_bytes();
    let low = if cfg!(target_endian = "little") { &low[..4] } else { &low[4..] };
    low.try_into().map_or(0, i32::from_ne_bytes)
}

fn one(words: &[(u64, &'static str)], value: u64) -> String {
    let known = words.iter().find(|(number, _)| *number == value);
    known.map_or_else(|| format!("{value:#x}"), |(_, word)| (*word).to_owned())
}

/// Writes the names of the bits, joined by `|`, and bits without a name in hex. For the value 0,
/// writes the name of the value, or `0` if it has no name.
fn flags(words: &[(u64, &'static str)], value: u64) -> String {
    let mut left = value;
    let mut text = String::new();
    for &(bits, word) in words.iter().filter(|(bits, _)| *bits != 0) {
        if left & bits == bits {
            left &= !bits;
            text = join(text) + word;
        }
    }
    let nothing = words.iter().find(|(bits, _)| *bits == 0).map_or("0", |(_, word)| word);
    match (left, text.is_empty()) {
        (0, true) => nothing.to_owned(),
        (0, false) => text,
        _ => join(text) + &format!("{left:#x}"),
    }
}

/// Returns `text` followed by `|`; an empty text if `text` is empty or `0`.
fn join(mut text: String) -> String {
    match text.as_str() {
        "" => {}
        "0" => text.clear(),
        _ => text.push('|'),
    }
    text
}

/// Position and mask of the bits of flags that hold the binary logarithm of the huge page size
/// (`MAP_HUGE_SHIFT`, `MAP_HUGE_MASK`).
const HUGE_SHIFT: u32 = 26;
const HUGE_MASK: u64 = 0x3f;

/// Returns the size of huge pages that the flags name; `None` if they name no size.
pub(super) fn huge_size(flags: u64) -> Option<u64> {
    match flags >> HUGE_SHIFT & HUGE_MASK {
        0 => None,
        power => 1_u64.checked_shl(u32::try_from(power).ok()?),
    }
}

fn huge_flags(words: &[(u64, &'static str)], value: u64) -> String {
    let Some(size) = huge_size(value) else { return flags(words, value) };
    // The prefix is that of the huge page flag: `MAP_HUGE_2MB` for `MAP_HUGETLB`, `MFD_HUGE_2MB`
    // for `MFD_HUGETLB`.
    let prefix = words.first().map_or("MAP", |(_, word)| &word[..3]);
    let (number, unit) = match size.trailing_zeros() {
        30.. => (size >> 30, "GB"),
        20.. => (size >> 20, "MB"),
        _ => (size >> 10, "KB"),
    };
    let mut text = join(flags(words, value & !(HUGE_MASK << HUGE_SHIFT)));
    write!(text, "{prefix}_HUGE_{number}{unit}").expect("a String takes all");
    text
}

/// Returns the name of an error number.
pub(super) fn error(number: i32) -> String {
    let known = ERRORS.iter().find(|(errno, _)| *errno == number);
    known.map_or_else(|| format!("error {number}"), |(_, name)| (*name).to_owned())
}

/// Errors that memory calls return, and the kernel's internal errors for calls that it restarts.
const ERRORS: &[(i32, &str)] = &[
    (1, "EPERM"),
    (2, "ENOENT"),
    (3, "ESRCH"),
    (4, "EINTR"),
    (5, "EIO"),
    (6, "ENXIO"),
    (7, "E2BIG"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (17, "EEXIST"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (23, "ENFILE"),
    (24, "EMFILE"),
    (26, "ETXTBSY"),
    (28, "ENOSPC"),
    (34, "ERANGE"),
    (38, "ENOSYS"),
    (43, "EIDRM"),
    (75, "EOVERFLOW"),
    (95, "EOPNOTSUPP"),
    (133, "EHWPOISON"),
    (512, "ERESTARTSYS"),
    (513, "ERESTARTNOINTR"),
    (514, "ERESTARTNOHAND"),
    (516, "ERESTART_RESTARTBLOCK"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn call(kind: MemoryCallKind, arguments: &[u64], about: CallDetail) -> MemoryCall {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        MemoryCall { kind, arguments: all, result: Ok(0), done_ns: 0, took_ns: 0, caller: 0, about }
    }

    fn text(kind: MemoryCallKind, values: &[u64]) -> String {
        arguments(&call(kind, values, CallDetail::Nothing)).escaped().into_owned()
    }

    #[test]
    fn arguments_read_as_in_the_source() {
        let minus_one = u64::from(u32::MAX);
        for (kind, values, words) in [
            (MemoryCallKind::Brk, &[0][..], "NULL"),
            (
                MemoryCallKind::Mmap,
                &[0, 8192, 3, 0x22, minus_one, 0],
                "NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0",
            ),
            (
                MemoryCallKind::Mmap,
                &[0x10_0000, 1, 0, 0x3 | 0x10 | 1 << 22, 7, 0x2000],
                "0x100000, 1, PROT_NONE, MAP_SHARED_VALIDATE|MAP_FIXED|0x400000, 7, 0x2000",
            ),
            (
                MemoryCallKind::Mmap,
                &[0, 1 << 21, 1, 0x4_0022 | 21 << 26, minus_one, 0],
                "NULL, 2097152, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS|MAP_HUGETLB|MAP_HUGE_2MB, -1, 0",
            ),
            (
                MemoryCallKind::MemfdCreate,
                &[0, 5 | 30 << 26],
                "NULL, MFD_CLOEXEC|MFD_HUGETLB|MFD_HUGE_1GB",
            ),
            (MemoryCallKind::Mremap, &[16, 1, 2, 1, 9], "0x10, 1, 2, MREMAP_MAYMOVE"),
            (
                MemoryCallKind::Mremap,
                &[16, 1, 2, 3, 9],
                "0x10, 1, 2, MREMAP_MAYMOVE|MREMAP_FIXED, 0x9",
            ),
            (MemoryCallKind::Madvise, &[16, 1, 4], "0x10, 1, MADV_DONTNEED"),
            (MemoryCallKind::Madvise, &[16, 1, 77], "0x10, 1, 0x4d"),
            (MemoryCallKind::Shmget, &[0, 9, 0o1600], "IPC_PRIVATE, 9, IPC_CREAT|0o600"),
            (MemoryCallKind::Shmget, &[5, 9, 0o600], "0x5, 9, 0o600"),
            (MemoryCallKind::Msync, &[16, 1, 6], "0x10, 1, MS_INVALIDATE|MS_SYNC"),
            (MemoryCallKind::ArchPrctl, &[0x1002, 64], "ARCH_SET_FS, 0x40"),
            (MemoryCallKind::Munlockall, &[], ""),
        ] {
            assert_eq!(text(kind, values), words);
        }
    }

    #[test]
    fn file_names_are_not_escaped_because_the_view_escapes_them() {
        let file = CallDetail::File(Name::new(b"/tmp/a\x1b[2J"));
        let mapped = arguments(&call(MemoryCallKind::Mmap, &[0, 1, 1, 2, 3, 0], file));
        assert_eq!(mapped.as_bytes(), b"NULL, 1, PROT_READ, MAP_PRIVATE, 3</tmp/a\x1b[2J>, 0");
        let made =
            arguments(&call(MemoryCallKind::MemfdCreate, &[16, 1], CallDetail::Text("x".into())));
        assert_eq!(made.as_bytes(), b"\"x\", MFD_CLOEXEC");
    }

    #[test]
    fn every_call_has_words_for_any_numbers() {
        for &kind in MemoryCallKind::ALL {
            for value in [0, 1, u64::MAX] {
                arguments(&call(kind, &[value; 6], CallDetail::Nothing));
            }
        }
    }
}
