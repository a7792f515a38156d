//! The memory of one process: every mapping with the available data of its pages, and the kernel's
//! own sums.

use std::io::{self, ErrorKind};

use pagewise_model::machine::{Gap, ReadMethod};
use pagewise_model::mapping::{Backing, Mapping, MappingPages};
use pagewise_model::process::NodeShare;
use pagewise_model::{Absent, Bytes, PageSize, Pid, Reading, Smaps, SmapsCounter, parallel};
use pagewise_sys::probe::Features;

use crate::maps::ParsedMappings;
use crate::mountinfo::Mount;
use crate::pages::{self, Pace, PageWalk};
use crate::root::{NOT_COPIED, PTRACE};
use crate::stream::{LongestRead, stream};
use crate::{ProcError, ProcRoot, maps, meminfo, numa, smaps};

/// Result of reading the memory.
pub(super) struct ReadMemory {
    pub(super) mappings: Reading<Vec<Mapping>>,
    pub(super) rollup: Reading<Box<Smaps>>,
    pub(super) walk: Reading<Box<MappingPages>>,
}

/// Reads the memory of one process, and records the cost for the process and the missing data.
pub(super) struct MemoryReader<'a> {
    pub(super) root: &'a ProcRoot,
    pub(super) pid: Pid,
    pub(super) features: Features,
    pub(super) mounts: &'a [Mount],
    pub(super) page_size: PageSize,
    /// Pace of a polite reading.
    pub(super) pace: Pace,
    /// True to read `smaps_rollup` in addition to `smaps`.
    pub(super) wants_sums: bool,
    /// True if a walk over all pages takes longer than the start of a thread: a second thread then
    /// makes another walk at the same time.
    pub(super) is_large: bool,
    pub(super) longest: LongestRead,
    pub(super) gaps: Vec<Gap>,
}

impl MemoryReader<'_> {
    pub(super) fn read(&mut self, method: ReadMethod) -> Result<ReadMemory, ProcError> {
        match method {
            ReadMethod::Full => self.full(),
            ReadMethod::Fast => self.by_pages(&Pace::FAST),
            // A process is never read by the method `CoreFile`.
            ReadMethod::Polite | ReadMethod::CoreFile => {
                let pace = self.pace;
                self.by_pages(&pace)
            }
        }
    }

    /// Reads `smaps` and `smaps_rollup`. The page tables are read only for mappings whose file
    /// pages and written copies `smaps` does not separate.
    fn full(&mut self) -> Result<ReadMemory, ProcError> {
        let unread = if self.root.is_live() { USE_PAGES } else { NO_PAGES };
        let mut parser = smaps::SmapsParser::new(Absent::NotCollected(unread.into()));
        let (read, rollup) = self.both(|piece| parser.push(piece));
        let mut mappings = match read {
            Err(error) if is_missing(&error) => self.maps()?,
            read => self.mappings(read, parser.finish())?,
        };
        if let Ok(mappings) = &mut mappings {
            self.split_mixed(mappings);
        }
        let walk = Err(Absent::NotCollected(unread.into()));
        let rollup = match rollup {
            Some(read) => self.rollup(read)?,
            None => Err(Absent::NotCollected(NO_SUMS.into())),
        };
        Ok(ReadMemory { mappings, rollup, walk })
    }

    /// Reads `smaps`, and `smaps_rollup` if it is requested. Each file walks all pages. For a large
    /// process two threads read the files in parallel. For a small process the second read directly
    /// follows the first, so that both show the same state.
    fn both(
        &self,
        consume: impl FnMut(&[u8]),
    ) -> (Result<LongestRead, ProcError>, Option<WholeFile>) {
        let smaps = || {
            let file = self.root.open(self.pid, "smaps")?;
            self.explained("smaps", stream(&file, consume))
        };
        let rollup = || self.whole_file("smaps_rollup");
        if !self.wants_sums {
            return (smaps(), None);
        }
        let (sums, read) = parallel::both(self.is_large, rollup, smaps);
        (read, Some(sums))
    }

    fn rollup(&mut self, read: WholeFile) -> Result<Reading<Box<Smaps>>, ProcError> {
        match read {
            Ok((text, longest)) => {
                self.longest = self.longest.max(longest);
                let broken = || Absent::NotSupported("it does not read as it should".into());
                Ok(smaps::parse_rollup(&text).map(Box::new).ok_or_else(broken))
            }
            Err(error) => self.absence(error, "4.14").map(Err),
        }
    }

    /// Reads `maps` and the page tables, and not `smaps`.
    fn by_pages(&mut self, pace: &Pace) -> Result<ReadMemory, ProcError> {
        let mut mappings = self.maps()?;
        let walk = match &mut mappings {
            Ok(mappings) => self.walk(mappings, pace)?.map(Box::new),
            Err(why) => Err(why.clone()),
        };
        Ok(ReadMemory { mappings, rollup: Err(Absent::NotCollected(USE_FULL.into())), walk })
    }

    /// The mappings without the data of their pages.
    pub(super) fn maps(&mut self) -> Result<Reading<Vec<Mapping>>, ProcError> {
        let unread = if self.root.is_live() { USE_FULL } else { NOT_COPIED };
        let mut parser = maps::MapsParser::new(Absent::NotCollected(unread.into()));
        let read = self
            .root
            .open(self.pid, "maps")
            .and_then(|file| self.explained("maps", stream(&file, |piece| parser.push(piece))));
        match read {
            Err(error) if is_missing(&error) => self.absence(error, "").map(Err),
            read => self.mappings(read, parser.finish()),
        }
    }

    /// Returns the mappings. The list is empty for a process without memory, and absent without
    /// permission.
    fn mappings(
        &mut self,
        read: Result<LongestRead, ProcError>,
        parsed: ParsedMappings,
    ) -> Result<Reading<Vec<Mapping>>, ProcError> {
        match read {
            Ok(longest) => {
                self.longest = self.longest.max(longest);
                let mut mappings = self.whole(parsed);
                self.find_tmpfs(&mut mappings);
                Ok(Ok(mappings))
            }
            // A kernel thread, a zombie, or an ending process. `Capture::end` detects that a
            // process has ended.
            Err(ProcError::NoSuchProcess { .. }) => Ok(Ok(Vec::new())),
            Err(error) => self.absence(error, "").map(Err),
        }
    }

    /// Returns the complete mappings. Cut or repeated lines become a gap.
    fn whole(&mut self, parsed: ParsedMappings) -> Vec<Mapping> {
        if let Some(torn) = parsed.torn {
            self.miss("later mappings", Absent::NotSupported(torn.to_string().into()));
        }
        if parsed.repeated > 0 {
            let why = format!("{} changed place while they were read", parsed.repeated);
            self.miss("some mappings", Absent::Ambiguous(why.into()));
        }
        parsed.mappings
    }

    fn find_tmpfs(&self, mappings: &mut [Mapping]) {
        let tmpfs: Vec<_> =
            self.mounts.iter().filter(|m| m.fs == b"tmpfs").map(|m| m.device).collect();
        for mapping in mappings.iter_mut().filter(|m| m.inode != 0) {
            mapping.on_tmpfs = tmpfs.contains(&mapping.device);
        }
    }

    /// Reads the page tables of mappings that hold both file pages and written copies of file
    /// pages: `smaps` adds both up.
    fn split_mixed(&mut self, mappings: &mut [Mapping]) {
        let mixed: Vec<usize> = (0..mappings.len()).filter(|&at| is_mixed(&mappings[at])).collect();
        if mixed.is_empty() || !self.root.is_live() {
            return;
        }
        let mut apart: Vec<Mapping> = mixed.iter().map(|&at| mappings[at].clone()).collect();
        match self.walk(&mut apart, &Pace::FAST) {
            Ok(_) => {
                for (at, read) in mixed.into_iter().zip(apart) {
                    mappings[at].pages = read.pages;
                }
            }
            Err(error) => self.miss("pagemap", Absent::NotSupported(error.to_string().into())),
        }
    }

    fn walk(
        &mut self,
        mappings: &mut [Mapping],
        pace: &Pace,
    ) -> Result<Reading<MappingPages>, ProcError> {
        let read =
            pages::read_with(&self.features, self.root, self.pid, mappings, self.page_size, pace);
        match read {
            Ok(PageWalk { longest_hold_ns, total, doubt }) => {
                self.longest = self.longest.max(LongestRead(longest_hold_ns));
                self.gaps.extend(doubt.map(|why| Gap { what: "huge pages".into(), why }));
                Ok(total)
            }
            Err(error) => self.absence(error, "2.6.25").map(Err),
        }
    }

    /// Returns the pages by node. The kernel's walk for `numa_maps` holds the mmap lock as the walk
    /// for `smaps` does, so only a full reading includes `numa_maps`.
    pub(super) fn numa(&mut self, method: ReadMethod) -> Reading<Vec<NodeShare>> {
        if method != ReadMethod::Full {
            return Err(Absent::NotCollected(USE_FULL.into()));
        }
        if meminfo::nodes_online(self.root)? < 2 {
            return Err(Absent::NotSupported("the machine has one NUMA node".into()));
        }
        match self.whole_file("numa_maps") {
            Ok((text, longest)) => {
                self.longest = self.longest.max(longest);
                Ok(numa::parse(&text, self.page_size))
            }
            Err(error) => {
                let broken = |error: ProcError| Absent::NotSupported(error.to_string().into());
                Err(self.absence(error, "2.6.14").unwrap_or_else(broken))
            }
        }
    }

    fn whole_file(&self, name: &str) -> WholeFile {
        let mut text = Vec::new();
        let file = self.root.open(self.pid, name)?;
        let read = stream(&file, |piece| text.extend_from_slice(piece));
        Ok((text, self.explained(name, read)?))
    }

    fn explained(
        &self,
        name: &str,
        read: io::Result<LongestRead>,
    ) -> Result<LongestRead, ProcError> {
        read.map_err(|e| self.root.explain(self.pid, &self.root.file(self.pid, name), e))
    }

    /// Converts the error of reading a file to the reason of an absent value. Returns other errors
    /// unchanged. `since` is the kernel version that introduced the file.
    fn absence(&self, error: ProcError, since: &'static str) -> Result<Absent, ProcError> {
        match error {
            ProcError::NotPermitted { .. } | ProcError::NoAccess { .. } => {
                Ok(Absent::NotPermitted(PTRACE.into()))
            }
            // `Capture::end` detects a process that has ended.
            ProcError::NoSuchProcess { .. } => Ok(Absent::NotSupported("it has no memory".into())),
            error if !is_missing(&error) => Err(error),
            _ if self.root.is_live() => Ok(Absent::NotInThisKernel(since.into())),
            _ => Ok(Absent::NotCollected(NOT_COPIED.into())),
        }
    }

    fn miss(&mut self, what: &str, why: Absent) {
        self.gaps.push(Gap { what: what.into(), why });
    }
}

/// The text of a file, and the longest read that it took.
type WholeFile = Result<(Vec<u8>, LongestRead), ProcError>;

/// Reason for values that only a full reading provides.
const USE_FULL: &str = "only smaps has it: use --full";
/// Reason for values that a full reading does not provide.
const USE_PAGES: &str = "the page tables were not read: use --fast or --polite";
/// Reason for sums that were not requested.
pub(super) const NO_SUMS: &str = "a list of mappings needs no sums";
const NO_PAGES: &str = "the copied tree has no page tables";

/// Returns true if the file does not exist although its process does.
fn is_missing(error: &ProcError) -> bool {
    matches!(error, ProcError::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// True if a mapping holds pages of its file and written copies, according to `smaps`.
fn is_mixed(mapping: &Mapping) -> bool {
    let bytes = |counter| mapping.counter(counter).unwrap_or(Bytes::ZERO);
    let (anonymous, rss) = (bytes(SmapsCounter::Anonymous), bytes(SmapsCounter::Rss));
    !anonymous.is_zero() && anonymous < rss && mapping.backing() != Backing::Anonymous
}
