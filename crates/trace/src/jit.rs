//! What a just-in-time compiler says of its code: `/tmp/perf-<pid>.map`, in the process's own view of the file system.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Functions by address.
#[derive(Debug, Default)]
pub(crate) struct Map {
    /// Start, end and name, by start.
    functions: Vec<(u64, u64, String)>,
}

/// Larger files are not read.
const LARGEST: u64 = 256 << 20;

impl Map {
    /// What a process says; nothing where it says nothing.
    pub(crate) fn of(pid: u32) -> Map {
        let (inner, root) = (inner_pid(pid), format!("/proc/{pid}/root"));
        let name = format!("/tmp/perf-{inner}.map");
        let paths = [format!("{root}{name}"), name];
        // Anyone may write to /tmp: what another user wrote there says nothing of this process.
        let owner = fs::metadata(format!("/proc/{pid}")).map(|it| it.uid());
        let owners = [owner.ok(), Some(0), Some(rustix::process::geteuid().as_raw())];
        let read = |path: &String| {
            let file = fs::metadata(path).ok()?;
            let is_its = file.is_file() && owners.contains(&Some(file.uid()));
            (is_its && file.len() <= LARGEST).then(|| fs::read(path).ok())?
        };
        paths.iter().find_map(read).map_or_else(Map::default, |text| Map::parse(&text))
    }

    /// Lines of a start, a size, both hexadecimal, and a name. What is no such line is left out; of two functions at one
    /// place the later is the one that is there.
    fn parse(text: &[u8]) -> Map {
        let parsed = text.split(|byte| *byte == b'\n').filter_map(|line| {
            let line = String::from_utf8_lossy(line);
            let mut words = line.splitn(3, ' ');
            let mut number =
                || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
            let (start, size) = (number()?, number()?);
            Some((start, start.checked_add(size)?, words.next()?.to_owned()))
        });
        let mut functions: Vec<(u64, u64, String)> = parsed.collect();
        functions.sort_by_key(|(start, ..)| *start);
        Map { functions }
    }

    /// The function that an address is in.
    pub(crate) fn find(&self, address: u64) -> Option<&str> {
        let behind = self.functions.partition_point(|(start, ..)| *start <= address);
        let (_, end, name) = self.functions.get(behind.checked_sub(1)?)?;
        (address < *end).then_some(name)
    }
}

/// The number that a process has where it is: the last of `NSpid`.
fn inner_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.and_then(|line| line.split_whitespace().last()?.parse().ok()).unwrap_or(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_names_the_function_around_an_address_and_the_later_of_two() {
        let map = Map::parse(b"1000 10 first one\nnonsense\n0x2000 20 second\n2000 20 third\n");
        assert_eq!(map.find(0x100f), Some("first one"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x2001), Some("third"));
        assert_eq!(map.find(0xfff), None);
    }
}
