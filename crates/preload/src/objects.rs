//! Lookup of ELF files of code by `/proc/self/maps` and ELF headers, for C libraries without
//! `_dl_find_object`. Other functions that find files take a lock of the loader, which a thread
//! inside `malloc` may already hold.

use std::ffi::c_char;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use crate::kernel::{self, OwnedFile};
use crate::lock::Lock;

/// Maximum number of files; code in further files is unknown.
const MAX_OBJECTS: usize = 1024;
/// Number of bytes for all paths together.
const PATH_BYTES: usize = 1 << 20;
/// Number of bytes of an entry in the program header table.
const PROGRAM_HEADER: usize = 56;
/// Number of program headers that are read at once.
const HEADERS_AT_A_TIME: usize = 16;

/// An ELF file of code. After its creation only `is_loaded` changes.
#[derive(Debug)]
pub(crate) struct CodeObject {
    /// Start of the file's addresses.
    pub start: AtomicUsize,
    /// End of the file's addresses.
    pub end: AtomicUsize,
    /// Address of the header of the file's unwind table; 0 if it has none.
    pub header: AtomicUsize,
    /// Words with the layout of [`crate::modules::LinkMap`].
    pub link: LinkWords,
    is_loaded: AtomicUsize,
}

/// The first words of `struct link_map`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LinkWords {
    bias: AtomicUsize,
    name: AtomicPtr<c_char>,
}

static OBJECTS: [CodeObject; MAX_OBJECTS] = [const {
    CodeObject {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        header: AtomicUsize::new(0),
        link: LinkWords { bias: AtomicUsize::new(0), name: AtomicPtr::new(std::ptr::null_mut()) },
        is_loaded: AtomicUsize::new(0),
    }
}; MAX_OBJECTS];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory for paths, each with a terminating zero byte.
static PATHS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static PATHS_USED: AtomicUsize = AtomicUsize::new(0);

/// Protects additions of files. A thread that holds it takes no other lock.
static LOCK: Lock = Lock::new();

/// Returns the file that contains an address.
pub(crate) fn find(address: usize) -> Option<&'static CodeObject> {
    known(address).or_else(|| learn(address))
}

/// Marks all files as not loaded, because one of them may be unloaded. The next search reads them
/// again.
pub(crate) fn forget() {
    let _held = LOCK.hold();
    for object in &OBJECTS[..COUNT.load(Relaxed)] {
        object.is_loaded.store(0, Release);
    }
}

/// Resets [`LOCK`] in a child of `fork`, where the thread that held it does not exist.
pub(crate) fn reset() {
    LOCK.reset();
}

fn known(address: usize) -> Option<&'static CodeObject> {
    OBJECTS[..COUNT.load(Acquire)].iter().find(|object| {
        object.is_loaded.load(Acquire) != 0
            && (object.start.load(Relaxed)..object.end.load(Relaxed)).contains(&address)
    })
}

#[cold]
#[inline(never)]
fn learn(address: usize) -> Option<&'static CodeObject> {
    let _held = LOCK.hold();
    if let Some(known) = known(address) {
        return Some(known);
    }
    let mut text = MapsText::open()?;
    loop {
        let line = text.line()?;
        // The first mapping of a file contains the ELF header, which determines the range of all
        // mappings of the file.
        if line.is_file && line.offset == 0 && line.start <= address {
            let layout = ElfLayout::read(line.start).filter(|layout| address < layout.end);
            if let Some(layout) = layout {
                let path = if layout.is_program { &[] } else { text.path()? };
                return add(&layout, path);
            }
        }
        text.skip_path()?;
    }
}

/// Adds a file, or marks a known file as loaded. The caller must hold [`LOCK`].
fn add(layout: &ElfLayout, path: &[u8]) -> Option<&'static CodeObject> {
    let count = COUNT.load(Relaxed);
    let is_same = |object: &&CodeObject| {
        object.start.load(Relaxed) == layout.start
            && object.end.load(Relaxed) == layout.end
            && object.header.load(Relaxed) == layout.header
            && has_path(object, path)
    };
    if let Some(object) = OBJECTS[..count].iter().find(is_same) {
        object.is_loaded.store(1, Release);
        return Some(object);
    }
    let object = OBJECTS.get(count)?;
    object.link.name.store(keep(path)?.cast(), Relaxed);
    object.link.bias.store(layout.bias, Relaxed);
    object.start.store(layout.start, Relaxed);
    object.end.store(layout.end, Relaxed);
    object.header.store(layout.header, Relaxed);
    object.is_loaded.store(1, Release);
    COUNT.store(count + 1, Release);
    Some(object)
}

fn has_path(object: &CodeObject, path: &[u8]) -> bool {
    let name = object.link.name.load(Relaxed);
    // SAFETY: paths end with a zero byte and are never unmapped.
    unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes() == path
}

/// Copies a path to memory that is never unmapped and is inherited by children of `fork`. Returns
/// `None` if the memory is full. The caller must hold [`LOCK`].
fn keep(path: &[u8]) -> Option<*mut u8> {
    if PATHS.load(Relaxed).is_null() {
        PATHS.store(kernel::private(PATH_BYTES).ok()?, Relaxed);
    }
    let used = PATHS_USED.load(Relaxed);
    let after = used.checked_add(path.len() + 1).filter(|&after| after <= PATH_BYTES)?;
    let to = PATHS.load(Relaxed).wrapping_add(used);
    // SAFETY: the memory has this number of unused zero bytes, which is one more than the length of
    // the path.
    unsafe { std::ptr::copy_nonoverlapping(path.as_ptr(), to, path.len()) };
    PATHS_USED.store(after, Relaxed);
    Some(to)
}

/// Address range of a loaded ELF file, from its headers in memory.
#[derive(Debug)]
struct ElfLayout {
    start: usize,
    end: usize,
    bias: usize,
    header: usize,
    is_program: bool,
}

impl ElfLayout {
    fn read(start: usize) -> Option<ElfLayout> {
        const LOAD: u32 = 1;
        const EH_FRAME: u32 = 0x6474_e550;
        let mut bytes = [0; 64];
        kernel::read_own(start, &mut bytes).ok()?;
        // The file must be a 64-bit little-endian ELF file.
        if bytes[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let table = start.checked_add(word(&bytes, 0x20)?)?;
        let size = usize::from(u16::from_le_bytes([bytes[0x36], bytes[0x37]]));
        let count = usize::from(u16::from_le_bytes([bytes[0x38], bytes[0x39]]));
        if size != PROGRAM_HEADER {
            return None;
        }
        let (mut low, mut high, mut unwind) = (usize::MAX, 0, None);
        let mut headers = [0; PROGRAM_HEADER * HEADERS_AT_A_TIME];
        for first in (0..count).step_by(HEADERS_AT_A_TIME) {
            let length = PROGRAM_HEADER * HEADERS_AT_A_TIME.min(count - first);
            let headers = headers.get_mut(..length)?;
            kernel::read_own(table + first * PROGRAM_HEADER, headers).ok()?;
            for header in headers.as_chunks::<PROGRAM_HEADER>().0 {
                let (address, length) = (word(header, 0x10)?, word(header, 0x28)?);
                match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
                    LOAD => {
                        low = low.min(address);
                        high = high.max(address.checked_add(length)?);
                    }
                    EH_FRAME => unwind = Some(address),
                    _ => {}
                }
            }
        }
        // SAFETY: `getauxval` only reads the auxiliary vector.
        let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
        // SAFETY: `getauxval` only reads the auxiliary vector.
        let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
        let bias = start.wrapping_sub(low & !(page - 1));
        let end = bias.wrapping_add(high);
        if low > high || end <= start {
            return None;
        }
        let header = unwind.map_or(0, |address| bias.wrapping_add(address));
        Some(ElfLayout { start, end, bias, header, is_program: program == table })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Parser of `/proc/self/maps` that reads the file by system calls only.
struct MapsText {
    file: OwnedFile,
    bytes: [u8; 512],
    at: usize,
    count: usize,
    /// Path of the last line whose path was read.
    path: [u8; MAX_PATH],
}

/// Maximum number of bytes of a path; a file with a longer path is unknown. The kernel permits
/// longer paths (`PATH_MAX`), but a thread's stack may be small.
const MAX_PATH: usize = 1024;

/// Fields of a line before its path.
struct MapsLine {
    start: usize,
    offset: usize,
    is_file: bool,
}

impl MapsText {
    fn open() -> Option<MapsText> {
        let file = OwnedFile::open(c"/proc/self/maps").ok()?;
        Some(MapsText { file, bytes: [0; 512], at: 0, count: 0, path: [0; MAX_PATH] })
    }

    fn peek(&mut self) -> Option<u8> {
        if self.at == self.count {
            self.count = self.file.read(&mut self.bytes).ok().filter(|&count| count > 0)?;
            self.at = 0;
        }
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// Reads a hexadecimal number and the character after it.
    fn number(&mut self) -> Option<usize> {
        let mut number = 0_usize;
        while let Some(digit) = char::from(self.next()?).to_digit(16) {
            number = number << 4 | digit as usize;
        }
        Some(number)
    }

    fn skip_field(&mut self) -> Option<()> {
        while self.next()? != b' ' {}
        Some(())
    }

    /// Reads the fields of the next line. The caller must then read or skip the path of this line.
    fn line(&mut self) -> Option<MapsLine> {
        let start = self.number()?;
        self.number()?;
        self.skip_field()?;
        let offset = self.number()?;
        // The device and the inode follow. Only files and special mappings of the kernel have a
        // path.
        self.skip_field()?;
        while self.peek()?.is_ascii_digit() {
            self.at += 1;
        }
        while self.peek()? == b' ' {
            self.at += 1;
        }
        let first = self.peek()?;
        if first == b'/' {
            return Some(MapsLine { start, offset, is_file: true });
        }
        // "[vdso]" is the only special mapping with an ELF header, which `ElfLayout::read` checks.
        Some(MapsLine { start, offset, is_file: first == b'[' })
    }

    /// Reads the path of the line whose other fields were read last.
    fn path(&mut self) -> Option<&[u8]> {
        let mut length = 0;
        loop {
            match self.next()? {
                b'\n' => return self.path.get(..length),
                byte => *self.path.get_mut(length)? = byte,
            }
            length += 1;
        }
    }

    fn skip_path(&mut self) -> Option<()> {
        while self.next()? != b'\n' {}
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_that_the_loader_has() {
        let ours = files_are_those_that_the_loader_has as *const () as usize;
        let libc = libc::getpid as *const () as usize;
        let mut compared = 0;
        for address in [ours, libc] {
            let object = find(address).expect("code is in a file");
            let Some(loaders) = crate::modules::find_by_loader(address as u64) else { continue };
            compared += 1;
            assert_eq!(object.start.load(Relaxed), loaders.start);
            assert_eq!(object.end.load(Relaxed), loaders.end);
            assert_eq!(object.header.load(Relaxed), loaders.header);
            // SAFETY: paths end with a zero byte and are never unmapped.
            let path = unsafe { std::ffi::CStr::from_ptr(object.link.name.load(Relaxed)) };
            let theirs = crate::modules::path(&loaders).unwrap();
            let real = std::fs::canonicalize(std::str::from_utf8(theirs).unwrap());
            let real = real.map(|path| path.to_str().unwrap().to_owned()).unwrap_or_default();
            assert_eq!(path.to_str().unwrap(), real);
        }
        // Before glibc 2.35 the loader has no table for the comparison.
        assert!(compared == 2 || compared == 0);
        let before = std::ptr::from_ref(find(libc).unwrap());
        forget();
        assert!(known(libc).is_none());
        assert!(std::ptr::eq(find(libc).unwrap(), before), "an entry is used again");
    }

    #[test]
    fn memory_without_a_file_is_unknown() {
        let local = 7;
        assert!(find(std::ptr::from_ref(&local) as usize).is_none());
        assert!(find(16).is_none());
    }
}
