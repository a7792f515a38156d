//! Memory errors that a pool detects, with the block and the source locations of its allocation and
//! its free.

use core::fmt;
use core::panic::Location;

/// A call site in one word, so that it fits into the guards beside blocks: the source location of a
/// caller in Rust, or the return address of a call in C. Zero is an unknown call site.
///
/// Release builds record no source locations, since their functions do not have `track_caller`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct CallSite(usize);

impl CallSite {
    /// An unknown call site.
    pub const NONE: CallSite = CallSite(0);

    /// Returns the source location of the caller of the calling function in debug builds, and
    /// [`CallSite::NONE`] in release builds.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn caller() -> CallSite {
        if cfg!(debug_assertions) {
            CallSite(core::ptr::from_ref(Location::caller()).expose_provenance())
        } else {
            CallSite::NONE
        }
    }

    /// Returns the call site of a return address.
    pub const fn return_address(address: usize) -> CallSite {
        CallSite(address << SHIFT | IS_ADDRESS)
    }

    /// Returns the call site that a word encodes.
    pub(crate) const fn from_word(word: usize) -> CallSite {
        CallSite(word)
    }

    /// Returns the word that encodes the call site, for checksums.
    pub(crate) const fn word(self) -> usize {
        self.0
    }

    fn address(self) -> Option<usize> {
        (self.0 & IS_ADDRESS != 0).then_some(self.0 >> SHIFT)
    }

    fn location(self) -> Option<&'static Location<'static>> {
        if self.address().is_some() {
            return None;
        }
        let location = core::ptr::with_exposed_provenance::<Location<'static>>(self.0);
        // SAFETY: the word is zero or the address of a `Location` of the program, which lives
        // forever.
        unsafe { location.as_ref() }
    }
}

/// Tag bit of a return address. This bit is 0 in the address of a `Location`, which is aligned to
/// words. Bit 0 is unused, so that code that stores the word may use it.
const IS_ADDRESS: usize = 2;
const SHIFT: u32 = 2;

/// Formats a source location as `FILE:LINE:COLUMN`, and a return address as the address followed by
/// its file and offset for `addr2line`.
impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.location() {
            return write!(f, "{location}");
        }
        let address = self.address().unwrap_or(0);
        write!(f, "{address:#x}")?;
        #[cfg(all(feature = "os", not(miri)))]
        object::write(f, address)?;
        Ok(())
    }
}

/// Names of code addresses, from the dynamic linker.
#[cfg(all(feature = "os", not(miri)))]
mod object {
    use core::ffi::{CStr, c_char};
    use core::fmt;

    /// Writes ` in FUNCTION (FILE+OFFSET)`, without the parts that the dynamic linker does not
    /// know.
    pub(super) fn write(f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
        // SAFETY: every field is an address, which may be null.
        let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
        // The return address of a call at the end of a function is the start of the next function.
        let inside = core::ptr::without_provenance(address.wrapping_sub(1));
        // SAFETY: the call reads tables of the dynamic linker and writes `info`.
        if unsafe { libc::dladdr(inside, &raw mut info) } == 0 {
            return Ok(());
        }
        if !info.dli_sname.is_null() {
            f.write_str(" in ")?;
            // SAFETY: the name is not NULL, and `dladdr` returns C strings.
            unsafe { name(f, info.dli_sname) }?;
        }
        if info.dli_fname.is_null() {
            return Ok(());
        }
        f.write_str(" (")?;
        // SAFETY: the file name is not NULL, and `dladdr` returns C strings.
        unsafe { name(f, info.dli_fname) }?;
        write!(f, "+{:#x})", address.wrapping_sub(info.dli_fbase.addr()))
    }

    /// # Safety
    /// `name` is a C string.
    unsafe fn name(f: &mut fmt::Formatter<'_>, name: *const c_char) -> fmt::Result {
        // SAFETY: the caller passes a string.
        let name = unsafe { CStr::from_ptr(name) };
        write!(f, "{}", name.to_bytes().escape_ascii())
    }
}

/// Kind of a memory error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// No live block begins at the address.
    NotABlock,
    /// The block was freed before.
    FreedBefore,
    /// The block was freed or resized with this size in bytes, which differs from its requested
    /// size.
    WrongSize(usize),
    /// Bytes before or behind the block were overwritten.
    Overwritten,
    /// The block was written to after it was freed.
    WrittenAfterFree,
}

/// A memory error in the use of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Misuse {
    /// Name of the kind of pool.
    pub pool: &'static str,
    /// Address that the caller passed.
    pub block: usize,
    /// Kind of the error.
    pub error: MemoryError,
    /// Requested size of the block in bytes; `None` if the pool does not know it.
    pub size: Option<usize>,
    /// Call site that allocated the block, and call site that freed it.
    pub sites: [CallSite; 2],
}

impl Misuse {
    /// Returns the error of an address that is not a block.
    pub(crate) const fn not_a_block(pool: &'static str, block: usize) -> Misuse {
        let (error, sites) = (MemoryError::NotABlock, [CallSite::NONE; 2]);
        Misuse { pool, block, error, size: None, sites }
    }

    /// Returns the error of a block that is free already.
    pub(crate) const fn freed_before(pool: &'static str, block: usize) -> Misuse {
        let error = MemoryError::FreedBefore;
        Misuse { error, ..Misuse::not_a_block(pool, block) }
    }

    /// Reports the error by a panic.
    ///
    /// # Panics
    /// Always panics.
    #[cold]
    #[track_caller]
    pub fn panic(self) -> ! {
        panic!("{self}")
    }

    /// Prints the error without an allocation, and aborts the process: for a global allocator,
    /// which must not unwind.
    #[cold]
    pub fn abort(self) -> ! {
        #[cfg(feature = "os")]
        {
            let mut text = FixedText { bytes: [0; 512], len: 0 };
            _ = fmt::write(&mut text, format_args!("{self}\n"));
            // SAFETY: the buffer has `len` bytes of text, and all of its bytes are initialized.
            unsafe { libc::write(libc::STDERR_FILENO, text.bytes.as_ptr().cast(), text.len) };
            // SAFETY: the call ends the process.
            unsafe { libc::abort() }
        }
        #[cfg(not(feature = "os"))]
        self.panic()
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Misuse { pool, block, error, size, sites: [allocated, freed] } = self;
        write!(f, "{pool}: {block:#x} ")?;
        match error {
            MemoryError::NotABlock => f.write_str("is not a block of this pool")?,
            MemoryError::FreedBefore => f.write_str("was freed before")?,
            MemoryError::WrongSize(given) => write!(f, "was not allocated with {given} bytes")?,
            MemoryError::Overwritten => f.write_str("was written beyond its bounds")?,
            MemoryError::WrittenAfterFree => f.write_str("was written to after it was freed")?,
        }
        if let Some(size) = size {
            write!(f, "; its size is {size} bytes")?;
        }
        for (what, site) in [("allocated", allocated), ("freed", freed)] {
            if *site != CallSite::NONE {
                write!(f, ", {what} at {site}")?;
            }
        }
        Ok(())
    }
}

/// Text in a buffer of fixed size; text beyond the size is cut off.
#[cfg(feature = "os")]
struct FixedText {
    bytes: [u8; 512],
    len: usize,
}

#[cfg(feature = "os")]
impl fmt::Write for FixedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.len..];
        let len = text.len().min(rest.len());
        rest[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;

    use super::*;

    #[test]
    fn an_error_names_the_block_its_size_and_its_call_sites() {
        let sites = [CallSite::caller(), CallSite::NONE];
        let error = MemoryError::FreedBefore;
        let misuse = Misuse { pool: "tlsf", block: 0x1000, error, size: Some(100), sites };
        let text = misuse.to_string();
        assert!(text.starts_with("tlsf: 0x1000 was freed before; its size is 100 bytes"), "{text}");
        assert_eq!(text.contains(", allocated at "), cfg!(debug_assertions), "{text}");
        assert!(!text.contains(", freed at "), "{text}");
    }

    #[test]
    #[cfg(all(feature = "os", not(miri)))]
    fn a_return_address_is_named_with_its_file_and_offset() {
        let address = a_return_address_is_named_with_its_file_and_offset as fn();
        let site = CallSite::return_address(address as usize + 1);
        assert_eq!(CallSite::from_word(site.word()), site);
        let text = site.to_string();
        let file = std::env::current_exe().unwrap();
        let file = file.file_name().unwrap().to_str().unwrap();
        assert!(text.starts_with("0x") && text.contains(file) && text.contains("+0x"), "{text}");
    }
}
