//! Symbols of a just-in-time compiler: `/tmp/perf-<pid>.map`, in the process's own root and under
//! the PID that the process has there. A file of the same name in another root belongs to another
//! process.
//!
//! Every user may write to `/tmp`: the map is read only if the process's user owns it and its name
//! is not a link. It may grow while it is read; the part read up to the limits is used.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

use pagewise_model::Pid;
use pagewise_proc::ProcRoot;
use pagewise_proc::target_file::TargetRoot;

/// Maximum number of bytes of a file; a larger file is not read.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum number of functions of a file that are kept. [`MAX_NAMES`] is the maximum number of
/// bytes of their names. With both maxima, a map takes 64 MiB.
const MAX_FUNCTIONS: usize = 1 << 20;
const MAX_NAMES: usize = 40 << 20;
/// Maximum number of bytes of a line; longer lines are cut.
const MAX_LINE: u64 = 4 << 10;

/// Location of a process's map. The root is kept open, since the process may end first.
#[derive(Debug)]
pub(crate) struct JitOrigin {
    root: TargetRoot,
    path: PathBuf,
    owners: Vec<u32>,
}

impl JitOrigin {
    /// Location for a running process. `None` if the process does not exist.
    pub(crate) fn of_process(pid: u32) -> Option<JitOrigin> {
        let live = ProcRoot::live();
        let root = TargetRoot::of_process(&live, Pid(pid)).ok()?;
        let status = live.read(Pid(pid), "status").ok()?;
        let status = String::from_utf8_lossy(&status);
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The PID in the innermost namespace is the last number.
        let inner: u32 = line("NSpid:")?.split_whitespace().next_back()?.parse().ok()?;
        let owners = line("Uid:")?.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        Some(JitOrigin { root, path: format!("/tmp/perf-{inner}.map").into(), owners })
    }

    /// The map as it is now.
    pub(crate) fn read(&self) -> Option<JitMap> {
        let file = self.root.open_owned(&self.path, &self.owners, MAX_BYTES).ok()?;
        Some(JitMap::parse(BufReader::new(file.take(MAX_BYTES))))
    }
}

#[derive(Clone, Copy, Debug)]
struct JitFunction {
    start: u64,
    end: u64,
    /// Offset of the function's name.
    name: u32,
    length: u32,
}

/// Functions by address.
#[derive(Debug, Default)]
pub(crate) struct JitMap {
    /// The functions, in order of their start address.
    functions: Vec<JitFunction>,
    names: Vec<u8>,
}

impl JitMap {
    /// Parses lines of a start, a size (both hexadecimal), and a name. Other lines are ignored; of
    /// two functions at one address the later is valid.
    fn parse(mut text: impl BufRead) -> JitMap {
        let mut map = JitMap::default();
        let mut line = Vec::new();
        while map.functions.len() < MAX_FUNCTIONS && map.names.len() < MAX_NAMES {
            line.clear();
            match text.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            } else if line.len() as u64 == MAX_LINE && text.skip_until(b'\n').is_err() {
                break;
            }
            map.add(&line);
        }
        map.functions.sort_by_key(|it| it.start);
        map
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let mut number = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()
        };
        let (start, size) = (number()?, number()?);
        let (end, text) = (start.checked_add(size)?, words.next()?);
        let name = u32::try_from(self.names.len()).ok()?;
        self.names.extend_from_slice(text);
        let length = u32::try_from(text.len()).ok()?;
        self.functions.push(JitFunction { start, end, name, length });
        Some(())
    }

    /// The function that an address is in.
    pub(crate) fn find(&self, address: u64) -> Option<String> {
        let behind = self.functions.partition_point(|it| it.start <= address);
        let JitFunction { end, name, length, .. } = *self.functions.get(behind.checked_sub(1)?)?;
        let name = self.names.get(name as usize..)?.get(..length as usize)?;
        (address < end).then(|| String::from_utf8_lossy(name).into_owned())
    }

    /// Number of bytes of memory that the map takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.functions.len() * size_of::<JitFunction>() + self.names.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &[u8]) -> JitMap {
        JitMap::parse(text)
    }

    #[test]
    fn a_map_names_the_function_around_an_address_and_the_later_of_two() {
        let map = map(b"1000 10 first one\nnonsense\n0x2000 20 second\n2000 20 third\n");
        assert_eq!(map.find(0x100f).as_deref(), Some("first one"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x2001).as_deref(), Some("third"));
        assert_eq!(map.find(0xfff), None);
    }

    #[test]
    fn long_lines_are_cut_and_the_next_is_whole() {
        let long = "x".repeat(3 * usize::try_from(MAX_LINE).unwrap());
        let map = map(format!("1000 10 {long}\n2000 10 next\n3000 10 cut off").as_bytes());
        assert_eq!(map.find(0x1000).unwrap().len() as u64, MAX_LINE - "1000 10 ".len() as u64);
        assert_eq!(map.find(0x2000).as_deref(), Some("next"));
        assert_eq!(map.find(0x3000).as_deref(), Some("cut off"));
    }

    #[test]
    fn a_file_without_end_is_read_up_to_the_limits() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                let line = format!("{:x} 10 name of a function\n", self.0 * 16);
                self.0 += 1;
                let length = line.len().min(to.len());
                to[..length].copy_from_slice(&line.as_bytes()[..length]);
                Ok(length)
            }
        }
        let map = JitMap::parse(BufReader::new(Endless(0)));
        assert!(map.functions.len() <= MAX_FUNCTIONS);
        assert!(map.bytes() <= 80 << 20, "{}", map.bytes());
    }
}
