//! `/proc/slabinfo`: the caches of kernel objects.

use std::cmp::Reverse;

use pagewise_model::account::SlabCache;
use pagewise_model::{Absent, Bytes, Name, PageSize, Reading};

use crate::text::{lines, number};
use crate::{ProcError, ProcRoot};

/// Reads all caches, largest first.
///
/// # Errors
/// [`Absent`] without root.
pub(crate) fn read(root: &ProcRoot, page_size: PageSize) -> Reading<Vec<SlabCache>> {
    let text = root.machine("slabinfo")?;
    let mut caches =
        parse(&text, page_size).map_err(|error| Absent::NotSupported(error.to_string().into()))?;
    for cache in &mut caches {
        let file = format!("kernel/slab/{}/reclaim_account", cache.name.escaped());
        cache.reclaimable = root.sysfs(&file).and_then(|text| {
            number(&text).map(|flag| flag != 0).ok_or(Absent::NotSupported("no number".into()))
        });
    }
    caches.sort_by_key(|cache| Reverse(cache.bytes));
    Ok(caches)
}

/// Reads a whole `slabinfo`.
///
/// # Errors
/// [`ProcError::Parse`] for a line that is not of a cache.
pub fn parse(text: &[u8], page_size: PageSize) -> Result<Vec<SlabCache>, ProcError> {
    let rows =
        lines(text).filter(|(_, line)| !line.starts_with(b"slabinfo") && !line.starts_with(b"#"));
    let bad = |at, line| ProcError::parse("slabinfo", at, "a name and numbers of a cache", line);
    rows.map(|(at, line)| cache(line, page_size).ok_or_else(|| bad(at, line))).collect()
}

/// `dentry 1 2 192 21 1 : tunables 0 0 0 : slabdata 2 2 0`
fn cache(line: &[u8], page_size: PageSize) -> Option<SlabCache> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let name = Name::new(words.next()?);
    let mut numbers = words.by_ref().take(5).map(number);
    let (objects, _all) = (numbers.next()??, numbers.next()??);
    let (size, _per_slab, pages) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let mut words = words.skip_while(|word| *word != b"slabdata").skip(2);
    let slabs = number(words.next()?)?;
    Some(SlabCache {
        name,
        bytes: Bytes(page_size.pages(pages).0.saturating_mul(slabs)),
        active: Bytes(objects.saturating_mul(size)),
        objects,
        reclaimable: Err(Absent::NotCollected("not in slabinfo".into())),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: PageSize = PageSize::new(4096).expect("a power of two");
    const HEAD: &[u8] = b"slabinfo - version: 2.1\n# name            <active_objs> <num_objs>\n";

    #[test]
    fn the_memory_of_a_cache_is_that_of_its_slabs() {
        let line = b"dentry             40 63    192   21    2 : tunables    0    0    0 : slabdata      3      3      0\n";
        let caches = parse(&[HEAD, line].concat(), PAGE).unwrap();
        let cache = &caches[0];
        assert_eq!((cache.bytes, cache.active), (PAGE.pages(6), Bytes(40 * 192)));
        assert_eq!((cache.objects, cache.name.clone()), (40, "dentry".into()));
        assert!(parse(&[HEAD, b"dentry 40 63\n"].concat(), PAGE).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(\n[a-z]{1,3} [0-9]{1,22} 1 1 1 [0-9]{1,22} : slabdata 1 [0-9]{1,22} 0){0,3}") {
            let _ = parse(&[&text[..], tail.as_bytes()].concat(), PAGE);
        }
    }
}
