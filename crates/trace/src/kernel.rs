//! The kernel's own functions by address: `/proc/kallsyms`.

use std::io;

use pagewise_model::{Absent, Reading};

/// Functions by address.
#[derive(Debug, Default)]
pub struct KernelFunctions {
    /// Start of each function, and the range of its name in `names`, by address.
    starts: Vec<(u64, usize, usize)>,
    names: String,
}

impl KernelFunctions {
    /// Functions of the running kernel.
    ///
    /// # Errors
    /// [`Absent`] if the kernel has no `/proc/kallsyms` or hides the addresses.
    pub fn read() -> Reading<KernelFunctions> {
        let text = std::fs::read("/proc/kallsyms").map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Absent::NotSupported("/proc/kallsyms does not exist".into()),
            _ => Absent::NotPermitted("root".into()),
        })?;
        let functions = KernelFunctions::parse(&text);
        if functions.starts.is_empty() {
            let needs = "CAP_SYSLOG, and kernel.kptr_restrict below 2";
            return Err(Absent::NotPermitted(needs.into()));
        }
        Ok(functions)
    }

    /// Parses lines of an address, a letter for the symbol type, a name, and the module in brackets
    /// if there is one. Symbols that are not functions or lack an address are ignored.
    fn parse(text: &[u8]) -> KernelFunctions {
        let mut functions = KernelFunctions::default();
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let mut words = line.split_ascii_whitespace();
            let Some((address, kind, name)) =
                words.next().zip(words.next()).zip(words.next()).map(|((a, k), n)| (a, k, n))
            else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap_or(0);
            if address > 0 && matches!(kind, "t" | "T" | "w" | "W") {
                let start = functions.names.len();
                functions.names.push_str(name);
                functions.starts.push((address, start, functions.names.len()));
            }
        }
        functions.starts.sort_by_key(|(address, ..)| *address);
        functions
    }

    /// The function that an address is in: the last that begins at or before it.
    pub fn find(&self, address: u64) -> Option<&str> {
        let behind = self.starts.partition_point(|(start, ..)| *start <= address);
        let (_, from, to) = *self.starts.get(behind.checked_sub(1)?)?;
        self.names.get(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_last_function_before_it() {
        let text = b"ffffffff81000020 T second\nffffffff81000010 t first\nffffffff81000018 d data\nbroken\n";
        let functions = KernelFunctions::parse(text);
        assert_eq!(functions.find(0xffff_ffff_8100_0010), Some("first"));
        assert_eq!(functions.find(0xffff_ffff_8100_001f), Some("first"));
        assert_eq!(functions.find(0xffff_ffff_8100_0020), Some("second"));
        assert_eq!(functions.find(0xffff_ffff_8100_000f), None);
    }

    #[test]
    fn hidden_addresses_are_none() {
        assert!(KernelFunctions::parse(b"0000000000000000 T first\n").starts.is_empty());
    }
}
