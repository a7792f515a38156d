//! Sizes of the CPU's caches, and functions that evict data from the caches before a measured
//! region.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sys::cache::flush;

/// Folder that describes the caches of the first CPU. On hybrid machines, other CPUs may have other
/// caches.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// A cache that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataCache {
    /// Level of the cache; 1 is the nearest to the CPU.
    pub level: u8,
    /// Capacity.
    pub size: Bytes,
    /// Size of a cache line.
    pub line: Bytes,
    /// Number of lines of a set; absent if the kernel does not report it.
    pub ways: Option<usize>,
}

/// The caches that hold data, the nearest first.
///
/// # Errors
/// Absent if the kernel does not describe the caches, as on some virtual machines and in some
/// containers.
pub fn caches() -> Reading<Vec<DataCache>> {
    let found = caches_at(Path::new(CACHES));
    if found.is_empty() {
        return Err(Absent::NotSupported("the kernel describes no caches".into()));
    }
    Ok(found)
}

fn caches_at(folder: &Path) -> Vec<DataCache> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut caches: Vec<DataCache> =
        entries.filter_map(|entry| described(&entry.ok()?.path())).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

/// Content of an `index*` folder; `None` for an instruction cache.
fn described(folder: &Path) -> Option<DataCache> {
    let text = |name| fs::read_to_string(folder.join(name)).ok();
    if text("type")?.trim() == "Instruction" {
        return None;
    }
    Some(DataCache {
        level: text("level")?.trim().parse().ok()?,
        size: size(text("size")?.trim())?,
        line: Bytes(text("coherency_line_size")?.trim().parse().ok()?),
        // The file contains 0 for a fully associative cache, or if the kernel does not know the
        // number.
        ways: text("ways_of_associativity")
            .and_then(|ways| ways.trim().parse().ok())
            .filter(|ways| *ways > 0),
    })
    .filter(|cache| !cache.size.is_zero() && !cache.line.is_zero())
}

/// Parses the file `size`: `48K`.
fn size(text: &str) -> Option<Bytes> {
    let (digits, shift) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (digits, "K") => (digits, 10),
        (digits, "M") => (digits, 20),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).map(Bytes)
}

/// Evicts the content of the level 1 data cache of the CPU that the thread runs on, by reading
/// other data. The evicted lines stay in the next cache levels.
#[derive(Debug)]
pub struct CacheFiller {
    filler: Vec<u8>,
    line: usize,
}

/// Size of the filler, as a multiple of the cache size. A filler of the cache size would not evict
/// every line, because caches only approximate LRU replacement.
const TIMES_LARGER: u64 = 4;

impl CacheFiller {
    /// Allocates the filler and touches its pages, so that they cause no page faults in later
    /// regions.
    ///
    /// # Errors
    /// The errors of [`caches`].
    pub fn new() -> Reading<CacheFiller> {
        let first = caches()?.into_iter().next();
        let first = first.ok_or_else(|| Absent::NotSupported("no cache".into()))?;
        let size = in_memory(Bytes(first.size.0.saturating_mul(TIMES_LARGER)));
        Ok(CacheFiller { filler: vec![1; size], line: in_memory(first.line) })
    }

    /// Reads the filler once.
    pub fn run(&self) {
        for byte in self.filler.iter().step_by(self.line) {
            black_box(*byte);
        }
    }
}

fn in_memory(bytes: Bytes) -> usize {
    usize::try_from(bytes.0).unwrap_or(usize::MAX)
}

/// Flushes the cache lines of a slice from every cache level of all CPUs: the next access waits for
/// RAM.
///
/// # Errors
/// Absent on other CPUs than x86, and the errors of [`caches`].
pub fn evict<T>(items: &[T]) -> Reading<()> {
    let line = caches()?.first().map_or(0, |cache| in_memory(cache.line));
    flush(items, line).map_err(|_| Absent::NotSupported("only x86 flushes by address".into()))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pagewise_skip::{Lack, skip};

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn caches_of_data_are_found_the_nearest_first() {
        let folder = folder(&[
            ("index2/level", "2\n"),
            ("index2/type", "Unified\n"),
            ("index2/size", "1024K\n"),
            ("index2/coherency_line_size", "64\n"),
            ("index2/ways_of_associativity", "16\n"),
            ("index1/level", "1\n"),
            ("index1/type", "Instruction\n"),
            ("index1/size", "32K\n"),
            ("index1/coherency_line_size", "64\n"),
            ("index0/level", "1\n"),
            ("index0/type", "Data\n"),
            ("index0/size", "48K\n"),
            ("index0/coherency_line_size", "128\n"),
            ("uevent", ""),
        ]);
        let first = DataCache { level: 1, size: Bytes::kib(48), line: Bytes(128), ways: None };
        let second = DataCache { level: 2, size: Bytes::mib(1), line: Bytes(64), ways: Some(16) };
        assert_eq!(caches_at(folder.path()), [first, second]);
    }

    #[test]
    fn an_incomplete_description_is_not_a_cache() {
        for (file, text) in
            [("size", "0K"), ("size", "many"), ("coherency_line_size", "0"), ("level", "")]
        {
            let mut files = vec![
                ("index0/level", "1"),
                ("index0/type", "Data"),
                ("index0/size", "48K"),
                ("index0/coherency_line_size", "64"),
            ];
            let path = format!("index0/{file}");
            files.iter_mut().find(|(name, _)| *name == path).unwrap().1 = text;
            assert_eq!(caches_at(folder(&files).path()), [], "{file} {text}");
        }
        assert_eq!(caches_at(Path::new("/no/such/folder")), []);
    }

    const SOME: usize = 256;

    /// A cache line that contains the index of the next line to read.
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct ChasedLine(usize);

    /// `many` lines, of which `some` form one ring that begins at the first line. The order is
    /// random, so that no prefetcher predicts the next line.
    fn ring(some: usize, many: usize) -> Vec<ChasedLine> {
        let mut order: Vec<usize> = (1..many).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        order.truncate(some - 1);
        let mut ring = vec![ChasedLine(0); many];
        let from = std::iter::once(&0).chain(&order);
        from.zip(order.iter().chain([&0])).for_each(|(at, next)| ring[*at] = ChasedLine(*next));
        ring
    }

    /// Time to read each line of the ring once, in the order of the ring.
    fn round_trip(ring: &[ChasedLine]) -> Duration {
        let begin = Instant::now();
        let mut at = 0;
        for _ in 0..SOME / 8 {
            // One expression, so that an unoptimized build waits only for the memory.
            at = ring[ring[ring[ring[ring[ring[ring[ring[at].0].0].0].0].0].0].0].0;
        }
        assert_eq!(black_box(at), 0);
        begin.elapsed()
    }

    #[test]
    fn memory_is_slower_after_a_sweep_and_slower_still_when_evicted() {
        let (Ok(sweep), Ok(())) = (CacheFiller::new(), evict::<u8>(&[])) else {
            return skip(&Lack::Machine(&format!("the caches are not known: {:?}", caches())));
        };
        let ring = ring(SOME, 16 * SOME);
        // The rounds are interleaved, so changes in the machine's speed affect all three minima
        // alike.
        let rounds: Vec<[Duration; 3]> = (0..301)
            .map(|_| {
                round_trip(&ring);
                let warm = round_trip(&ring);
                sweep.run();
                let swept = round_trip(&ring);
                evict(&ring).unwrap();
                [warm, swept, round_trip(&ring)]
            })
            .collect();
        let [warm, swept, evicted] =
            [0, 1, 2].map(|kind| rounds.iter().map(|round| round[kind]).min().unwrap());
        assert!(warm < swept && swept < evicted, "{warm:?} {swept:?} {evicted:?}");
        println!("{warm:?} {swept:?} {evicted:?}");
    }
}
