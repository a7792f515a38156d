//! `/proc/<pid>/numa_maps`: on which nodes the pages are.

use std::collections::BTreeMap;

use pagewise_model::process::NodeShare;
use pagewise_model::{Bytes, PageSize};

use crate::text::{lines, number};

/// Sums the `N<node>=<pages>` words over all mappings.
pub fn parse(text: &[u8], page_size: PageSize) -> Vec<NodeShare> {
    let mut nodes: BTreeMap<u32, Bytes> = BTreeMap::new();
    for (_, line) in lines(text) {
        let words = || line.split(|&b| b == b' ');
        let kib = words().find_map(|w| number(w.strip_prefix(b"kernelpagesize_kB=")?));
        let size = kib.map_or(page_size.bytes(), |kib| kib.saturating_mul(1024));
        for (node, pages) in words().filter_map(node_pages) {
            *nodes.entry(node).or_default() += Bytes(pages.saturating_mul(size));
        }
    }
    nodes.into_iter().map(|(node, resident)| NodeShare { node, resident }).collect()
}

fn node_pages(word: &[u8]) -> Option<(u32, u64)> {
    let word = word.strip_prefix(b"N")?;
    let equals = memchr::memchr(b'=', word)?;
    Some((u32::try_from(number(&word[..equals])?).ok()?, number(&word[equals + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_summed_by_node_in_the_size_of_their_mapping() {
        let text = b"7f00 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n\
                     7f10 default huge anon=1 N1=1 kernelpagesize_kB=2048\n";
        let shares = parse(text, PageSize::new(4096).unwrap());
        let expected = [(0, Bytes::kib(4)), (1, Bytes::kib(2056))];
        assert_eq!(shares.iter().map(|s| (s.node, s.resident)).collect::<Vec<_>>(), expected);
    }
}
