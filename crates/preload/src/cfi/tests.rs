//! Rows of unwind tables, against what readelf says of the same files.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "tests run in a program of their own"
)]
#![expect(clippy::print_stderr, reason = "a part of tests, which may do so")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use pagewise_skip::{Lack, skip_part};

use super::*;

/// A file as the loader would map it.
struct LoadedFile {
    memory: Vec<u8>,
    header: usize,
    /// The address in the file that the memory begins with.
    base: usize,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> usize {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    usize::try_from(u64::from_le_bytes(word)).unwrap()
}

impl LoadedFile {
    fn open(path: &Path) -> LoadedFile {
        const LOAD: usize = 1;
        const EH_FRAME: usize = 0x6474_e550;
        let file = std::fs::read(path).unwrap();
        let (table, size, count) =
            (number::<8>(&file, 0x20), number::<2>(&file, 0x36), number::<2>(&file, 0x38));
        let (mut memory, mut header, mut base) = (Vec::new(), 0, usize::MAX);
        for entry in (0..count).map(|index| table + index * size) {
            let at = |offset: usize| number::<8>(&file, entry + offset);
            let (offset, address, in_file, in_memory) = (at(8), at(16), at(32), at(40));
            match number::<4>(&file, entry) {
                LOAD => {
                    base = base.min(address);
                    let address = address - base;
                    memory.resize(memory.len().max(address + in_memory), 0);
                    memory[address..address + in_file]
                        .copy_from_slice(&file[offset..offset + in_file]);
                }
                EH_FRAME => header = address,
                _ => {}
            }
        }
        LoadedFile { memory, header: header - base, base }
    }

    fn row(&self, address: usize) -> UnwindRow {
        let start = self.memory.as_ptr().expose_provenance();
        // SAFETY: the memory belongs to this value, and no thread changes it.
        let image = unsafe { ImageBytes::new(start, start + self.memory.len()) };
        row(&image, start + self.header, start + address - self.base)
    }
}

/// Row that readelf prints for an address. Unchanged registers have no entry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    end: String,
    frame_pointer: Option<String>,
    back: Option<String>,
}

impl Said {
    /// True if readelf's row agrees with ours.
    fn is(&self, row: UnwindRow) -> bool {
        let words = |offset: u16| i64::from(offset) * 8;
        let frame = |saved: u16| match self.frame_pointer.as_deref() {
            None | Some("u" | "s") => saved == 0,
            Some("exp") => i64::from(saved) == SAVED_HERE,
            Some(at) => at == std::format!("c{:+}", -words(saved)),
        };
        let back = self.back.as_deref() == Some("c-8");
        match row {
            UnwindRow::Stack { offset, saved } => {
                back && self.end == std::format!("rsp+{}", words(offset)) && frame(saved)
            }
            UnwindRow::Frame { offset, saved } => {
                back && self.end == std::format!("rbp+{}", words(offset)) && frame(saved)
            }
            UnwindRow::Behind { saved, .. } => back && self.end == "exp" && frame(saved),
            UnwindRow::End => self.back.as_deref() == Some("u"),
            UnwindRow::Signal | UnwindRow::Unknown => false,
        }
    }
}

/// Compares every `step`th row of a file. Returns the number of compared rows, and the number of
/// unknown ones among them; `None` without readelf or without the file.
fn compare(path: &Path, step: usize) -> Option<(usize, usize)> {
    let path = std::fs::canonicalize(path).ok()?;
    let mut readelf = Command::new("readelf")
        .args(["--wide", "--debug-dump=frames-interp"])
        .arg(&path)
        .env("LC_ALL", "C")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mapped = LoadedFile::open(&path);
    let (mut compared, mut unknown, mut plain, mut seen) = (0, 0, 0, 0);
    let mut columns: Vec<String> = Vec::new();
    let mut is_signal = false;
    let mut entry = (0, 0);
    for line in BufReader::new(readelf.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((_, range)) = line.split_once(" pc=") {
            let (from, to) = range.split_once("..").unwrap();
            let address = |digits: &str| usize::from_str_radix(digits.trim(), 16).unwrap();
            entry = (address(from), address(to));
            continue;
        }
        if line.contains(" CIE ") {
            is_signal = line.contains("S\"") || line.contains("S ");
            entry = (0, 0);
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"LOC") {
            columns = words.iter().map(|&word| word.to_owned()).collect();
            continue;
        }
        let address = words.first().and_then(|word| usize::from_str_radix(word, 16).ok());
        // A row may begin behind what its entry covers, where padding follows.
        let Some(address) = address.filter(|&at| entry.0 <= at && at < entry.1) else { continue };
        if words.len() != columns.len() || is_signal {
            continue;
        }
        seen += 1;
        if seen % step != 0 {
            continue;
        }
        let column = |name: &str| {
            let index = columns.iter().position(|column| column == name)?;
            Some(words[index].to_owned())
        };
        let said =
            Said { end: words[1].to_owned(), frame_pointer: column("rbp"), back: column("ra") };
        let row = mapped.row(address);
        compared += 1;
        if row == UnwindRow::Unknown {
            unknown += 1;
            continue;
        }
        assert!(said.is(row), "{}: {address:#x}: {row:?}, and readelf {said:?}", path.display());
        assert_eq!(UnwindRow::unpack(row.pack()), row, "{}: {address:#x}", path.display());
        plain += usize::from(UnwindRow::unpack_plain(row.pack()).is_some());
    }
    readelf.wait().unwrap();
    std::eprintln!("{}: {compared} rows, {unknown} of them unknown", path.display());
    // Most rows have the fast form, `PLAIN`.
    assert!(plain > compared / 2, "{}: {plain} of {compared}", path.display());
    (compared > 0).then_some((compared, unknown))
}

/// Rows at the limits of the packed form.
#[test]
fn rows_come_out_of_words_as_they_went_in() {
    let saved_here = SAVED_HERE as u16;
    for offset in [0, 1, 2, 5, PLAIN_END - 1, PLAIN_END, u16::MAX] {
        for saved in [0, 1, 2, 5, saved_here - 1, saved_here] {
            let row = UnwindRow::Stack { offset, saved };
            assert_eq!(UnwindRow::unpack(row.pack()), row);
            let is_plain =
                offset > 0 && offset < PLAIN_END && saved <= offset && saved < saved_here;
            let expected = is_plain.then_some((offset, saved));
            assert_eq!(UnwindRow::unpack_plain(row.pack()), expected, "{row:?}");
            let row = UnwindRow::Frame { offset, saved };
            assert_eq!(UnwindRow::unpack(row.pack()), row);
            assert_eq!(UnwindRow::unpack_plain(row.pack()), None);
        }
        assert_eq!(
            UnwindRow::Stack { offset, saved: saved_here + 1 }.pack(),
            0,
            "nothing is known of it"
        );
    }
    for row in [
        UnwindRow::Behind { offset: -4, saved: 2 },
        UnwindRow::Signal,
        UnwindRow::End,
        UnwindRow::Unknown,
    ] {
        assert_eq!(UnwindRow::unpack(row.pack()), row);
        assert_eq!(UnwindRow::unpack_plain(row.pack()), None);
    }
}

/// Path of a file that the compiler prints.
fn of_compiler(words: &str) -> Option<String> {
    let output = Command::new("gcc").arg(words).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[test]
fn every_row_is_as_readelf_says() {
    let library = "/lib/x86_64-linux-gnu/libc.so.6";
    let cxx = of_compiler("-print-file-name=libstdc++.so.6").unwrap_or_default();
    let all = [library, "/lib64/libc.so.6", &cxx, "/usr/bin/python3"];
    for path in all.into_iter().filter(|path| Path::new(path).exists()) {
        let Some((compared, unknown)) = compare(Path::new(path), 1) else {
            skip_part(&Lack::Machine(&format!("readelf prints no unwind tables of {path}")));
            continue;
        };
        assert!(unknown * 100 < compared, "{path}: {unknown} of {compared} rows are unknown");
    }
}

#[test]
fn rows_of_a_large_program_are_as_readelf_says() {
    let Some(path) = of_compiler("-print-prog-name=cc1plus") else { return };
    let Some((compared, unknown)) = compare(Path::new(&path), 7) else { return };
    assert!(unknown * 1000 < compared, "{unknown} of {compared} rows are unknown");
}

/// Reproducible pseudorandom numbers.
struct CfiRandom(u64);

impl CfiRandom {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end
    }
}

#[test]
fn a_table_that_was_written_over_is_read_without_harm() {
    let Ok(path) = std::env::current_exe() else { return };
    let mut mapped = LoadedFile::open(&path);
    let mut chance = CfiRandom(0x1234_5678_9abc_def1);
    let length = mapped.memory.len();
    for _ in 0..2000 {
        // Near the header, where the search table and most entries are.
        for _ in 0..20 {
            let at = (mapped.header + chance.below(1 << 16)) % length;
            mapped.memory[at] = u8::try_from(chance.below(256)).unwrap();
        }
        for _ in 0..20 {
            let _ = mapped.row(mapped.base + chance.below(length));
        }
    }
    // Nor is a table read beyond the end of its memory.
    mapped.memory.truncate(mapped.header + 100);
    for _ in 0..100 {
        let _ = mapped.row(mapped.base + chance.below(length));
    }
}
