//! Functions by name, from the symbol tables of loaded files: for programs of glibc before 2.34
//! that have not loaded `libdl.so`, which has `dlsym` there.

use std::ffi::{CStr, c_int, c_void};

use crate::cfi::ImageBytes;

/// Tags of the dynamic section.
const STRINGS: u64 = 5;
const SYMBOLS: u64 = 6;
const GNU_HASH: u64 = 0x6fff_fef5;
const VERSIONS: u64 = 0x6fff_fff0;
/// Bytes of a symbol.
const SYMBOL: usize = 24;
/// Bit of a version that only older programs are bound to.
const HIDDEN: u16 = 0x8000;
/// Types of symbols.
const TLS: u8 = 6;
const IFUNC: u8 = 10;

struct SymbolSearch<'a> {
    name: &'a CStr,
    /// True until this library was visited, if only the files after it count.
    waits: bool,
    found: Option<SymbolAddress>,
}

/// Address of a symbol.
#[derive(Clone, Copy)]
struct SymbolAddress {
    address: usize,
    /// True if the address is that of a function that returns the address.
    is_resolver: bool,
}

/// The function of a name in the first file that has it, or in the first one after this library.
/// Null without one.
pub(crate) fn find(name: &CStr, behind_ours: bool) -> *mut c_void {
    let mut search = SymbolSearch { name, waits: behind_ours, found: None };
    // SAFETY: the function gets the search, which outlives the call, as its last argument.
    let _ = unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    let Some(found) = search.found else { return std::ptr::null_mut() };
    let address: *mut c_void = std::ptr::with_exposed_provenance_mut(found.address);
    if !found.is_resolver {
        return address;
    }
    type Resolver = unsafe extern "C" fn() -> *mut c_void;
    // SAFETY: a symbol of this type is a function without arguments that returns an address.
    let resolver = unsafe { std::mem::transmute::<*mut c_void, Resolver>(address) };
    // SAFETY: the loader calls it alike.
    unsafe { resolver() }
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call.
    let info = unsafe { &*info };
    // SAFETY: it is the argument of `find`, to which no other reference exists meanwhile.
    let search = unsafe { &mut *search.cast::<SymbolSearch<'_>>() };
    // SAFETY: the loader's table has this many program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as usize;
    let end = |header: &libc::Elf64_Phdr| {
        base.wrapping_add(header.p_vaddr as usize).wrapping_add(header.p_memsz as usize)
    };
    let is_loaded = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD;
    let start = headers.iter().filter(is_loaded).map(|header| header.p_vaddr as usize).min();
    let start = base.wrapping_add(start.unwrap_or(0));
    let end = headers.iter().filter(is_loaded).map(end).max().unwrap_or(start);
    if search.waits {
        search.waits = !(start..end).contains(&(visit as *const () as usize));
        return 0;
    }
    let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
    let Some(dynamic) = dynamic else { return 0 };
    // SAFETY: the file is mapped there, and the loader unloads none during the call.
    let image = unsafe { ImageBytes::new(start, end) };
    let tables = SymbolTables::read(&image, base, base.wrapping_add(dynamic.p_vaddr as usize));
    search.found = tables.and_then(|tables| tables.find(&image, base, search.name));
    c_int::from(search.found.is_some())
}

/// Addresses of the tables of a file.
#[derive(Default)]
struct SymbolTables {
    strings: usize,
    symbols: usize,
    hash: usize,
    versions: usize,
}

impl SymbolTables {
    fn read(image: &ImageBytes, base: usize, dynamic: usize) -> Option<SymbolTables> {
        let mut tables = SymbolTables::default();
        for at in (dynamic..).step_by(16) {
            let tag: u64 = image.read(at)?;
            let value = image.read::<u64>(at + 8)? as usize;
            // The loader has added the base, except in files that it may not write to.
            let value = if value < base { base + value } else { value };
            match tag {
                0 => break,
                STRINGS => tables.strings = value,
                SYMBOLS => tables.symbols = value,
                GNU_HASH => tables.hash = value,
                VERSIONS => tables.versions = value,
                _ => {}
            }
        }
        (tables.strings != 0 && tables.symbols != 0 && tables.hash != 0).then_some(tables)
    }

    fn find(&self, image: &ImageBytes, base: usize, name: &CStr) -> Option<SymbolAddress> {
        let wanted = gnu_hash(name);
        let [buckets, first, bloom, _]: [u32; 4] = image.read(self.hash)?;
        let table = self.hash + 16 + bloom as usize * 8;
        let bucket = table + wanted.checked_rem(buckets)? as usize * 4;
        let chains = table + buckets as usize * 4;
        let mut number = image.read::<u32>(bucket)?;
        if number == 0 {
            return None;
        }
        loop {
            let hash: u32 = image.read(chains + number.checked_sub(first)? as usize * 4)?;
            if hash | 1 == wanted | 1
                && let Some(found) = self.symbol(image, base, number as usize, name)
            {
                return Some(found);
            }
            if hash & 1 != 0 {
                return None;
            }
            number += 1;
        }
    }

    /// A symbol, if it has this name, is defined, and is what new programs are bound to.
    fn symbol(
        &self,
        image: &ImageBytes,
        base: usize,
        number: usize,
        name: &CStr,
    ) -> Option<SymbolAddress> {
        let at = self.symbols + number * SYMBOL;
        let text = self.strings + image.read::<u32>(at)? as usize;
        let name = name.to_bytes_with_nul();
        if image.bytes(text, name.len())? != name {
            return None;
        }
        let kind = image.read::<u8>(at + 4)? & 0xf;
        let is_defined = image.read::<u16>(at + 6)? != 0;
        let is_old =
            self.versions != 0 && image.read::<u16>(self.versions + number * 2)? & HIDDEN != 0;
        if !is_defined || is_old || kind == TLS {
            return None;
        }
        let address = base.wrapping_add(image.read::<u64>(at + 8)? as usize);
        Some(SymbolAddress { address, is_resolver: kind == IFUNC })
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes()
        .iter()
        .fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_those_of_dlsym() {
        for name in [c"malloc", c"free", c"getpid", c"memcpy", c"pthread_create", c"no_such_name"] {
            // SAFETY: the name ends with a zero.
            let theirs = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(find(name, false), theirs, "{name:?}");
            // SAFETY: as above.
            let theirs = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert_eq!(find(name, true), theirs, "{name:?}");
        }
    }
}
