//! The code of functions, from the files that it is mapped from. A file is opened when it is first met, best while its
//! process is there.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use pagewise_model::Name;

use crate::files;
use crate::spaces::Spaces;

/// Files with code.
#[derive(Debug)]
pub(crate) struct Codes {
    symbolizer: Symbolizer,
    files: HashMap<(Name, u64), Option<File>>,
}

impl Default for Codes {
    fn default() -> Codes {
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false);
        Codes { symbolizer: symbolizer.build(), files: HashMap::new() }
    }
}

impl Codes {
    /// From the start of the function that an address is in up to the address: nothing at its start. `None` where no symbol
    /// covers it, or its file is gone.
    pub(crate) fn of_function(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        address: u64,
    ) -> Option<Vec<u8>> {
        /// Functions are shorter.
        const LONGEST: u64 = 1 << 20;
        let (file, offset) = self.file(spaces, pid, address)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let source = Source::Elf(Elf::new(path));
        let length = |at: u64| {
            let found = self.symbolizer.symbolize_single(&source, Input::FileOffset(at)).ok()?;
            let Symbolized::Sym(symbol) = found else { return None };
            Some(offset - at.saturating_sub(symbol.offset as u64))
        };
        // Behind the last instruction of a function no symbol covers the place.
        let length = length(offset).or_else(|| length(offset.checked_sub(1)?))?;
        if length > LONGEST { None } else { self.before(spaces, pid, address, length) }
    }

    /// So many bytes before an address.
    pub(crate) fn before(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        address: u64,
        length: u64,
    ) -> Option<Vec<u8>> {
        let (file, offset) = self.file(spaces, pid, address)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        file.read_exact_at(&mut bytes, offset.checked_sub(length)?).ok()?;
        Some(bytes)
    }

    /// The file that an address is in, and where.
    fn file(&mut self, spaces: &Spaces, pid: u32, address: u64) -> Option<(&File, u64)> {
        let region = spaces.find(pid, address).filter(|region| region.is_file())?;
        let key = (region.name.clone(), region.inode);
        let file =
            self.files.entry(key).or_insert_with(|| files::open(pid, &region.name, region.inode));
        Some((file.as_ref()?, address - region.start + region.offset))
    }
}
