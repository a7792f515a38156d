//! The recorder that programs load: part of this program, or a file.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pagewise_heaplog::tables;

use crate::recorder_cache;

/// The recorder that this crate was built with; empty on other machines.
static RECORDER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libpagewise_preload.so"));

/// Hash of its contents in hexadecimal digits.
const CONTENTS: &str = env!("PAGEWISE_RECORDER_CONTENTS");

/// File name of the recorder.
pub(crate) const NAME: &str = tables::RECORDER_FILE;

/// Location of the recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecorderLibrary {
    /// In this program.
    Own,
    /// A file.
    File(PathBuf),
}

/// The recorder: the file that `PAGEWISE_PRELOAD` names, or the embedded one. `None` on machines
/// without a recorder.
pub fn library() -> Option<RecorderLibrary> {
    if let Some(path) = std::env::var_os("PAGEWISE_PRELOAD") {
        return Some(RecorderLibrary::File(path.into()));
    }
    (!RECORDER.is_empty()).then_some(RecorderLibrary::Own)
}

impl RecorderLibrary {
    /// Its bytes.
    pub(crate) fn contents(&self) -> io::Result<Cow<'static, [u8]>> {
        match self {
            RecorderLibrary::File(path) => fs::read(path).map(Cow::Owned),
            RecorderLibrary::Own => Ok(Cow::Borrowed(RECORDER)),
        }
    }

    /// Path from which a program can load it, permanent if possible; a file in `folder` if no
    /// permanent location is writable.
    pub(crate) fn place(&self, folder: &Path) -> io::Result<PathBuf> {
        match self {
            RecorderLibrary::File(path) => fs::canonicalize(path),
            RecorderLibrary::Own => {
                if let Some(path) = recorder_cache::keep(RECORDER, CONTENTS) {
                    return Ok(path);
                }
                let path = folder.join(NAME);
                fs::write(&path, RECORDER)?;
                Ok(path)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use object::read::elf::{ElfFile64, FileHeader};
    use object::{Endianness, Object, ObjectSymbol};

    use super::*;

    /// Functions that glibc 2.17 has in libc.so, and that musl has.
    const EVERYWHERE: &[&str] = &[
        "__errno_location",
        "__tls_get_addr",
        "abort",
        "bcmp",
        "clock_gettime",
        "close",
        "dl_iterate_phdr",
        "getauxval",
        "getcwd",
        "getenv",
        "lseek64",
        "memcpy",
        "memmove",
        "memset",
        "open64",
        "read",
        "readlink",
        "realpath",
        "sigdelset",
        "strlen",
        "syscall",
        "write",
        "writev",
    ];

    #[test]
    fn the_recorder_needs_no_version_of_a_c_library() {
        if RECORDER.is_empty() {
            return;
        }
        // The ELF reader requires aligned bytes, which an allocation has.
        let bytes = RECORDER.to_vec();
        let data = bytes.as_slice();
        let file = ElfFile64::<Endianness>::parse(data).unwrap();
        let symbols = file.dynamic_symbols();
        let needed = symbols.filter(|symbol| symbol.is_undefined() && !symbol.is_weak());
        for symbol in needed {
            let name = symbol.name().unwrap();
            assert!(name.is_empty() || EVERYWHERE.contains(&name), "{name}");
        }
        let (endian, header) = (file.endian(), file.elf_header());
        let sections = header.sections(endian, data).unwrap();
        assert!(sections.gnu_verneed(endian, data).unwrap().is_none(), "versions of symbols");
        let (dynamic, _) = sections.dynamic(endian, data).unwrap().unwrap();
        let is_library = |tag| tag == u64::from(object::elf::DT_NEEDED);
        assert!(!dynamic.iter().any(|entry| is_library(entry.d_tag.get(endian))), "libraries");
    }
}
