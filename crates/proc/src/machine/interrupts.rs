//! `/proc/interrupts`: number of interrupts of a type, for each CPU or of all CPUs.

use crate::text::{field, lines, number};

/// Returns the counts of the row with this name, such as `TLB`: CPU number and count for each CPU
/// of the first line. Returns `None` if the row is missing.
pub fn by_cpu(text: &[u8], row: &str) -> Option<Vec<(u32, u64)>> {
    let head = text.split(|byte| *byte == b'\n').next()?;
    let cpus = head.split(u8::is_ascii_whitespace).filter_map(|word| word.strip_prefix(b"CPU"));
    let cpus = cpus.filter_map(|cpu| u32::try_from(number(cpu)?).ok());
    let counts = find(text, row)?;
    Some(cpus.zip(counts).collect())
}

/// Returns the sum of the row with this name, such as `TLB`. Returns `None` if the row is missing.
pub fn parse(text: &[u8], row: &str) -> Option<u64> {
    let mut counts = find(text, row)?.peekable();
    counts.peek()?;
    Some(counts.fold(0, u64::saturating_add))
}

/// The counts of a row, one for each CPU.
fn find<'t>(text: &'t [u8], row: &str) -> Option<impl Iterator<Item = u64> + use<'t>> {
    let rows = lines(text).filter_map(|(_, line)| field(line.trim_ascii_start()));
    let (_, counts) = rows.into_iter().find(|(name, _)| *name == row.as_bytes())?;
    let counts = counts.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    // A description of the interrupt follows the counts.
    Some(counts.map_while(number))
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
        assert_eq!(by_cpu(text, "TLB"), Some(vec![(0, 717_340), (1, 690_277)]));
        assert_eq!(by_cpu(text, "RES"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(\n *TLB:[ 0-9]{0,50}){0,3}") {
            let text = [&text[..], tail.as_bytes()].concat();
            let _ = (parse(&text, "TLB"), by_cpu(&text, "TLB"));
        }
    }
}
