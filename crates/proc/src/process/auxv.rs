//! `/proc/<pid>/auxv`: the kernel's data for a program at its start. Words of this machine's size.

/// `AT_BASE` and `AT_ENTRY` of `linux/auxvec.h`.
const BASE: u64 = 7;
const ENTRY: u64 = 9;

/// Addresses of the dynamic linker and of the program's entry point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Auxv {
    /// The dynamic linker's address; `None` of a static program.
    pub base: Option<u64>,
    /// The program's own first instruction.
    pub entry: Option<u64>,
}

/// Reads a whole `auxv`: pairs of a type and a value.
pub fn parse(bytes: &[u8]) -> Auxv {
    let (words, _) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let (pairs, _) = words.as_chunks::<2>();
    let value = |wanted| {
        let found = pairs.iter().find(|[kind, _]| *kind == wanted);
        found.map(|[_, value]| *value).filter(|value| *value != 0)
    };
    Auxv { base: value(BASE), entry: value(ENTRY) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words_to_bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_static_program_has_an_entry_and_no_linker() {
        let auxv = parse(&words_to_bytes(&[6, 4, BASE, 0, ENTRY, 77, 0, 0]));
        assert_eq!(auxv, Auxv { base: None, entry: Some(77) });
    }

    #[test]
    fn a_value_is_not_a_type() {
        let auxv = parse(&words_to_bytes(&[3, ENTRY, BASE, 5]));
        assert_eq!(auxv, Auxv { base: Some(5), entry: None });
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            parse(&bytes);
        }
    }
}
