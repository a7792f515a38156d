//! `/proc/vmstat`, and every other file whose lines are a name and a number.

use pagewise_model::Name;
use pagewise_model::fragmentation::BootCounter;

use crate::text::{lines, number};

/// Parses a whole `vmstat`. A line that is not a name and a number, which no kernel writes, is
/// ignored.
pub fn parse(text: &[u8]) -> Vec<BootCounter> {
    lines(text).filter_map(|(_, line)| counted(line)).collect()
}

fn counted(line: &[u8]) -> Option<BootCounter> {
    let blank = memchr::memchr(b' ', line)?;
    Some(BootCounter { name: Name::new(&line[..blank]), count: number(&line[blank + 1..])? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_a_name_and_a_number() {
        let read = parse(b"nr_free_pages 7\nbroken\nthp_fault_alloc 18446744073709551615\n");
        let counted = |name: &str, count| BootCounter { name: name.into(), count };
        assert_eq!(read, [counted("nr_free_pages", 7), counted("thp_fault_alloc", u64::MAX)]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>) {
            let lines = text.iter().filter(|&&b| b == b'\n').count() + 1;
            prop_assert!(parse(&text).len() <= lines);
        }
    }
}
