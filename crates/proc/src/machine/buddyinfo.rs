//! `/proc/buddyinfo` and `/proc/pagetypeinfo`: free blocks by order, and by migrate type.

use pagewise_model::Name;
use pagewise_model::fragmentation::{PageTypes, TypedBlocks, TypedFree, Zone};

use crate::ProcError;
use crate::text::{lines, number};

/// Reads a whole `buddyinfo`.
///
/// # Errors
/// [`ProcError::Parse`] for a line that is not of a zone.
pub fn parse(text: &[u8]) -> Result<Vec<Zone>, ProcError> {
    lines(text).map(|(at, line)| zone(line).ok_or_else(|| bad("buddyinfo", at, line))).collect()
}

fn bad(file: &str, at: usize, line: &[u8]) -> ProcError {
    ProcError::parse(file, at, "Node N, zone NAME and counts", line)
}

/// `Node 0, zone   Normal  25466  13078 ..`
fn zone(line: &[u8]) -> Option<Zone> {
    let (node, name, rest) = zone_start(line)?;
    let free: Option<Vec<u64>> = split_words(rest).map(number).collect();
    Some(Zone { node, name: Name::new(name), free: free? })
}

/// The node, the zone and what follows.
fn zone_start(line: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let rest = line.strip_prefix(b"Node")?;
    let comma = memchr::memchr(b',', rest)?;
    let node = u32::try_from(number(&rest[..comma])?).ok()?;
    let rest = rest[comma + 1..].trim_ascii_start().strip_prefix(b"zone")?.trim_ascii_start();
    let end = rest.iter().position(|&b| b == b' ' || b == b',').unwrap_or(rest.len());
    (end > 0).then(|| (node, &rest[..end], &rest[end..]))
}

fn split_words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// Reads a whole `pagetypeinfo`.
///
/// # Errors
/// [`ProcError::Parse`] for a line of a zone that does not read as one, or whose counts have no
/// heading.
pub fn parse_types(text: &[u8]) -> Result<PageTypes, ProcError> {
    let mut types = PageTypes::default();
    let mut kinds: Vec<&[u8]> = Vec::new();
    for (at, line) in lines(text) {
        if let Some(heading) = line.strip_prefix(b"Number of blocks type") {
            kinds = split_words(heading).collect();
        } else if line.starts_with(b"Node") {
            zone_of_types(line, &kinds, &mut types).ok_or_else(|| bad("pagetypeinfo", at, line))?;
        }
    }
    Ok(types)
}

fn zone_of_types(line: &[u8], kinds: &[&[u8]], types: &mut PageTypes) -> Option<()> {
    let (node, zone, rest) = zone_start(line)?;
    let zone = Name::new(zone);
    if let Some(rest) = rest.strip_prefix(b",") {
        let mut words = split_words(rest.trim_ascii_start().strip_prefix(b"type")?);
        let kind = Name::new(words.next()?);
        let counts: Option<Vec<(u64, bool)>> = words.map(count).collect();
        let counts = counts?;
        types.free.push(TypedFree {
            node,
            zone,
            kind,
            free: counts.iter().map(|(count, _)| *count).collect(),
            capped: counts.iter().any(|(_, capped)| *capped),
        });
    } else {
        for (at, word) in split_words(rest).enumerate() {
            let (kind, count) = (Name::new(kinds.get(at)?), number(word)?);
            types.blocks.push(TypedBlocks { node, zone: zone.clone(), kind, count });
        }
    }
    Some(())
}

/// A count, and whether it is only a lower bound: `>100000` (since 5.4).
fn count(word: &[u8]) -> Option<(u64, bool)> {
    match word.strip_prefix(b">") {
        Some(bound) => Some((number(bound)?, true)),
        None => Some((number(word)?, false)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zone_has_a_count_for_each_order() {
        let zones = parse(b"Node 0, zone      DMA      1      0      3 \nNode 1, zone   Normal  25466  13078   4999 \n").unwrap();
        let expected = [(0, "DMA", vec![1, 0, 3]), (1, "Normal", vec![25466, 13078, 4999])];
        assert_eq!(
            zones,
            expected.map(|(node, name, free)| Zone { node, name: name.into(), free })
        );
    }

    #[test]
    fn an_invalid_zone_line_is_named() {
        let error = parse(b"Node 0, zone DMA 1\nNode 0, zone DMA x\n").unwrap_err();
        assert!(error.to_string().starts_with("buddyinfo:2: "), "{error}");
        assert!(parse(b"Node 0, zone\n").is_err() && parse(b"\n\n").is_err());
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn a_count_that_the_kernel_cut_off_is_a_lower_bound() {
        let text = b"Page block order: 9\nPages per block:  512\n\n\
            Free pages count per migrate type at order       0      1 \n\
            Node    0, zone   Normal, type    Unmovable     43    806 \n\
            Node    0, zone   Normal, type      Movable >100000  10443 \n\n\
            Number of blocks type     Unmovable      Movable \n\
            Node 0, zone   Normal          137         5831 \n";
        let types = parse_types(text).unwrap();
        let free: Vec<_> = types.free.iter().map(|t| (t.free.clone(), t.capped)).collect();
        assert_eq!(free, [(vec![43, 806], false), (vec![100_000, 10443], true)]);
        let blocks: Vec<_> = types.blocks.iter().map(|b| (b.kind.clone(), b.count)).collect();
        assert_eq!(blocks, [("Unmovable".into(), 137), ("Movable".into(), 5831)]);
    }

    proptest! {
        #[test]
        fn zones_read_as_they_were_written(zones in prop::collection::vec((any::<u32>(), "[A-Za-z0-9]{1,9}", prop::collection::vec(any::<u64>(), 0..20)), 0..5)) {
            let line = |(node, name, free): &(u32, String, Vec<u64>)| {
                let counts: String = free.iter().map(|n| format!(" {n:>6}")).collect();
                format!("Node {node}, zone {name:>8}{counts} \n")
            };
            let text: String = zones.iter().map(line).collect();
            let read = parse(text.as_bytes()).unwrap();
            let read: Vec<_> = read.into_iter().map(|z| (z.node, z.name.escaped().into_owned(), z.free)).collect();
            prop_assert_eq!(read, zones);
        }

        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(Node 0, zone|Number of blocks type|[ ,0-9>\n]|type){0,30}") {
            let both = [&text[..], b"\n", tail.as_bytes()].concat();
            let _ = parse(&both);
            let _ = parse_types(&both);
        }
    }
}
