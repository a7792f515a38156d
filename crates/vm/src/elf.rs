//! Program headers of ELF files: the loader of a program, and the part of a file that is loaded.

/// Interpreter: path of the dynamic loader.
const PT_INTERP: u32 = 3;
/// Length of a program header of a 64-bit file.
const PROGRAM_HEADER: usize = 56;

/// The headers of a 64-bit little-endian ELF file. Every read is within the file.
struct ElfHeaders<'a>(&'a [u8]);

impl<'a> ElfHeaders<'a> {
    fn of(file: &'a [u8]) -> Option<ElfHeaders<'a>> {
        let is_elf = file.starts_with(b"\x7fELF\x02\x01") && file.len() >= 64;
        is_elf.then_some(ElfHeaders(file))
    }

    fn number<const N: usize>(&self, at: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.get_mut(..N)?.copy_from_slice(self.0.get(at..at.checked_add(N)?)?);
        Some(u64::from_le_bytes(bytes))
    }

    /// Type, offset of the content and size in the file of each program header.
    fn segments(&self) -> impl Iterator<Item = (u32, usize, usize)> {
        let table = self.number::<8>(0x20).and_then(|at| usize::try_from(at).ok());
        let count = self.number::<2>(0x38).unwrap_or_default();
        (0..count).filter_map(move |index| {
            let header =
                table?.checked_add(usize::try_from(index).ok()?.checked_mul(PROGRAM_HEADER)?)?;
            let kind = u32::try_from(self.number::<4>(header)?).ok()?;
            let offset = usize::try_from(self.number::<8>(header.checked_add(8)?)?).ok()?;
            let size = usize::try_from(self.number::<8>(header.checked_add(32)?)?).ok()?;
            Some((kind, offset, size))
        })
    }
}

/// True if a file is a 64-bit program that no dynamic loader has to load.
#[must_use]
pub fn is_static_program(file: &[u8]) -> bool {
    let headers = ElfHeaders::of(file);
    headers.is_some_and(|headers| headers.segments().all(|(kind, ..)| kind != PT_INTERP))
}

/// Path of the dynamic loader. `None` for static programs and other files.
pub(crate) fn interpreter(file: &[u8]) -> Option<&str> {
    let headers = ElfHeaders::of(file)?;
    let (_, offset, size) = headers.segments().find(|(kind, ..)| *kind == PT_INTERP)?;
    let path = file.get(offset..offset.checked_add(size)?)?;
    std::str::from_utf8(path.strip_suffix(&[0])?).ok()
}

/// The file without its sections that are not loaded: symbols and debug information. Other files
/// stay as they are.
pub(crate) fn without_symbols(mut file: Vec<u8>) -> Vec<u8> {
    let Some(headers) = ElfHeaders::of(&file) else { return file };
    let ends = headers.segments().filter_map(|(_, offset, size)| offset.checked_add(size));
    let table = headers.number::<8>(0x20).and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
    let count = headers.number::<2>(0x38).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let end = ends.max().unwrap_or(0).max(table.saturating_add(count * PROGRAM_HEADER));
    if end < 64 || end > file.len() {
        return file;
    }
    file.truncate(end);
    // `e_shoff`, `e_shnum` and `e_shstrndx`: the file has no sections any more.
    file[0x28..0x30].fill(0);
    file[0x3c..0x40].fill(0);
    file
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_without_symbols_runs() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let length = own.len();
        let bare = without_symbols(own);
        assert!(bare.len() < length);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bare");
        // Another process writes the program: a child that another test forks meanwhile would keep
        // a file open that this one writes, and nothing executes a file that is open for writing.
        let data = folder.path().join("data");
        fs::write(&data, bare).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").args([&data, &path]).status().unwrap().success());
        let listed = Command::new(&path).arg("--list").output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains("a_program_without_symbols_runs"));
    }

    #[test]
    fn other_files_stay_as_they_are() {
        for file in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", &[0xff; 100]] {
            assert_eq!(without_symbols(file.to_vec()), file);
            assert_eq!(interpreter(file), None);
            assert!(!is_static_program(file));
        }
        let mut hostile = b"\x7fELF\x02\x01".to_vec();
        hostile.resize(200, 0xff);
        assert_eq!(without_symbols(hostile.clone()), hostile);
        assert_eq!(interpreter(&hostile), None);
    }
}
