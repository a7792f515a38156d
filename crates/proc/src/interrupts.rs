//! `/proc/interrupts`: how often a kind of interrupt came, over all CPUs.

use crate::text::{field, lines, number};

/// The sum of the row of that name, such as `TLB`. `None` where there is none.
pub fn parse(text: &[u8], row: &str) -> Option<u64> {
    let rows = lines(text).filter_map(|(_, line)| field(line.trim_ascii_start()));
    let (_, counts) = rows.into_iter().find(|(name, _)| *name == row.as_bytes())?;
    let counts = counts.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    // Words that say what it is follow the counts, one for each CPU.
    let mut counts = counts.map_while(number).peekable();
    counts.peek()?;
    Some(counts.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_counts_of_all_cpus_are_added() {
        let text = b"           CPU0       CPU1       \n 24:  1  0  IO-APIC   5-edge\nTLB:     717340     690277   TLB shootdowns\n";
        assert_eq!(parse(text, "TLB"), Some(717_340 + 690_277));
        assert_eq!(parse(text, "24"), Some(1));
        assert_eq!(parse(text, "RES"), None);
        assert_eq!(parse(b"TLB: shootdowns\n", "TLB"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(\n *TLB:[ 0-9]{0,50}){0,3}") {
            let _ = parse(&[&text[..], tail.as_bytes()].concat(), "TLB");
        }
    }
}
