//! Files of code: the one that contains an address, and its unwind table.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering::{Relaxed, Release};

use pagewise_heaplog::tables::{MODULES, header, module};

use crate::cfi::ImageBytes;
use crate::kernel;
use crate::next_alloc;
use crate::objects;
use crate::rows;
use crate::shared;

/// An object of the loader that covers an address.
#[derive(Debug)]
pub(crate) struct LoaderObject {
    /// Its first address.
    pub start: usize,
    /// End of its addresses.
    pub end: usize,
    /// Address of its unwind table header.
    pub header: usize,
    /// Its memory.
    pub image: ImageBytes,
    map: *const LinkMap,
}

/// The first fields of `struct link_map` of `<link.h>`.
#[repr(C)]
#[derive(Debug)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
}

/// `struct dl_find_object` of `<dlfcn.h>` on x86-64.
#[repr(C)]
struct DlFindObject {
    flags: u64,
    start: *const c_void,
    end: *const c_void,
    map: *const LinkMap,
    header: *const c_void,
    reserved: [u64; 7],
}

pub(crate) type FindObject = unsafe extern "C" fn(*const c_void, *mut c_void) -> c_int;

/// The object that covers an address. It takes no lock of the loader's.
pub(crate) fn find(address: u64) -> Option<LoaderObject> {
    if next_alloc::find_object().is_some() {
        return find_by_loader(address);
    }
    let found = objects::find(usize::try_from(address).ok()?)?;
    let (start, end) = (found.start.load(Relaxed), found.end.load(Relaxed));
    // SAFETY: the object is mapped from start to end, and is not unloaded while its code is on this
    // thread's stack.
    let image = unsafe { ImageBytes::new(start, end) };
    let map = (&raw const found.link).cast();
    Some(LoaderObject { start, end, header: found.header.load(Relaxed), image, map })
}

/// The same by the loader's own table, which takes no lock (`_dl_find_object`, glibc 2.35).
pub(crate) fn find_by_loader(address: u64) -> Option<LoaderObject> {
    let find = next_alloc::find_object()?;
    let address: *const c_void = std::ptr::without_provenance(usize::try_from(address).ok()?);
    let mut found = std::mem::MaybeUninit::<DlFindObject>::zeroed();
    // SAFETY: the function writes what it found there, which is at least as large.
    if unsafe { find(address, found.as_mut_ptr().cast()) } != 0 {
        return None;
    }
    // SAFETY: all zeros is a value, and the call wrote over it.
    let found = unsafe { found.assume_init() };
    let (start, end) = (found.start.expose_provenance(), found.end.expose_provenance());
    // SAFETY: the object is mapped from start to end, and is not unloaded while its code is on this
    // thread's stack.
    let image = unsafe { ImageBytes::new(start, end) };
    Some(LoaderObject { start, end, header: found.header.addr(), image, map: found.map })
}

/// The module number of an object, which is assigned now if it has none; the lock of rows is held.
pub(crate) fn number(object: &LoaderObject) -> Option<u64> {
    let count = shared::head(header::MODULES).load(Relaxed);
    let used = usize::try_from(count).ok()?;
    let start = object.start as u64;
    for index in (0..used).rev() {
        if shared::module(index, module::START).load(Relaxed) == start
            && shared::module(index, GONE).load(Relaxed) == 0
        {
            return Some(index as u64);
        }
    }
    if used >= MODULES.room {
        return None;
    }
    // SAFETY: the loader keeps this while the object is loaded, which it is: its code is running.
    let bias = unsafe { (*object.map).bias };
    let path = path(object)?;
    let build_id = build_id(object, bias).unwrap_or(&[]);
    let set = |number, value| shared::module(used, number).store(value, Relaxed);
    set(module::START, start);
    set(module::END, object.end as u64);
    set(module::BIAS, bias as u64);
    set(module::PATH, shared::string(path)?);
    set(module::PATH_LENGTH, path.len() as u64);
    set(module::BUILD_ID, shared::string(build_id)?);
    set(module::BUILD_ID_LENGTH, build_id.len() as u64);
    set(GONE, 0);
    shared::head(header::MODULES).store(count + 1, Release);
    Some(count)
}

/// An object's path, as the loader has it; empty for the program itself.
pub(crate) fn path(object: &LoaderObject) -> Option<&'static [u8]> {
    // SAFETY: the loader keeps this while the object is loaded, which it is: its code is running.
    let name = unsafe { (*object.map).name };
    if name.is_null() {
        return Some(&[]);
    }
    // SAFETY: the loader's names end with a zero, and stay as long as the object.
    Some(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// The last word of a module, which only the recorder uses: 1 once it is unloaded.
const GONE: usize = 7;

/// Forgets what is known of objects that are not loaded any more.
pub(crate) fn forget_unloaded() {
    let _held = rows::LOCK.hold();
    objects::forget();
    let count = usize::try_from(shared::head(header::MODULES).load(Relaxed)).unwrap_or(0);
    for index in 0..count {
        let get = |number| shared::module(index, number).load(Relaxed);
        if get(GONE) != 0 {
            continue;
        }
        let there = find(get(module::START)).is_some_and(|object| {
            let is_same =
                object.start as u64 == get(module::START) && object.end as u64 == get(module::END);
            is_same && has_path(object.map, get(module::PATH), get(module::PATH_LENGTH))
        });
        if !there {
            shared::module(index, GONE).store(1, Relaxed);
            rows::forget(get(module::START), get(module::END));
        }
    }
}

/// True if `map` still belongs to an object with this path. The object may have been unloaded, and
/// another loaded in its place.
fn has_path(map: *const LinkMap, path: u64, length: u64) -> bool {
    const AT_A_TIME: usize = 128;
    let mut words = [0; size_of::<LinkMap>()];
    if kernel::read_own(map.addr(), &mut words).is_err() {
        return false;
    }
    let mut name = [0; 8];
    name.copy_from_slice(&words[std::mem::offset_of!(LinkMap, name)..][..8]);
    let name = usize::from_ne_bytes(name);
    let (path, length) = (path as usize, length as usize);
    let mut bytes = [0; AT_A_TIME];
    (0..length).step_by(AT_A_TIME).all(|from| {
        let piece = &mut bytes[..AT_A_TIME.min(length - from)];
        let is_read = kernel::read_own(name.wrapping_add(from), piece).is_ok();
        is_read && (path + from..).zip(piece.iter()).all(|(at, byte)| shared::byte(at) == *byte)
    })
}

/// The build ID of an object's notes.
fn build_id(object: &LoaderObject, bias: usize) -> Option<&'static [u8]> {
    const PROGRAM_HEADERS: usize = 0x20;
    const NOTE: u32 = 4;
    let image = &object.image;
    let magic: [u8; 4] = image.read(object.start)?;
    if magic != *b"\x7fELF" {
        return None;
    }
    let table: u64 = image.read(object.start + PROGRAM_HEADERS)?;
    let size: u16 = image.read(object.start + 0x36)?;
    let count: u16 = image.read(object.start + 0x38)?;
    let table = object.start.checked_add(usize::try_from(table).ok()?)?;
    for index in 0..usize::from(count) {
        let at = table.checked_add(index * usize::from(size))?;
        if image.read::<u32>(at)? != NOTE {
            continue;
        }
        let address: u64 = image.read(at + 0x10)?;
        let length: u64 = image.read(at + 0x28)?;
        let begin = bias.wrapping_add(usize::try_from(address).ok()?);
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        if let Some(id) = note(image, begin, end) {
            return Some(id);
        }
    }
    None
}

fn note(image: &ImageBytes, mut at: usize, end: usize) -> Option<&'static [u8]> {
    const BUILD_ID: u32 = 3;
    while at < end {
        let name: u32 = image.read(at)?;
        let length: u32 = image.read(at + 4)?;
        let kind: u32 = image.read(at + 8)?;
        let description = (at + 12).checked_add((name as usize).next_multiple_of(4))?;
        if kind == BUILD_ID && name == 4 && image.read::<[u8; 4]>(at + 12)? == *b"GNU\0" {
            return image.bytes(description, length as usize);
        }
        at = description.checked_add((length as usize).next_multiple_of(4))?;
    }
    None
}
