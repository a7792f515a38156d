//! The code of functions, from the mapped files. A file is opened on first use, if possible while
//! its process exists.

use std::rc::Rc;

use crate::files::{CodeFiles, OpenCodeFile};
use crate::spaces::Spaces;

/// Files with code.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    files: CodeFiles,
}

impl Codes {
    /// Code from the start of the function that contains an address up to the address; empty at the
    /// start of the function. `None` if no symbol covers the address, or its file is gone.
    pub(crate) fn of_function(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        address: u64,
    ) -> Option<Vec<u8>> {
        /// Maximum number of bytes of a function; the code of longer functions is not returned.
        const MAX_FUNCTION_BYTES: u64 = 1 << 20;
        let (file, offset) = self.file(spaces, pid, address)?;
        let length = |at: u64| Some(offset - at + file.since_start(at)?);
        // No symbol covers the address directly after the last instruction of a function, so the
        // lookup is repeated with the byte before it.
        let length = length(offset).or_else(|| length(offset.checked_sub(1)?))?;
        if length > MAX_FUNCTION_BYTES { None } else { self.before(spaces, pid, address, length) }
    }

    /// Bytes before an address.
    pub(crate) fn before(
        &mut self,
        spaces: &Spaces,
        pid: u32,
        address: u64,
        length: u64,
    ) -> Option<Vec<u8>> {
        let (file, offset) = self.file(spaces, pid, address)?;
        file.read(offset.checked_sub(length)?, length)
    }

    /// The file that is mapped at an address, and the offset in the file.
    fn file(&mut self, spaces: &Spaces, pid: u32, address: u64) -> Option<(Rc<OpenCodeFile>, u64)> {
        let region = spaces.find(pid, address).filter(|region| region.is_file())?;
        let file = self.files.get(pid, &region.name, region.id())?;
        Some((file, address - region.start + region.offset))
    }
}
