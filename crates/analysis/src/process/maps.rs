//! The mappings of a process as a table with selected columns, rows and order. The report replaces
//! `pmap`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::{Arc, OnceLock};

use pagewise_model::mapping::Device;
use pagewise_model::report::{
    Audience, CellValue, CodedCells, ColumnCells, Fact, FactsShape, Gaps, Label, NamedFacts,
    Report, ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::{
    Absent, Bytes, Mapping, Name, Quadrant, Reading, Sharing, SmapsCounter, Snapshot, VmFlags,
    parallel,
};

use crate::blocks::{Coder, gaps};
use crate::filter::{BoundFilter, ColumnKind, Datum, FilterError, RowFilter};
use crate::pools::{self, MemoryPool, PoolKind, PoolMap};
use crate::sections;

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct MapsOptions {
    /// Columns to show.
    pub columns: MapsColumns,
    /// Sort column, and true for descending order; `None` sorts by address.
    pub sort: Option<(String, bool)>,
    /// Condition that rows must meet; `None` shows all rows.
    pub filter: Option<RowFilter>,
    /// True to show one row per file, or per pool for memory without a file.
    pub group_by_file: bool,
    /// True to add a table of the ELF sections in each file mapping.
    pub sections: bool,
}

/// Selection of columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MapsColumns {
    /// Columns of `pmap -x`, and PSS and swap.
    #[default]
    Default,
    /// Every line of smaps that any mapping has, including lines that pagewise does not know.
    All,
    /// Columns with these names.
    List(Vec<String>),
}

/// Identifier of a column. Fixed columns, kernel counters and unknown lines of smaps are columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapsColumnKey {
    Start,
    End,
    Size,
    Mode,
    Offset,
    Device,
    Inode,
    Pool,
    Quadrant,
    VmFlags,
    Name,
    /// The name of the mapping; for a mapping without a name, its use.
    Use,
    /// A number that is read from smaps or from the page tables.
    Of(MappingReading),
    /// A line that is not a [`SmapsCounter`]: an index into [`SmapsSurvey::extra`].
    Extra(usize),
}

/// A number that is read from a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingReading {
    Rss,
    Pss,
    Uss,
    Dirty,
    Swap,
    AnonHuge,
    SmapsCounter(SmapsCounter),
}

impl MappingReading {
    fn read(self, mapping: &Mapping) -> Reading<u64> {
        let bytes = match self {
            MappingReading::Rss => mapping.rss(),
            MappingReading::Pss => mapping.pss(),
            MappingReading::Uss => mapping.uss(),
            MappingReading::Dirty => mapping.dirty(),
            MappingReading::Swap => mapping.swap(),
            MappingReading::AnonHuge => mapping.anon_huge(),
            MappingReading::SmapsCounter(counter) => mapping.counter(counter),
        };
        bytes.map(|bytes| bytes.0)
    }
}

/// A column of pagewise: column, key, alternative name for users, heading, meaning.
type OwnColumn = (MapsColumnKey, &'static str, &'static str, &'static str, &'static str);

const OURS: [OwnColumn; 18] = [
    (MapsColumnKey::Start, "start", "address", "Address", "The first address."),
    (MapsColumnKey::End, "end", "end", "End", "One past the last address."),
    (MapsColumnKey::Size, "size", "kbytes", "Size", "Address space, touched or not."),
    (
        MapsColumnKey::Of(MappingReading::Rss),
        "rss",
        "res",
        "RSS",
        "Resident: in RAM and in this process's page table.",
    ),
    (
        MapsColumnKey::Of(MappingReading::Pss),
        "pss",
        "pss",
        "PSS",
        "Resident, each page divided by how often it is mapped.",
    ),
    (
        MapsColumnKey::Of(MappingReading::Uss),
        "uss",
        "uss",
        "USS",
        "Resident pages that only this process maps.",
    ),
    (
        MapsColumnKey::Of(MappingReading::Dirty),
        "dirty",
        "dirty",
        "Dirty",
        "Must be written somewhere before it can be dropped.",
    ),
    (MapsColumnKey::Of(MappingReading::Swap), "swap", "swap", "Swap", "In swap."),
    (
        MapsColumnKey::Of(MappingReading::AnonHuge),
        "anon_huge",
        "huge",
        "Huge",
        "Anonymous memory in huge pages.",
    ),
    (
        MapsColumnKey::Mode,
        "mode",
        "perm",
        "Mode",
        "r w x, s or p, R where no swap is reserved (? unknown).",
    ),
    (MapsColumnKey::Offset, "offset", "offset", "Offset", "Where in the file the mapping begins."),
    (
        MapsColumnKey::Device,
        "device",
        "dev",
        "Device",
        "Major and minor number of the file's device.",
    ),
    (
        MapsColumnKey::Inode,
        "inode",
        "inode",
        "Inode",
        "The file's inode; 0 if the mapping has no file.",
    ),
    (MapsColumnKey::Pool, "pool", "pool", "Pool", "Use of the memory."),
    (MapsColumnKey::Quadrant, "quadrant", "quadrant", "Quadrant", "By what was asked of mmap."),
    (MapsColumnKey::VmFlags, "VmFlags", "flags", "VmFlags", "The kernel's two-letter flags."),
    (
        MapsColumnKey::Name,
        "name",
        "mapping",
        "Mapping",
        "The file, or the kernel's name for the memory.",
    ),
    (
        MapsColumnKey::Use,
        "use",
        "use",
        "Mapping",
        "The name; in brackets what nameless memory is used for.",
    ),
];

const DEFAULT: [MapsColumnKey; 8] = [
    MapsColumnKey::Start,
    MapsColumnKey::Size,
    MapsColumnKey::Of(MappingReading::Rss),
    MapsColumnKey::Of(MappingReading::Pss),
    MapsColumnKey::Of(MappingReading::Dirty),
    MapsColumnKey::Of(MappingReading::Swap),
    MapsColumnKey::Mode,
    MapsColumnKey::Use,
];

/// Columns that only programs get, in addition to the default columns.
const FOR_PROGRAMS: [MapsColumnKey; 9] = [
    MapsColumnKey::End,
    MapsColumnKey::Of(MappingReading::Uss),
    MapsColumnKey::Of(MappingReading::AnonHuge),
    MapsColumnKey::Offset,
    MapsColumnKey::Device,
    MapsColumnKey::Inode,
    MapsColumnKey::Pool,
    MapsColumnKey::Quadrant,
    MapsColumnKey::Name,
];

const BEFORE_COUNTERS: [MapsColumnKey; 6] = [
    MapsColumnKey::Start,
    MapsColumnKey::End,
    MapsColumnKey::Mode,
    MapsColumnKey::Offset,
    MapsColumnKey::Device,
    MapsColumnKey::Inode,
];

/// Reports the mappings: table `mappings`, sums `total`, and `sections` on request.
///
/// # Errors
/// Returns an error if the options or the filter name a column that does not exist.
pub fn maps(snapshot: &Snapshot, options: &MapsOptions) -> Result<Report, FilterError> {
    let mappings = match &snapshot.mappings {
        Ok(mappings) => mappings,
        Err(absent) => return Ok(report(snapshot, vec![nothing(absent)])),
    };
    let rows = MapsRows::new(snapshot, mappings);
    let bound = options.filter.as_ref().map(|filter| rows.bind(filter)).transpose()?;
    let mut chosen = rows.chosen(bound.as_ref());
    let mut blocks = if options.group_by_file {
        rows.grouped(&chosen, options.sort.as_ref())?
    } else {
        if let Some((name, largest_first)) = &options.sort {
            rows.sort(&mut chosen, rows.find(name)?, *largest_first);
        }
        rows.listed(&chosen, &options.columns)?
    };
    if options.sections {
        blocks.push(ReportBlock::Table(sections::table(snapshot, &rows.pick(&chosen))));
    }
    Ok(report(snapshot, blocks))
}

/// Returns the letters of a mapping: `rwx`, `s` or `p`, and `R` for `MAP_NORESERVE`. `?` in place
/// of `R` means that the flags were not read.
///
/// ```text
/// r-xp-   program text
/// rw-p-   malloc
/// rw-pR   reserved without swap: touching it may kill the process when memory is short
/// ```
pub fn mode(mapping: &Mapping) -> Label {
    letters(mapping, flags(mapping).map_or(Reserve::Unknown, Reserve::from_flags))
}

/// Swap accounting of a mapping: charged, not charged or unknown.
#[derive(Clone, Copy)]
enum Reserve {
    Yes,
    No,
    Unknown,
}

impl Reserve {
    fn from_flags(flags: &VmFlags) -> Reserve {
        if flags.has("nr") { Reserve::No } else { Reserve::Yes }
    }
}

fn letters(mapping: &Mapping, reserve: Reserve) -> Label {
    let prot = mapping.prot;
    let access = usize::from(prot.read) * 4 + usize::from(prot.write) * 2 + usize::from(prot.exec);
    let sharing = match mapping.sharing {
        Sharing::Private => 0,
        Sharing::Shared => 1,
        Sharing::Unknown => 2,
    };
    Cow::Borrowed(MODES[reserve as usize][sharing][access])
}

/// All modes, by reservation (charged, not charged, unknown), sharing and access.
const MODES: [[[&str; 8]; 3]; 3] = [
    [
        ["---p-", "--xp-", "-w-p-", "-wxp-", "r--p-", "r-xp-", "rw-p-", "rwxp-"],
        ["---s-", "--xs-", "-w-s-", "-wxs-", "r--s-", "r-xs-", "rw-s-", "rwxs-"],
        ["---?-", "--x?-", "-w-?-", "-wx?-", "r--?-", "r-x?-", "rw-?-", "rwx?-"],
    ],
    [
        ["---pR", "--xpR", "-w-pR", "-wxpR", "r--pR", "r-xpR", "rw-pR", "rwxpR"],
        ["---sR", "--xsR", "-w-sR", "-wxsR", "r--sR", "r-xsR", "rw-sR", "rwxsR"],
        ["---?R", "--x?R", "-w-?R", "-wx?R", "r--?R", "r-x?R", "rw-?R", "rwx?R"],
    ],
    [
        ["---p?", "--xp?", "-w-p?", "-wxp?", "r--p?", "r-xp?", "rw-p?", "rwxp?"],
        ["---s?", "--xs?", "-w-s?", "-wxs?", "r--s?", "r-xs?", "rw-s?", "rwxs?"],
        ["---??", "--x??", "-w-??", "-wx??", "r--??", "r-x??", "rw-??", "rwx??"],
    ],
];

fn report(snapshot: &Snapshot, blocks: Vec<ReportBlock>) -> Report {
    let process = &snapshot.process;
    Report {
        schema: "pagewise.maps/1",
        title: vec![
            CellValue::text("Mappings of "),
            CellValue::Name(process.name.clone()),
            CellValue::text(format!(" ({})", process.pid)),
        ],
        blocks,
    }
}

/// Returns the block that replaces a table without data.
fn nothing(why: &Absent) -> ReportBlock {
    ReportBlock::Facts(NamedFacts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: FactsShape::List,
        facts: vec![Fact {
            key: "mappings".into(),
            label: "mappings".into(),
            value: CellValue::Absent(why.clone()),
            meaning: "".into(),
            audience: Audience::Everyone,
        }],
    })
}

/// The mappings of the table, and values that are computed once for all columns.
struct MapsRows<'a> {
    mappings: &'a [Mapping],
    pools: PoolMap,
    survey: OnceLock<SmapsSurvey>,
}

/// The lines that the smaps entries of a snapshot have.
#[derive(Default)]
struct SmapsSurvey {
    /// The counters that any mapping has, in the kernel's order.
    counters: Vec<SmapsCounter>,
    /// The names of the lines that are not a [`SmapsCounter`], in the order of their appearance.
    extra: Vec<Name>,
}

impl SmapsSurvey {
    /// Reads each entry once.
    fn from_mappings(mappings: &[Mapping]) -> SmapsSurvey {
        let mut survey = SmapsSurvey::default();
        let mut missing: Vec<SmapsCounter> = SmapsCounter::ALL.to_vec();
        for smaps in mappings.iter().filter_map(|m| m.smaps.as_deref().ok()) {
            missing.retain(|counter| !smaps.has(*counter));
            for (name, _) in &smaps.extra {
                if !survey.extra.contains(name) {
                    survey.extra.push(name.clone());
                }
            }
        }
        let is_there = |counter: &SmapsCounter| !missing.contains(counter);
        survey.counters = SmapsCounter::ALL.iter().copied().filter(is_there).collect();
        survey
    }
}

impl<'a> MapsRows<'a> {
    fn new(snapshot: &Snapshot, mappings: &'a [Mapping]) -> MapsRows<'a> {
        MapsRows { mappings, pools: pools::classify(snapshot), survey: OnceLock::new() }
    }

    fn survey(&self) -> &SmapsSurvey {
        self.survey.get_or_init(|| SmapsSurvey::from_mappings(self.mappings))
    }

    fn pool(&self, row: usize) -> &MemoryPool {
        &self.pools.list()[self.pools.index(row)]
    }

    fn pick(&self, rows: &[usize]) -> Vec<&'a Mapping> {
        rows.iter().map(|&row| &self.mappings[row]).collect()
    }

    /// Finds the column of a name: a kernel counter of exactly this name, else a column of
    /// pagewise, else a kernel counter whose name differs only in case, else an unknown line of
    /// smaps with exactly this name.
    fn key(&self, name: &str) -> Option<MapsColumnKey> {
        let same = |a: &str| a.eq_ignore_ascii_case(name);
        let counter = |fits: &dyn Fn(&str) -> bool| {
            SmapsCounter::ALL
                .iter()
                .copied()
                .find(|c| fits(c.name()))
                .map(|counter| MapsColumnKey::Of(MappingReading::SmapsCounter(counter)))
        };
        let extra = || self.survey().extra.iter().position(|n| n.as_bytes() == name.as_bytes());
        counter(&|known| known == name)
            .or_else(|| {
                OURS.iter().find(|(_, key, word, ..)| same(key) || same(word)).map(|(key, ..)| *key)
            })
            .or_else(|| counter(&same))
            .or_else(|| extra().map(MapsColumnKey::Extra))
    }

    fn find(&self, name: &str) -> Result<MapsColumnKey, FilterError> {
        self.key(name).ok_or_else(|| FilterError::unknown_column(name, &known()))
    }

    fn bind(&self, filter: &RowFilter) -> Result<BoundFilter<MapsColumnKey>, FilterError> {
        filter.bind(|name| self.key(name).map(|key| (key, kind(key))), &known())
    }

    fn chosen(&self, filter: Option<&BoundFilter<MapsColumnKey>>) -> Vec<usize> {
        let fits = |row: &usize| filter.is_none_or(|f| f.fits(&|key| self.datum(*key, *row)));
        (0..self.mappings.len()).filter(fits).collect()
    }

    /// Sorts stably; rows without a value are last in both directions.
    fn sort(&self, rows: &mut [usize], key: MapsColumnKey, largest_first: bool) {
        let data: Vec<Datum<'_>> =
            (0..self.mappings.len()).map(|row| self.datum(key, row)).collect();
        rows.sort_by(|&a, &b| order(&data[a], &data[b], largest_first));
    }

    fn datum(&self, key: MapsColumnKey, row: usize) -> Datum<'a> {
        let m = &self.mappings[row];
        match key {
            MapsColumnKey::Start => Datum::Number(m.range.start),
            MapsColumnKey::End => Datum::Number(m.range.end),
            MapsColumnKey::Offset => Datum::Number(m.offset),
            MapsColumnKey::Inode => Datum::Number(m.inode),
            MapsColumnKey::Size => Datum::Number(m.size().0),
            MapsColumnKey::Name => Datum::Text(m.name.as_bytes().into()),
            MapsColumnKey::Use => {
                Datum::Text(self.pools.known_as(row, m).as_bytes().to_vec().into())
            }
            MapsColumnKey::Mode => text(mode(m)),
            MapsColumnKey::Device => text(device(m.device)),
            MapsColumnKey::Pool => text(self.pool(row).kind.id().into()),
            MapsColumnKey::Quadrant => text(m.declared().key().into()),
            MapsColumnKey::VmFlags => match flags(m) {
                Ok(flags) => Datum::Text(spell(flags).into()),
                Err(_) => Datum::Absent,
            },
            MapsColumnKey::Extra(i) => match extra(m, &self.survey().extra[i]) {
                Some(value) => Datum::Text(value.as_bytes().into()),
                None => Datum::Absent,
            },
            MapsColumnKey::Of(measure) => measure.read(m).map_or(Datum::Absent, Datum::Number),
        }
    }

    fn listed(
        &self,
        rows: &[usize],
        columns: &MapsColumns,
    ) -> Result<Vec<ReportBlock>, FilterError> {
        let (shown, for_programs) = self.choose(columns)?;
        let mappings = self.pick(rows);
        let mut table = self.columns(&mappings, rows, &shown);
        if matches!(columns, MapsColumns::Default)
            && let Some(column) = table.last_mut()
        {
            column.audience = Audience::People;
        }
        for mut column in self.columns(&mappings, rows, &for_programs) {
            column.audience = Audience::Programs;
            table.push(column);
        }
        let count = format!("{} mappings", rows.len());
        let note = if mappings.iter().any(|m| m.name.as_bytes() == b"[vsyscall]") {
            "[vsyscall] is the kernel's page: it is in this table and not in VIRT."
        } else {
            ""
        };
        Ok(with_total(table, count.into(), note.into()))
    }

    /// Returns the columns for all readers, and the columns for programs only.
    fn choose(
        &self,
        columns: &MapsColumns,
    ) -> Result<(Vec<MapsColumnKey>, Vec<MapsColumnKey>), FilterError> {
        Ok(match columns {
            MapsColumns::Default => (DEFAULT.into(), FOR_PROGRAMS.into()),
            MapsColumns::List(names) => {
                (names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?, Vec::new())
            }
            MapsColumns::All => {
                let mut all = BEFORE_COUNTERS.to_vec();
                all.extend(
                    self.survey()
                        .counters
                        .iter()
                        .copied()
                        .map(|counter| MapsColumnKey::Of(MappingReading::SmapsCounter(counter))),
                );
                all.extend((0..self.survey().extra.len()).map(MapsColumnKey::Extra));
                all.extend([MapsColumnKey::VmFlags, MapsColumnKey::Name]);
                (all, vec![MapsColumnKey::Pool, MapsColumnKey::Quadrant])
            }
        })
    }

    /// Builds the columns of `keys`. A second CPU builds half of them if the table is large.
    fn columns(
        &self,
        mappings: &[&'a Mapping],
        rows: &[usize],
        keys: &[MapsColumnKey],
    ) -> Vec<TableColumn> {
        let entries = DistinctEntries::of_mappings(mappings);
        let is_large = mappings.len() >= parallel::MIN_ROWS;
        parallel::halves(is_large, keys, |keys| {
            self.columns_of(mappings, rows, entries.as_ref(), keys)
        })
    }

    fn columns_of(
        &self,
        mappings: &[&'a Mapping],
        rows: &[usize],
        entries: Option<&DistinctEntries<'_>>,
        keys: &[MapsColumnKey],
    ) -> Vec<TableColumn> {
        let mut known: Vec<Option<ColumnCells>> = Vec::with_capacity(keys.len());
        for key in keys {
            let by_entry = entries.and_then(|entries| self.cells_by_entry(entries, *key));
            known.push(by_entry.or_else(|| self.cells(mappings, rows, *key)));
        }
        let unknown = keys.iter().zip(&known).filter(|(_, cells)| cells.is_none());
        let unknown: Vec<MapsColumnKey> = unknown.map(|(key, _)| *key).collect();
        let mut from_smaps = fill_together(mappings, &unknown).into_iter();
        let column = |(key, cells): (&MapsColumnKey, Option<ColumnCells>)| {
            let (cells, gaps) = match cells {
                Some(cells) => (cells, Gaps::None),
                None => from_smaps.next().expect("one for each key that has no cells here"),
            };
            let (key, label, meaning) = self.heading(*key);
            TableColumn { meaning, gaps, ..TableColumn::new(key, label, cells) }
        };
        keys.iter().zip(known).map(column).collect()
    }

    /// Returns the cells of a column whose values depend on the smaps entry only; `None` for other
    /// columns.
    fn cells_by_entry(
        &self,
        entries: &DistinctEntries<'_>,
        key: MapsColumnKey,
    ) -> Option<ColumnCells> {
        let each = entries.first.iter();
        let values = match key {
            MapsColumnKey::Of(MappingReading::SmapsCounter(counter)) => {
                each.map(|mapping| counter_cell(mapping, counter)).collect()
            }
            MapsColumnKey::VmFlags => each
                .map(|mapping| match flags(mapping) {
                    Ok(flags) => CellValue::Name(Name::new(&spell(flags))),
                    Err(why) => CellValue::Absent(why),
                })
                .collect(),
            MapsColumnKey::Extra(i) => {
                let name = &self.survey().extra[i];
                each.map(|mapping| extra_cell(mapping, name)).collect()
            }
            _ => return None,
        };
        Some(ColumnCells::Coded(CodedCells { values, codes: Arc::clone(&entries.codes) }))
    }

    /// Returns the cells of a column that does not need smaps; `None` for the columns of
    /// [`fill_together`].
    fn cells(
        &self,
        mappings: &[&Mapping],
        rows: &[usize],
        key: MapsColumnKey,
    ) -> Option<ColumnCells> {
        let each = mappings.iter();
        Some(match key {
            MapsColumnKey::Start => ColumnCells::Addresses(each.map(|m| m.range.start).collect()),
            MapsColumnKey::End => ColumnCells::Addresses(each.map(|m| m.range.end).collect()),
            MapsColumnKey::Offset => ColumnCells::Addresses(each.map(|m| m.offset).collect()),
            MapsColumnKey::Inode => ColumnCells::Counts(each.map(|m| m.inode).collect()),
            MapsColumnKey::Size => ColumnCells::Bytes(each.map(|m| m.size().0).collect()),
            MapsColumnKey::Name => ColumnCells::Names(each.map(|m| m.name.clone()).collect()),
            MapsColumnKey::Use => {
                let name = |(&row, m): (&usize, &&Mapping)| self.pools.known_as(row, m);
                ColumnCells::Names(rows.iter().zip(mappings).map(name).collect())
            }
            MapsColumnKey::Device => coded_labels(each.map(|m| m.device), device),
            MapsColumnKey::Quadrant => coded_labels(each.map(|m| m.declared()), quadrant),
            MapsColumnKey::Pool => {
                let id = |kind: PoolKind| kind.id().into();
                coded_labels(rows.iter().map(|&row| self.pool(row).kind), id)
            }
            MapsColumnKey::Extra(i) => {
                let name = &self.survey().extra[i];
                ColumnCells::Values(each.map(|mapping| extra_cell(mapping, name)).collect())
            }
            MapsColumnKey::Mode | MapsColumnKey::VmFlags | MapsColumnKey::Of(_) => return None,
        })
    }

    fn heading(&self, key: MapsColumnKey) -> (Label, Label, Label) {
        if let MapsColumnKey::Extra(i) = key {
            let name = self.survey().extra[i].escaped().into_owned();
            return (name.clone().into(), name.into(), "A line unknown to pagewise.".into());
        }
        if let MapsColumnKey::Of(MappingReading::SmapsCounter(counter)) = key {
            return (counter.name().into(), counter.name().into(), "".into());
        }
        let about =
            OURS.iter().find(|(own, ..)| *own == key).expect("every fixed column is listed");
        let (_, key, _, label, meaning) = *about;
        (key.into(), label.into(), meaning.into())
    }

    /// Builds a table with one row per file, or per pool for mappings without a file.
    fn grouped(
        &self,
        rows: &[usize],
        sort: Option<&(String, bool)>,
    ) -> Result<Vec<ReportBlock>, FilterError> {
        let mut groups: BTreeMap<Name, MappingGroup> = BTreeMap::new();
        for &row in rows {
            groups.entry(self.group_name(row)).or_default().add(&self.mappings[row]);
        }
        let mut groups: Vec<(Name, MappingGroup)> = groups.into_iter().collect();
        let (name, largest_first) = sort.map_or(("rss", true), |(name, first)| (name, *first));
        let column = GROUP_COLUMNS.iter().position(|column| column.eq_ignore_ascii_case(name));
        let column = column.ok_or_else(|| FilterError::unknown_column(name, &GROUP_COLUMNS))?;
        groups
            .sort_by(|a, b| order(&group_datum(a, column), &group_datum(b, column), largest_first));
        let count = format!("{} mappings in {} groups", rows.len(), groups.len());
        Ok(with_total(group_columns(groups), count.into(), "".into()))
    }

    fn group_name(&self, row: usize) -> Name {
        let mapping = &self.mappings[row];
        match mapping.name.as_bytes() {
            [] => self.pool(row).name.clone(),
            _ => mapping.name.clone(),
        }
    }
}

/// Returns all names of columns.
fn known() -> Vec<&'static str> {
    let ours = OURS.iter().flat_map(|(_, key, word, ..)| [*key, *word]);
    ours.chain(SmapsCounter::ALL.iter().map(|counter| counter.name())).collect()
}

fn kind(key: MapsColumnKey) -> ColumnKind {
    match key {
        MapsColumnKey::Mode
        | MapsColumnKey::Device
        | MapsColumnKey::Pool
        | MapsColumnKey::Quadrant
        | MapsColumnKey::VmFlags => ColumnKind::Text,
        MapsColumnKey::Name | MapsColumnKey::Use | MapsColumnKey::Extra(_) => ColumnKind::Text,
        _ => ColumnKind::Number,
    }
}

fn order(a: &Datum<'_>, b: &Datum<'_>, largest_first: bool) -> Ordering {
    let order = match (a, b) {
        (Datum::Absent, Datum::Absent) => return Ordering::Equal,
        (Datum::Absent, _) => return Ordering::Greater,
        (_, Datum::Absent) => return Ordering::Less,
        (Datum::Number(a), Datum::Number(b)) => a.cmp(b),
        (Datum::Text(a), Datum::Text(b)) => a.cmp(b),
        (Datum::Number(_), Datum::Text(_)) => Ordering::Less,
        (Datum::Text(_), Datum::Number(_)) => Ordering::Greater,
    };
    if largest_first { order.reverse() } else { order }
}

fn text<'a>(label: Label) -> Datum<'a> {
    Datum::Text(match label {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into(),
    })
}

fn quadrant(quadrant: Quadrant) -> Label {
    Cow::Borrowed(quadrant.key())
}

/// Stores each of a few different labels once. `label` returns the label of a key.
fn coded_labels<K: Copy + Eq + Hash>(
    keys: impl Iterator<Item = K>,
    label: impl Fn(K) -> Label,
) -> ColumnCells {
    let mut coder = Coder::new();
    let codes = keys.map(|key| coder.code(key)).collect();
    let values = coder.distinct.into_iter().map(|key| CellValue::Text(label(key))).collect();
    ColumnCells::Coded(CodedCells { values, codes: Arc::new(codes) })
}

/// Returns the device as `maps` writes it: `fe:00`.
fn device(device: Device) -> Label {
    if device.major == 0 && device.minor == 0 {
        return "00:00".into();
    }
    format!("{:02x}:{:02x}", device.major, device.minor).into()
}

fn flags(mapping: &Mapping) -> Reading<&VmFlags> {
    let smaps = mapping.smaps.as_ref().map_err(Clone::clone)?;
    smaps.flags.as_ref().ok_or_else(|| Absent::NotInThisKernel("3.8".into()))
}

fn spell(flags: &VmFlags) -> Vec<u8> {
    flags.iter().collect::<Vec<_>>().join(&b' ')
}

fn extra<'a>(mapping: &'a Mapping, name: &Name) -> Option<&'a Name> {
    let smaps = mapping.smaps.as_ref().ok()?;
    smaps.extra.iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

fn extra_cell(mapping: &Mapping, name: &Name) -> CellValue {
    extra(mapping, name).cloned().map_or(CellValue::None, CellValue::Name)
}

fn counter_cell(mapping: &Mapping, counter: SmapsCounter) -> CellValue {
    match mapping.counter(counter) {
        Ok(bytes) if counter.is_bytes() => CellValue::Bytes(bytes.0),
        Ok(count) => CellValue::Count(count.0),
        Err(why) => CellValue::Absent(why),
    }
}

/// Minimum number of rows for each distinct smaps entry if the values are stored once per entry.
/// With fewer rows, a value for each row takes less time.
const ROWS_PER_ENTRY: usize = 8;

/// The distinct smaps entries of the rows of a table. Values that depend only on the entry are
/// computed once for each entry.
struct DistinctEntries<'a> {
    /// The first mapping of each entry.
    first: Vec<&'a Mapping>,
    /// For each row, the index of its entry in `first`.
    codes: Arc<Vec<u32>>,
}

impl<'a> DistinctEntries<'a> {
    /// Compares entries by their addresses in memory, because mappings with equal entries share one
    /// `Smaps`. Returns `None` if there are too many distinct entries, or if a mapping lacks an
    /// entry.
    fn of_mappings(mappings: &[&'a Mapping]) -> Option<DistinctEntries<'a>> {
        let most = mappings.len() / ROWS_PER_ENTRY;
        let mut coder = Coder::new();
        let mut first = Vec::new();
        let mut codes = Vec::with_capacity(mappings.len());
        for mapping in mappings {
            codes.push(coder.code(Arc::as_ptr(mapping.smaps.as_ref().ok()?)));
            if coder.distinct.len() > first.len() {
                first.push(*mapping);
            }
            if first.len() > most {
                return None;
            }
        }
        Some(DistinctEntries { first, codes: Arc::new(codes) })
    }
}

/// Number of mappings that are processed at a time: their smaps entries fit into the first-level
/// cache.
const BLOCK: usize = 64;

/// Fills several columns at the same time, so that each entry is fetched from memory once.
fn fill_together<'a>(mappings: &[&'a Mapping], keys: &[MapsColumnKey]) -> Vec<(ColumnCells, Gaps)> {
    let rows = mappings.len();
    let mut columns: Vec<Filling<'a>> =
        keys.iter().filter_map(|key| Filling::for_key(*key, rows)).collect();
    for block in mappings.chunks(BLOCK) {
        columns.iter_mut().for_each(|column| column.push_mappings(block));
    }
    columns.into_iter().map(Filling::finish).collect()
}

/// A column that needs smaps, while it is filled.
enum Filling<'a> {
    Measure(MappingReading, NumberColumn),
    /// Adjacent mappings often have the same flags, so the result for the previous flags is stored.
    Mode(Option<(&'a VmFlags, Reserve)>, Vec<Label>),
    /// A process has few different sets of flags, so the text of each set is stored once.
    Flags(Vec<(&'a VmFlags, Name)>, Vec<Name>, Vec<(usize, Absent)>),
}

impl<'a> Filling<'a> {
    fn for_key(key: MapsColumnKey, rows: usize) -> Option<Filling<'a>> {
        match key {
            MapsColumnKey::Of(measure) => {
                Some(Filling::Measure(measure, NumberColumn::with_capacity(rows)))
            }
            MapsColumnKey::Mode => Some(Filling::Mode(None, Vec::with_capacity(rows))),
            MapsColumnKey::VmFlags => {
                Some(Filling::Flags(Vec::new(), Vec::with_capacity(rows), Vec::new()))
            }
            _ => None,
        }
    }

    fn push_mappings(&mut self, mappings: &[&'a Mapping]) {
        let mappings = mappings.iter().copied();
        match self {
            // Most columns are counters, so their loop does not branch on the type of reading.
            Filling::Measure(MappingReading::SmapsCounter(counter), numbers) => {
                mappings.for_each(|mapping| numbers.push(mapping.counter(*counter).map(|n| n.0)));
            }
            Filling::Measure(measure, numbers) => {
                mappings.for_each(|mapping| numbers.push(measure.read(mapping)));
            }
            Filling::Mode(last, labels) => {
                labels.extend(mappings.map(|mapping| letters(mapping, reserve(mapping, last))));
            }
            Filling::Flags(seen, names, absent) => {
                for mapping in mappings {
                    names.push(match flags(mapping) {
                        Ok(flags) => spelled(flags, seen),
                        Err(why) => {
                            absent.push((names.len(), why));
                            Name::default()
                        }
                    });
                }
            }
        }
    }

    fn finish(self) -> (ColumnCells, Gaps) {
        match self {
            Filling::Measure(MappingReading::SmapsCounter(counter), numbers)
                if !counter.is_bytes() =>
            {
                numbers.finish(ColumnCells::Counts)
            }
            Filling::Measure(_, numbers) => numbers.finish(ColumnCells::Bytes),
            Filling::Mode(_, labels) => (ColumnCells::Labels(labels), Gaps::None),
            Filling::Flags(_, names, absent) => {
                let gaps = gaps(absent, names.len());
                (ColumnCells::Names(names), gaps)
            }
        }
    }
}

fn reserve<'a>(mapping: &'a Mapping, last: &mut Option<(&'a VmFlags, Reserve)>) -> Reserve {
    match (flags(mapping), *last) {
        (Err(_), _) => Reserve::Unknown,
        (Ok(flags), Some((known, reserve))) if known == flags => reserve,
        (Ok(flags), _) => last.insert((flags, Reserve::from_flags(flags))).1,
    }
}

fn spelled<'a>(flags: &'a VmFlags, seen: &mut Vec<(&'a VmFlags, Name)>) -> Name {
    if let Some((_, name)) = seen.iter().find(|(known, _)| *known == flags) {
        return name.clone();
    }
    let name = Name::new(&spell(flags));
    seen.push((flags, name.clone()));
    name
}

/// A column of numbers while it is filled: its cells, and the reasons for missing values.
#[derive(Default)]
struct NumberColumn {
    cells: Vec<u64>,
    absent: Vec<(usize, Absent)>,
}

impl NumberColumn {
    fn with_capacity(rows: usize) -> NumberColumn {
        NumberColumn { cells: Vec::with_capacity(rows), absent: Vec::new() }
    }

    #[inline]
    fn push(&mut self, reading: Reading<u64>) {
        let cell = reading.unwrap_or_else(|absent| {
            self.absent.push((self.cells.len(), absent));
            0
        });
        self.cells.push(cell);
    }

    fn finish(self, make: fn(Vec<u64>) -> ColumnCells) -> (ColumnCells, Gaps) {
        let gaps = gaps(self.absent, self.cells.len());
        (make(self.cells), gaps)
    }
}

fn readings(readings: impl Iterator<Item = Reading<Bytes>>) -> (ColumnCells, Gaps) {
    let mut numbers = NumberColumn::default();
    for reading in readings {
        numbers.push(reading.map(|bytes| bytes.0));
    }
    numbers.finish(ColumnCells::Bytes)
}

/// Builds the table `mappings` with its sums as the last row, and repeats the sums as facts
/// `total`.
fn with_total(columns: Vec<TableColumn>, count: Label, note: Label) -> Vec<ReportBlock> {
    let mut counts = RowsOfCodes::default();
    let mut sums: Vec<CellValue> =
        columns.iter().map(|column| total(column, &mut counts)).collect();
    let facts = columns.iter().zip(&sums).filter(|(_, sum)| **sum != CellValue::None);
    let fact = |(column, sum): (&TableColumn, &CellValue)| Fact {
        key: column.key.clone(),
        label: column.label.clone(),
        value: sum.clone(),
        meaning: "".into(),
        audience: Audience::Programs,
    };
    let total = NamedFacts {
        key: "total".into(),
        title: "".into(),
        audience: Audience::Programs,
        shape: FactsShape::List,
        facts: facts.map(fact).collect(),
    };
    // The number of mappings is written to the last visible column without a sum, usually the name.
    let has_room = |(column, sum): &(&TableColumn, &mut CellValue)| {
        **sum == CellValue::None && column.audience != Audience::Programs
    };
    if let Some((_, last)) = columns.iter().zip(&mut sums).rev().find(has_room) {
        *last = CellValue::Text(count);
    }
    let table = ReportTable {
        key: "mappings".into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns,
        row_keys: None,
        total: Some(sums),
        note,
    };
    vec![ReportBlock::Table(table), ReportBlock::Facts(total)]
}

/// Sum of a column of bytes; `CellValue::None` for other columns, and for the page sizes.
///
/// A column with a gap has no sum, because the missing values would count as 0.
fn total(column: &TableColumn, counts: &mut RowsOfCodes) -> CellValue {
    if matches!(column.key.as_ref(), "KernelPageSize" | "MMUPageSize") {
        return CellValue::None;
    }
    let cells = match &column.cells {
        ColumnCells::Bytes(cells) => cells,
        ColumnCells::Coded(coded) if is_byte_counter(&column.key) => {
            return total_of_coded(coded, counts);
        }
        _ => return CellValue::None,
    };
    match &column.gaps {
        Gaps::None => {
            CellValue::Bytes(cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(*cell)))
        }
        Gaps::All(absent) => CellValue::Absent(absent.clone()),
        Gaps::Some(rows) => {
            rows.values().next().map_or(CellValue::None, |absent| CellValue::Absent(absent.clone()))
        }
    }
}

fn is_byte_counter(column: &str) -> bool {
    SmapsCounter::ALL.iter().any(|counter| counter.is_bytes() && counter.name() == column)
}

/// Does the same as [`total`] for the cells of a byte counter that are stored once per smaps entry.
fn total_of_coded(coded: &CodedCells, counts: &mut RowsOfCodes) -> CellValue {
    if let Some(absent) = coded.values.iter().find(|value| matches!(value, CellValue::Absent(_))) {
        return absent.clone();
    }
    let bytes = |(value, rows): (&CellValue, &u64)| match value {
        CellValue::Bytes(bytes) => bytes.saturating_mul(*rows),
        _ => 0,
    };
    let counts = counts.of_column(coded);
    CellValue::Bytes(coded.values.iter().zip(counts).map(bytes).fold(0, u64::saturating_add))
}

/// Number of rows with each code in the column that was counted last. Adjacent columns share their
/// codes, so that one count serves several columns.
#[derive(Default)]
struct RowsOfCodes {
    codes: Arc<Vec<u32>>,
    rows: Vec<u64>,
}

impl RowsOfCodes {
    fn of_column(&mut self, coded: &CodedCells) -> &[u64] {
        if !Arc::ptr_eq(&self.codes, &coded.codes) {
            self.codes = Arc::clone(&coded.codes);
            self.rows = vec![0; coded.values.len()];
            for code in coded.codes.iter() {
                self.rows[*code as usize] += 1;
            }
        }
        &self.rows
    }
}

/// Sums over the mappings of one file or pool.
struct MappingGroup {
    mappings: u64,
    size: Bytes,
    sums: [Reading<Bytes>; GROUP_SUMS.len()],
}

type ReadMapping = fn(&Mapping) -> Reading<Bytes>;

/// Readings that a group sums: key, heading, function.
const GROUP_SUMS: [(&str, &str, ReadMapping); 5] = [
    ("rss", "RSS", Mapping::rss),
    ("pss", "PSS", Mapping::pss),
    ("uss", "USS", Mapping::uss),
    ("dirty", "Dirty", Mapping::dirty),
    ("swap", "Swap", Mapping::swap),
];

const GROUP_COLUMNS: [&str; 8] = ["mappings", "size", "rss", "pss", "uss", "dirty", "swap", "name"];

impl Default for MappingGroup {
    fn default() -> MappingGroup {
        MappingGroup {
            mappings: 0,
            size: Bytes::ZERO,
            sums: [const { Ok(Bytes::ZERO) }; GROUP_SUMS.len()],
        }
    }
}

impl MappingGroup {
    fn add(&mut self, mapping: &Mapping) {
        self.mappings += 1;
        self.size += mapping.size();
        for (sum, (_, _, read)) in self.sums.iter_mut().zip(&GROUP_SUMS) {
            if let Ok(bytes) = sum {
                *sum = read(mapping).map(|more| *bytes + more);
            }
        }
    }
}

/// Returns the value of a group in [`GROUP_COLUMNS`]`[column]`.
fn group_datum((name, group): &(Name, MappingGroup), column: usize) -> Datum<'_> {
    match column {
        0 => Datum::Number(group.mappings),
        1 => Datum::Number(group.size.0),
        7 => Datum::Text(name.as_bytes().into()),
        sum => match &group.sums[sum - 2] {
            Ok(bytes) => Datum::Number(bytes.0),
            Err(_) => Datum::Absent,
        },
    }
}

fn group_columns(groups: Vec<(Name, MappingGroup)>) -> Vec<TableColumn> {
    let count = |(_, group): &(Name, MappingGroup)| group.mappings;
    let size = |(_, group): &(Name, MappingGroup)| group.size.0;
    let mut columns = vec![
        TableColumn::new(
            "mappings",
            "Mappings",
            ColumnCells::Counts(groups.iter().map(count).collect()),
        ),
        TableColumn::new("size", "Size", ColumnCells::Bytes(groups.iter().map(size).collect())),
    ];
    for (i, (key, label, _)) in GROUP_SUMS.iter().enumerate() {
        let (cells, gaps) = readings(groups.iter().map(|(_, group)| group.sums[i].clone()));
        columns.push(TableColumn { gaps, ..TableColumn::new(*key, *label, cells) });
    }
    let names = groups.into_iter().map(|(name, _)| name).collect();
    columns.push(TableColumn::new("name", "Mapping", ColumnCells::Names(names)));
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagewise_model::mapping::AddrRange;

    use crate::sample::{column, mapping, resident, snapshot, table, with_smaps};

    fn three() -> Snapshot {
        snapshot(vec![
            resident("1000-3000 r-xp 0 12 /usr/bin/x", 4096),
            resident("5000-a000 rw-p 0 0 [heap]", 20480),
            resident("b000-c000 r--p 1000 13 /usr/lib/libc.so.6", 0),
        ])
    }

    fn show(snapshot: &Snapshot, options: MapsOptions) -> Report {
        maps(snapshot, &options).unwrap()
    }

    fn names(report: &Report) -> Vec<String> {
        let name = |value: &CellValue| match value {
            CellValue::Name(name) => name.escaped().into_owned(),
            other => format!("{other:?}"),
        };
        column(table(report, "mappings"), "name").iter().map(name).collect()
    }

    fn total(report: &Report, key: &str) -> CellValue {
        let fact = |block: &ReportBlock| match block {
            ReportBlock::Facts(facts) if facts.key == "total" => {
                facts.facts.iter().find(|f| f.key == key).map(|f| f.value.clone())
            }
            _ => None,
        };
        report.blocks.iter().find_map(fact).unwrap_or(CellValue::None)
    }

    #[test]
    fn the_default_columns_end_with_the_use_for_people_and_the_name_for_programs() {
        let report = show(&three(), MapsOptions::default());
        let table = table(&report, "mappings");
        let shown = table.columns.iter().filter(|c| c.audience == Audience::Everyone);
        let labels: Vec<_> = shown.map(|c| c.label.as_ref()).collect();
        assert_eq!(labels, ["Address", "Size", "RSS", "PSS", "Dirty", "Swap", "Mode"]);
        let last = |audience| table.columns.iter().rfind(|c| c.audience == audience).unwrap();
        assert_eq!(last(Audience::People).label, "Mapping");
        assert_eq!(last(Audience::Programs).key, "name");
        assert!(
            table.columns.iter().any(|c| c.key == "quadrant" && c.audience == Audience::Programs)
        );
    }

    #[test]
    fn values_stored_once_per_entry_are_those_of_each_row() {
        let kinds = [
            resident("1000-2000 rw-p 0 0", 4096),
            with_smaps(mapping("2000-3000 rw-p 0 0"), &[(SmapsCounter::Rss, 8192)], "rd wr"),
            resident("3000-4000 ---p 0 0", 0),
        ];
        let row = |at: usize, share: bool| {
            let kind = &kinds[[0, 1, 0, 0, 2][at % 5]];
            let start = (at as u64) << 12;
            let range = AddrRange { start, end: start + 0x1000 };
            let own = || kind.smaps.as_deref().map(|smaps| Arc::new(smaps.clone()));
            let smaps = if share { kind.smaps.clone() } else { own().map_err(Clone::clone) };
            Mapping { range, smaps, ..kind.clone() }
        };
        let report = |share| {
            let rows = (1..100).map(|at| row(at, share)).collect();
            let columns = MapsColumns::All;
            show(&snapshot(rows), MapsOptions { columns, ..MapsOptions::default() })
        };
        let (shared, apart) = (report(true), report(false));
        let (left, right) = (table(&shared, "mappings"), table(&apart, "mappings"));
        let is_coded = |table: &ReportTable| {
            let column = table.columns.iter().find(|column| column.key == "Rss").unwrap();
            matches!(column.cells, ColumnCells::Coded(_))
        };
        assert!(is_coded(left) && !is_coded(right));
        assert_eq!(left.total, right.total);
        for (left, right) in left.columns.iter().zip(&right.columns) {
            assert_eq!(left.key, right.key);
            for row in 0..99 {
                assert_eq!(left.value(row), right.value(row), "{} {row}", left.key);
            }
        }
        assert_eq!(total(&shared, "Rss"), CellValue::Bytes(59 * 4096 + 20 * 8192));
        assert!(matches!(total(&shared, "Pss"), CellValue::Absent(_)));
    }

    #[test]
    fn memory_without_a_name_is_named_by_its_use() {
        let columns = MapsColumns::List(vec!["use".into()]);
        let all = vec![
            resident("5000-a000 rw-p 0 0 [heap]", 4096),
            mapping("b000-c000 ---p 0 0"),
            mapping("d000-e000 rwxp 0 0"),
        ];
        let report = show(&snapshot(all), MapsOptions { columns, ..MapsOptions::default() });
        let names = column(table(&report, "mappings"), "use");
        assert_eq!(names, ["[heap]", "[no access]", "[JIT]"].map(|n| CellValue::Name(n.into())));
    }

    #[test]
    fn totals_are_the_sums_of_the_rows_shown() {
        let filter = Some(RowFilter::parse("name~/usr").unwrap());
        let report = show(&three(), MapsOptions { filter, ..MapsOptions::default() });
        assert_eq!(names(&report), ["/usr/bin/x", "/usr/lib/libc.so.6"]);
        assert_eq!(total(&report, "size"), CellValue::Bytes(0x3000));
        assert_eq!(total(&report, "rss"), CellValue::Bytes(4096));
    }

    #[test]
    fn rows_are_sorted_by_any_column_either_way() {
        let by = |key: &str, largest| {
            let sort = Some((key.to_owned(), largest));
            names(&show(&three(), MapsOptions { sort, ..MapsOptions::default() }))
        };
        assert_eq!(by("RSS", true), ["[heap]", "/usr/bin/x", "/usr/lib/libc.so.6"]);
        assert_eq!(by("size", false), ["/usr/lib/libc.so.6", "/usr/bin/x", "[heap]"]);
        assert_eq!(by("name", false), ["/usr/bin/x", "/usr/lib/libc.so.6", "[heap]"]);
        assert_eq!(by("Private_Dirty", true)[0], "[heap]");
    }

    #[test]
    fn a_mapping_that_was_not_read_sorts_last_and_leaves_no_total() {
        let mut all = three().mappings.unwrap();
        all.insert(0, mapping("100-200 rw-p 0 0"));
        let sort = Some(("rss".to_owned(), false));
        let report = show(&snapshot(all), MapsOptions { sort, ..MapsOptions::default() });
        assert_eq!(names(&report).last().unwrap(), "");
        assert!(matches!(total(&report, "rss"), CellValue::Absent(_)));
        assert_eq!(total(&report, "size"), CellValue::Bytes(0x8100));
    }

    #[test]
    fn the_letter_r_is_unknown_where_flags_were_not_read() {
        let line = "1000-2000 rw-p 0 0";
        assert_eq!(mode(&mapping(line)), "rw-p?");
        assert_eq!(mode(&with_smaps(mapping(line), &[], "rd wr")), "rw-p-");
        assert_eq!(mode(&with_smaps(mapping(line), &[], "rd wr nr")), "rw-pR");
        assert_eq!(mode(&with_smaps(mapping("1-2 --xs 0 0"), &[], "")), "--xs-");
    }

    #[test]
    fn all_columns_are_those_that_the_kernel_provides() {
        let counters = [
            (SmapsCounter::Rss, 4096),
            (SmapsCounter::KernelPageSize, 4096),
            (SmapsCounter::ThpEligible, 1),
        ];
        let mut odd = with_smaps(mapping("1000-2000 rw-p 0 0"), &counters, "rd zz");
        Arc::make_mut(odd.smaps.as_mut().unwrap()).extra.push(("NewLine".into(), "12 kB".into()));
        let report = show(
            &snapshot(vec![odd]),
            MapsOptions { columns: MapsColumns::All, ..MapsOptions::default() },
        );
        let table = table(&report, "mappings");
        let keys: Vec<_> = table.columns.iter().map(|c| c.key.as_ref()).collect();
        let expected = [
            "start",
            "end",
            "mode",
            "offset",
            "device",
            "inode",
            "KernelPageSize",
            "Rss",
            "THPeligible",
            "NewLine",
            "VmFlags",
            "name",
            "pool",
            "quadrant",
        ];
        assert_eq!(keys, expected);
        assert_eq!(column(table, "VmFlags"), [CellValue::Name("rd zz".into())]);
        assert_eq!(column(table, "NewLine"), [CellValue::Name("12 kB".into())]);
        assert_eq!(column(table, "THPeligible"), [CellValue::Count(1)]);
        assert_eq!(total(&report, "KernelPageSize"), CellValue::None);
    }

    #[test]
    fn a_counter_that_some_mappings_lack_is_a_gap_there() {
        let some = with_smaps(
            mapping("1000-2000 rw-p 0 0"),
            &[(SmapsCounter::Rss, 0), (SmapsCounter::Ksm, 1)],
            "",
        );
        let none = with_smaps(mapping("3000-4000 rw-p 0 0"), &[(SmapsCounter::Rss, 0)], "");
        let columns = MapsColumns::List(vec!["KSM".into()]);
        let report =
            show(&snapshot(vec![none, some]), MapsOptions { columns, ..MapsOptions::default() });
        let cells = column(table(&report, "mappings"), "KSM");
        assert!(matches!(cells[..], [CellValue::Absent(_), CellValue::Bytes(1)]), "{cells:?}");
    }

    #[test]
    fn an_unread_column_has_one_reason() {
        let report = show(
            &snapshot(vec![mapping("1-2 rw-p 0 0"), mapping("3-4 rw-p 0 0")]),
            MapsOptions::default(),
        );
        let rss = table(&report, "mappings").columns.iter().find(|c| c.key == "rss").unwrap();
        assert!(matches!(rss.gaps, Gaps::All(_)));
    }

    #[test]
    fn a_file_is_one_row_when_grouped() {
        let report = show(
            &snapshot(vec![
                resident("1000-3000 r-xp 0 12 /usr/bin/x", 4096),
                resident("3000-4000 rw-p 2000 12 /usr/bin/x", 4096),
                resident("5000-a000 rw-p 0 0", 20480),
                resident("b000-c000 rw-p 0 0", 4096),
            ]),
            MapsOptions { group_by_file: true, ..MapsOptions::default() },
        );
        let table = table(&report, "mappings");
        assert_eq!(column(table, "rss"), [24576, 8192].map(CellValue::Bytes));
        assert_eq!(column(table, "mappings"), [2, 2].map(CellValue::Count));
        assert_eq!(total(&report, "size"), CellValue::Bytes(0x9000));
    }

    #[test]
    fn an_unknown_column_is_an_error_in_every_option() {
        let list = MapsOptions {
            columns: MapsColumns::List(vec!["rsss".into()]),
            ..MapsOptions::default()
        };
        let sort = MapsOptions { sort: Some(("rsss".into(), true)), ..MapsOptions::default() };
        let grouped = MapsOptions { group_by_file: true, ..sort.clone() };
        let filter = MapsOptions {
            filter: Some(RowFilter::parse("rsss>1").unwrap()),
            ..MapsOptions::default()
        };
        for options in [list, sort, grouped, filter] {
            let error = maps(&three(), &options).unwrap_err().to_string();
            assert!(error.contains("did you mean rss"), "{error}");
        }
    }

    #[test]
    fn without_mappings_the_report_has_the_reason() {
        let mut none = three();
        none.mappings = Err(Absent::NotPermitted("CAP_SYS_PTRACE".into()));
        assert!(format!("{:?}", show(&none, MapsOptions::default())).contains("CAP_SYS_PTRACE"));
    }
}
