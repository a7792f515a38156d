//! The four quadrants of a process's memory, by mapping (declared) and by page (effective). A
//! quadrant is private or shared, and anonymous or file memory.
//!
//! Page tables show the type of each page. For the resident pages of a mapping (`Rss`, R), `smaps`
//! counts the anonymous pages (`Anonymous`, A) and the exclusive pages, which only this process
//! maps (`Private_*`, P). It does not count the pages that are both anonymous and exclusive. Their
//! size is in `[max(0, A + P - R), min(A, P)]`. If the pages of the mapping have one type, the
//! bounds are equal and every cell is known. If the bounds differ, a cell is ambiguous, and no
//! value is guessed.

use pagewise_model::{
    Absent, Breakdown, Bytes, Mapping, Quadrant, Reading, Smaps, SmapsCounter, Snapshot,
};

use crate::pss::{self, Pss};

/// The values of one quadrant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuadrantCell {
    /// Address space.
    pub reserved: Reading<Bytes>,
    /// Resident pages.
    pub resident: Reading<Bytes>,
    /// Resident pages; each page is divided by its number of mappings.
    pub pss: Reading<Bytes>,
    /// Pages in swap.
    pub swapped: Reading<Bytes>,
    /// Resident pages that must be written to swap or a file before they can be dropped. For a
    /// mapping with several types of pages, smaps does not show the types of its dirty pages:
    /// anonymous pages are then assumed to be dirty.
    pub dirty: Reading<Bytes>,
}

/// The values of the four quadrants, in the order of [`Quadrant::ALL`].
pub type QuadrantCells = [QuadrantCell; 4];

/// The memory of one process, sorted into quadrants by mapping and by page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quadrants {
    /// Sums by mapping: each mapping is in the quadrant that the program requested.
    pub declared: QuadrantCells,
    /// Sums by page: each page is in the quadrant of its present state. A private file page that
    /// was written is anonymous. A private page that other processes map is shared. A tmpfs page is
    /// shared anonymous. Untouched address space is in the quadrant of its mapping.
    pub effective: QuadrantCells,
}

impl Quadrants {
    /// True if both classifications give the same values.
    pub fn agree(&self) -> bool {
        self.declared == self.effective
    }
}

/// Sorts the memory of a snapshot into quadrants.
///
/// # Errors
/// The reason why the mappings are absent.
pub fn quadrants(snapshot: &Snapshot) -> Reading<Quadrants> {
    let mappings = snapshot.mappings.as_ref().map_err(Clone::clone)?;
    Ok(quadrants_of(snapshot, mappings, &pss::shares(snapshot, mappings)))
}

/// Does the same as [`quadrants`] for mappings whose PSS is known.
pub(crate) fn quadrants_of(snapshot: &Snapshot, mappings: &[Mapping], pss: &Pss) -> Quadrants {
    let needs_full = Absent::NotCollected("only smaps shows dirty pages: --full reads it".into());
    // Most mappings hold only pages of their declared quadrant. Their values are the same in both
    // classifications and are summed once.
    let mut both = CellColumns::default();
    let (mut declared, mut effective) = (CellColumns::default(), CellColumns::default());
    for (index, mapping) in mappings.iter().enumerate().filter(|(_, m)| counts_in_virt(m)) {
        let part = QuadrantPart::from_mapping(mapping, pss.pss_of(index, mapping), &needs_full);
        if part.is_at_home() {
            part.declare(&mut both);
        } else {
            part.declare(&mut declared);
            part.take_effect(&mut effective);
        }
    }
    declared.merge(&both);
    effective.merge(&both);
    if !pss.torn {
        effective.settle_pss(snapshot);
    }
    Quadrants { declared: declared.cells(), effective: effective.cells() }
}

/// True if `statm` counts a mapping: all mappings except `[vsyscall]`, which belongs to the kernel
/// and is outside of the process's address range.
pub(crate) fn counts_in_virt(mapping: &Mapping) -> bool {
    mapping.name.as_bytes() != b"[vsyscall]"
}

/// The values of one mapping, so that each is read only once.
struct QuadrantPart {
    homes: Homes,
    size: u64,
    resident: Reading<Bytes>,
    swap: Reading<Bytes>,
    pss: Reading<Bytes>,
    /// The part of `pss` that is anonymous; `None` if page counts do not provide it.
    pss_anon: Option<Bytes>,
    pages: Reading<QuadrantBounds>,
    dirty: Reading<Dirty>,
}

impl QuadrantPart {
    fn from_mapping(mapping: &Mapping, pss: Reading<Bytes>, needs_full: &Absent) -> QuadrantPart {
        QuadrantPart {
            homes: HOMES[mapping.declared() as usize],
            size: mapping.size().0,
            resident: mapping.rss(),
            swap: mapping.swap(),
            pss,
            pss_anon: mapping.pages.as_ref().ok().and_then(|pages| pages.pss_anon.clone().ok()),
            pages: pages(mapping),
            dirty: dirty(mapping, needs_full),
        }
    }

    /// True if every page is in the declared quadrant of the mapping.
    fn is_at_home(&self) -> bool {
        let declared = self.homes.declared;
        let swap = self.homes.swap == declared || self.swap == Ok(Bytes::ZERO);
        let at_home = |pages: &QuadrantBounds| {
            let mut kinds = self.homes.kinds.iter().enumerate();
            kinds.all(|(kind, home)| *home == declared || pages.one[kind] | pages.other[kind] == 0)
        };
        swap && self.pages.as_ref().is_ok_and(at_home)
    }

    fn declare(&self, columns: &mut CellColumns) {
        let at = self.homes.declared;
        columns.reserved[at].add_known(self.size);
        columns.resident[at].add_reading(&self.resident);
        columns.pss[at].add_reading(&self.pss);
        columns.swapped[at].add_reading(&self.swap);
        match &self.dirty {
            Ok(dirty) => {
                columns.dirty[at].add_known(dirty.exclusive.saturating_add(dirty.co_mapped));
            }
            Err(absent) => columns.dirty[at].miss(absent),
        }
    }

    fn take_effect(&self, columns: &mut CellColumns) {
        let homes = self.homes;
        let pages = match &self.pages {
            Ok(pages) => *pages,
            Err(absent) => return columns.miss(homes, absent),
        };
        let resident = pages.each(|pages| homes.sort(pages));
        CellColumns::add(&mut columns.resident, resident);
        columns.swapped[homes.swap].add_reading(&self.swap);
        CellColumns::add(&mut columns.reserved, resident.each(|resident| self.reserve(resident)));
        columns.add_pss(homes, pages, &self.pss, self.pss_anon);
        match &self.dirty {
            Ok(dirty) => {
                CellColumns::add(
                    &mut columns.dirty,
                    pages.each(|pages| homes.sort(dirty.sort(pages))),
                );
            }
            Err(absent) => homes.each(|at| columns.dirty[at].miss(absent)),
        }
    }

    /// Address space by quadrant: resident pages and swapped pages count in their effective
    /// quadrant, the remaining address space in the declared quadrant.
    fn reserve(&self, resident: Four) -> Four {
        let (mut cells, untouched) = fit(resident, self.size);
        let swapped = self.swap.as_ref().map_or(0, |swap| swap.0.min(untouched));
        cells[self.homes.swap] += swapped;
        cells[self.homes.declared] += untouched - swapped;
        cells
    }
}

/// Bytes of dirty pages that only this process maps, and of dirty pages that other processes map
/// too.
struct Dirty {
    exclusive: u64,
    co_mapped: u64,
}

fn dirty(mapping: &Mapping, needs_full: &Absent) -> Reading<Dirty> {
    if mapping.smaps.is_err() && mapping.pages.is_ok() {
        return Err(needs_full.clone());
    }
    Ok(Dirty {
        exclusive: mapping.counter(SmapsCounter::PrivateDirty)?.0,
        co_mapped: mapping.counter(SmapsCounter::SharedDirty)?.0,
    })
}

impl Dirty {
    /// Distributes the dirty bytes over the types of pages, in the order of [`pages`]: anonymous
    /// pages first.
    fn sort(&self, pages: Four) -> Four {
        let [exclusive, co_mapped] = [self.exclusive.min(pages[0]), self.co_mapped.min(pages[1])];
        [exclusive, co_mapped, self.exclusive - exclusive, self.co_mapped - co_mapped]
    }
}

/// Reduces the cells in order until their sum is at most `room`. Returns the cells and the unused
/// part of `room`.
fn fit(mut cells: Four, mut room: u64) -> (Four, u64) {
    for cell in &mut cells {
        *cell = (*cell).min(room);
        room -= *cell;
    }
    (cells, room)
}

/// One number for each quadrant, or for each type of page.
type Four = [u64; 4];

/// Numbers at both ends of the possible range of values.
#[derive(Clone, Copy)]
struct QuadrantBounds {
    one: Four,
    other: Four,
}

impl QuadrantBounds {
    const fn exact(four: Four) -> QuadrantBounds {
        QuadrantBounds { one: four, other: four }
    }

    /// Applies a function at both ends. If the ends are equal, which is the usual case, the
    /// function is called once.
    fn each(self, step: impl Fn(Four) -> Four) -> QuadrantBounds {
        let one = step(self.one);
        let other = if self.one == self.other { one } else { step(self.other) };
        QuadrantBounds { one, other }
    }
}

const ANON_CO_MAPPED: usize = 1;
const FILE_CO_MAPPED: usize = 3;

/// Bytes of the resident pages of a mapping by type: anonymous and exclusive, anonymous and
/// co-mapped, file and exclusive, file and co-mapped.
fn pages(mapping: &Mapping) -> Reading<QuadrantBounds> {
    match (&mapping.smaps, &mapping.pages) {
        // smaps and the page walk are read at different times. If they differ, the values of smaps
        // are used.
        (Ok(smaps), Ok(pages))
            if smaps.bytes(SmapsCounter::Rss) == Ok(pages.breakdown.resident()) =>
        {
            Ok(exact(&pages.breakdown))
        }
        (Ok(smaps), _) => bounds(smaps),
        (Err(_), Ok(pages)) => Ok(exact(&pages.breakdown)),
        (Err(absent), Err(_)) => Err(absent.clone()),
    }
}

fn exact(b: &Breakdown) -> QuadrantBounds {
    let kinds = [b.anon_exclusive, b.anon_co_mapped, b.file_exclusive, b.file_co_mapped];
    QuadrantBounds::exact(kinds.map(|bytes| bytes.0))
}

fn bounds(smaps: &Smaps) -> Reading<QuadrantBounds> {
    let resident = smaps.get(SmapsCounter::Rss)?;
    let anonymous = smaps.get(SmapsCounter::Anonymous)?.min(resident);
    let exclusive = smaps.get(SmapsCounter::PrivateClean)?;
    let exclusive = exclusive.saturating_add(smaps.get(SmapsCounter::PrivateDirty)?).min(resident);
    let pages = |both: u64| {
        let co_mapped_file = resident - anonymous - (exclusive - both);
        [both, anonymous - both, exclusive - both, co_mapped_file]
    };
    // If more pages are exclusive than are file pages, the excess is anonymous.
    let least = exclusive.saturating_sub(resident - anonymous);
    Ok(QuadrantBounds { one: pages(least), other: pages(anonymous.min(exclusive)) })
}

/// The quadrants of the pages of a mapping.
#[derive(Clone, Copy)]
struct Homes {
    declared: usize,
    swap: usize,
    /// Quadrant of each type of page, in the order of [`pages`].
    kinds: [usize; 4],
}

const PRIVATE_ANONYMOUS: usize = Quadrant::PrivateAnonymous as usize;
const SHARED_ANONYMOUS: usize = Quadrant::SharedAnonymous as usize;
const PRIVATE_FILE: usize = Quadrant::PrivateFile as usize;
const SHARED_FILE: usize = Quadrant::SharedFile as usize;

/// Quadrants of the pages of a mapping, indexed by declared quadrant. The arguments are the
/// quadrants of the mapping itself, of its swapped pages, and of its exclusive and co-mapped file
/// pages. Anonymous pages are private anonymous if exclusive, and shared anonymous if co-mapped.
const HOMES: [Homes; 4] = [
    homes(PRIVATE_ANONYMOUS, PRIVATE_ANONYMOUS, SHARED_ANONYMOUS, SHARED_ANONYMOUS),
    homes(SHARED_ANONYMOUS, SHARED_ANONYMOUS, SHARED_ANONYMOUS, SHARED_ANONYMOUS),
    homes(PRIVATE_FILE, PRIVATE_ANONYMOUS, PRIVATE_FILE, SHARED_FILE),
    homes(SHARED_FILE, PRIVATE_ANONYMOUS, SHARED_FILE, SHARED_FILE),
];

const fn homes(declared: usize, swap: usize, exclusive: usize, co_mapped: usize) -> Homes {
    Homes { declared, swap, kinds: [PRIVATE_ANONYMOUS, SHARED_ANONYMOUS, exclusive, co_mapped] }
}

impl Homes {
    /// Converts numbers by type of page to numbers by quadrant.
    fn sort(self, pages: Four) -> Four {
        let mut cells = [0; 4];
        for (kind, bytes) in pages.into_iter().enumerate() {
            let cell = &mut cells[self.kinds[kind]];
            *cell = bytes.saturating_add(*cell);
        }
        cells
    }

    /// Calls `f` for each quadrant that may contain a page of the mapping.
    fn each(self, mut f: impl FnMut(usize)) {
        let may = |at: &usize| self.kinds.contains(at) || *at == self.declared;
        (0..4).filter(may).for_each(&mut f);
    }
}

/// Sum of values that may be ranges or absent.
#[derive(Clone, Debug, Default)]
struct BoundedSum {
    low: u64,
    high: u64,
    absent: Option<Absent>,
}

impl BoundedSum {
    fn add(&mut self, low: u64, high: u64) {
        self.low = self.low.saturating_add(low);
        self.high = self.high.saturating_add(high);
    }

    fn add_known(&mut self, bytes: u64) {
        self.add(bytes, bytes);
    }

    fn merge(&mut self, other: &BoundedSum) {
        self.add(other.low, other.high);
        if let Some(absent) = &other.absent {
            self.miss(absent);
        }
    }

    fn add_reading(&mut self, reading: &Reading<Bytes>) {
        match reading {
            Ok(bytes) => self.add_known(bytes.0),
            Err(absent) => self.miss(absent),
        }
    }

    fn miss(&mut self, absent: &Absent) {
        self.absent.get_or_insert_with(|| absent.clone());
    }

    fn is_known(&self) -> bool {
        self.low == self.high && self.absent.is_none()
    }

    fn reading(self, decides: &str) -> Reading<Bytes> {
        match self.absent {
            Some(absent) => Err(absent),
            None if self.low == self.high => Ok(Bytes(self.low)),
            None => Err(Absent::Ambiguous(decides.into())),
        }
    }
}

const PAGE_TABLES_DECIDE: &str = "page tables decide: smaps does not distinguish co-mapped anonymous pages \
     from co-mapped file pages: --fast reads them";
const PAGE_COUNTS_DECIDE: &str =
    "mappings hold co-mapped pages of both kinds, and have one Pss: --full reads Pss_Anon";

/// The fields of [`QuadrantCell`] while they are summed.
#[derive(Default)]
struct CellColumns {
    reserved: [BoundedSum; 4],
    resident: [BoundedSum; 4],
    pss: [BoundedSum; 4],
    swapped: [BoundedSum; 4],
    dirty: [BoundedSum; 4],
}

impl CellColumns {
    fn add(column: &mut [BoundedSum; 4], QuadrantBounds { one, other }: QuadrantBounds) {
        for (at, tally) in column.iter_mut().enumerate() {
            // Most mappings have pages in only one quadrant, so most additions can be skipped.
            if one[at] | other[at] != 0 {
                tally.add(one[at].min(other[at]), one[at].max(other[at]));
            }
        }
    }

    fn all(&mut self) -> [&mut [BoundedSum; 4]; 5] {
        [&mut self.reserved, &mut self.resident, &mut self.pss, &mut self.swapped, &mut self.dirty]
    }

    /// Records a mapping without known values: the sum of each quadrant that may contain its pages
    /// becomes absent.
    fn miss(&mut self, homes: Homes, absent: &Absent) {
        for column in self.all() {
            homes.each(|at| column[at].miss(absent));
        }
    }

    fn merge(&mut self, other: &CellColumns) {
        let others = [&other.reserved, &other.resident, &other.pss, &other.swapped, &other.dirty];
        for (column, other) in self.all().into_iter().zip(others) {
            column.iter_mut().zip(other).for_each(|(tally, other)| tally.merge(other));
        }
    }

    /// Adds the PSS of a mapping. Exclusive pages count in full; the remaining PSS belongs to the
    /// co-mapped pages.
    fn add_pss(
        &mut self,
        homes: Homes,
        pages: QuadrantBounds,
        pss: &Reading<Bytes>,
        pss_anon: Option<Bytes>,
    ) {
        let exclusive = pages.each(|pages| homes.sort([pages[0], 0, pages[2], 0]));
        let may = |kind: usize| pages.one[kind] > 0 || pages.other[kind] > 0;
        let (anon, file) = (homes.kinds[ANON_CO_MAPPED], homes.kinds[FILE_CO_MAPPED]);
        let share = match pss {
            Ok(share) => share.0,
            Err(absent) => {
                CellColumns::add(&mut self.pss, exclusive);
                let kinds = [(ANON_CO_MAPPED, anon), (FILE_CO_MAPPED, file)];
                kinds.iter().filter(|k| may(k.0)).for_each(|k| self.pss[k.1].miss(absent));
                return;
            }
        };
        CellColumns::add(&mut self.pss, exclusive.each(|cells| fit(cells, share).0));
        // The number of exclusive pages is equal at both ends.
        let left = fit(exclusive.one, share).1;
        match (may(ANON_CO_MAPPED), may(FILE_CO_MAPPED)) {
            (true, true) if anon != file => match pss_anon {
                Some(share) => {
                    let of_anon = share.0.saturating_sub(pages.one[0]).min(left);
                    self.pss[anon].add_known(of_anon);
                    self.pss[file].add_known(left - of_anon);
                }
                None => {
                    self.pss[anon].add(0, left);
                    self.pss[file].add(0, left);
                }
            },
            (true, false) => self.pss[anon].add_known(left),
            _ => self.pss[file].add_known(left),
        }
    }

    /// Splits the PSS of co-mapped pages between anonymous and file pages by `smaps_rollup`, if
    /// mappings hold both types. `Pss_Anon` and `Pss_Shmem` are rounded down to a KiB, so the split
    /// has the same error.
    fn settle_pss(&mut self, snapshot: &Snapshot) {
        let [private_anonymous, shared_anonymous, private_file, shared_file] = &mut self.pss;
        let exclusive_known = private_anonymous.is_known() && private_file.is_known();
        let open = shared_anonymous.absent.is_none() && !shared_anonymous.is_known();
        let (true, true, Ok(rollup)) = (exclusive_known, open, &snapshot.rollup) else { return };
        let counters = [SmapsCounter::Pss, SmapsCounter::PssAnon, SmapsCounter::PssShmem]
            .map(|c| rollup.get(c));
        let [Ok(total), Ok(anon), Ok(shmem)] = counters else { return };
        let shared = anon.saturating_add(shmem).saturating_sub(private_anonymous.low);
        let shared = shared.clamp(shared_anonymous.low, shared_anonymous.high);
        let others = private_anonymous.low.saturating_add(private_file.low);
        let Some(file) = total.checked_sub(others).and_then(|left| left.checked_sub(shared)) else {
            return;
        };
        *shared_anonymous = BoundedSum { low: shared, high: shared, absent: None };
        *shared_file = BoundedSum { low: file, high: file, absent: None };
    }

    fn cells(self) -> QuadrantCells {
        let [r, s, p, w, d] = [self.reserved, self.resident, self.pss, self.swapped, self.dirty];
        let mut columns = [r, s, p, w, d].map(IntoIterator::into_iter);
        std::array::from_fn(|_| {
            let mut next = |column: usize, decides: &str| {
                let tally = columns[column].next().expect("a column has four cells");
                tally.reading(decides)
            };
            QuadrantCell {
                reserved: next(0, PAGE_TABLES_DECIDE),
                resident: next(1, PAGE_TABLES_DECIDE),
                pss: next(2, PAGE_COUNTS_DECIDE),
                swapped: next(3, PAGE_TABLES_DECIDE),
                dirty: next(4, PAGE_TABLES_DECIDE),
            }
        })
    }
}
