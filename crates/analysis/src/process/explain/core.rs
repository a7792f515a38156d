//! A process of a core file: bytes that the file holds, threads, and the signal.
//!
//! A core file does not show which pages were resident, so bytes that it holds are never counted as
//! resident ones.

use pagewise_model::core_dump::{CoreDump, CoreSegment, CoreSignal, CoreThread, SignalCause};
use pagewise_model::mapping::AddrRange;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, NamedFacts, ReportBlock, ReportTable,
    TableColumn,
};
use pagewise_model::{Bytes, Mapping, Name, ending};

use super::{ExplainSubject, fact};
use crate::blocks::table;
use crate::pools::PoolKind;
use crate::quadrants::counts_in_virt;

/// Maximum number of threads shown to people.
const SHOWN_THREADS: usize = 8;

/// Bytes of each mapping in the core file.
#[derive(Debug)]
pub(crate) struct CoreCoverage<'a> {
    pub(crate) dump: &'a CoreDump,
    /// Bytes that the file has, by mapping.
    pub(crate) held: Vec<Bytes>,
    /// Bytes that the writer dumped, by mapping; more than `held` if the file is truncated.
    pub(crate) dumped: Vec<Bytes>,
}

impl<'a> CoreCoverage<'a> {
    pub(super) fn new(dump: &'a CoreDump, mappings: &[Mapping]) -> CoreCoverage<'a> {
        let bytes = |range: fn(&CoreSegment) -> AddrRange| {
            mappings.iter().map(|mapping| overlap(&dump.segments, mapping.range, range)).collect()
        };
        CoreCoverage {
            dump,
            held: bytes(CoreSegment::held_range),
            dumped: bytes(CoreSegment::dumped_range),
        }
    }

    /// The sum over the mappings that VIRT counts.
    pub(crate) fn counted(mappings: &[Mapping], bytes: &[Bytes]) -> Bytes {
        let counted = mappings.iter().zip(bytes).filter(|(mapping, _)| counts_in_virt(mapping));
        counted.map(|(_, bytes)| *bytes).sum()
    }

    /// Bytes that the file should have and lacks.
    pub(crate) fn missing(&self) -> Bytes {
        let (held, dumped): (Bytes, Bytes) =
            (self.held.iter().copied().sum(), self.dumped.iter().copied().sum());
        dumped.saturating_sub(held)
    }
}

/// Bytes of a range in the segments, which are sorted by address.
fn overlap(
    segments: &[CoreSegment],
    range: AddrRange,
    part: fn(&CoreSegment) -> AddrRange,
) -> Bytes {
    let first = segments.partition_point(|segment| segment.range.end <= range.start);
    let overlapping = segments[first..].iter();
    overlapping
        .take_while(|segment| segment.range.start < range.end)
        .filter_map(|segment| part(segment).intersection(range))
        .map(AddrRange::len)
        .sum()
}

/// The facts of the core file itself.
pub(super) fn facts(subject: &ExplainSubject<'_>, coverage: &CoreCoverage<'_>) -> NamedFacts {
    let dump = coverage.dump;
    let mapped = subject.total.reserved;
    let sum = |bytes: &[Bytes]| CoreCoverage::counted(subject.mappings, bytes);
    let (held, dumped) = (sum(&coverage.held), sum(&coverage.dumped));
    let missing = coverage.missing();
    let bytes = |bytes: Bytes| CellValue::Bytes(bytes.0);
    let compression = dump.compression.map(|it| CellValue::text(it.key()));
    let mut facts = vec![
        fact("file", "file", CellValue::Name(dump.file.clone()), "").for_programs(),
        fact("size", "size", bytes(dump.size), "Size of the core, decompressed."),
        fact("compression", "compressed", compression.unwrap_or(CellValue::None), "")
            .hidden_if(dump.compression.is_none()),
        fact("writer", "written by", CellValue::text(dump.writer.key()), ""),
        fact("mapped", "mapped", bytes(mapped), "Address space of all mappings: VIRT."),
        fact(
            "in_core",
            "in the core",
            bytes(held),
            "Bytes of memory that the file has. This is not RES: the file also has pages that were not resident, and lacks resident ones.",
        ),
        fact(
            "left_out",
            "left out",
            bytes(mapped.saturating_sub(dumped)),
            "Bytes that the writer did not dump: unmodified pages of files, memory without access, and mappings that coredump_filter or MADV_DONTDUMP excludes.",
        ),
        fact(
            "missing",
            "missing",
            bytes(missing),
            "Bytes that the writer dumped and the file lacks: it is truncated.",
        )
        .hidden_if(missing.is_zero()),
    ];
    facts.extend(signal_facts(dump.signal.as_ref()));
    NamedFacts {
        key: "core".into(),
        title: "Core file".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Columns,
        facts,
    }
}

/// The signal, for programs: people read the finding.
fn signal_facts(signal: Option<&CoreSignal>) -> Vec<Fact> {
    let (address, sender) = match signal.map(|signal| signal.cause) {
        Some(SignalCause::Address(address)) => (CellValue::Address(address), CellValue::None),
        Some(SignalCause::Sender { pid, .. }) => (CellValue::None, CellValue::Count(pid.0.into())),
        Some(SignalCause::Kernel) | None => (CellValue::None, CellValue::None),
    };
    let number = |value: Option<u64>| value.map_or(CellValue::None, CellValue::Count);
    let name = signal.map_or(CellValue::None, |it| CellValue::text(signal_text(it.number)));
    let code = signal.and_then(|it| it.code).map(|code| CellValue::Change(code.into()));
    vec![
        fact("signal", "signal", name, ""),
        fact("signal_number", "number", number(signal.map(|it| it.number.into())), ""),
        fact("signal_code", "code", code.unwrap_or(CellValue::None), ""),
        fact("signal_thread", "thread", number(signal.map(|it| it.tid.0.into())), ""),
        fact("fault_address", "address", address, ""),
        fact("signal_sender", "sender", sender, ""),
    ]
    .into_iter()
    .map(Fact::for_programs)
    .collect()
}

/// The name of a signal, or its number.
pub(crate) fn signal_text(number: u32) -> String {
    ending::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// The threads: all for programs, the first ones for people.
pub(super) fn threads(subject: &ExplainSubject<'_>, dump: &CoreDump) -> [ReportBlock; 2] {
    let all = &dump.threads;
    let shown = &all[..all.len().min(SHOWN_THREADS)];
    let audience = if shown.is_empty() { Audience::Programs } else { Audience::People };
    let more = all.len() - shown.len();
    let note = match more {
        0 => String::new(),
        more => format!("{more} more threads; --json lists them."),
    };
    let shown = ReportTable { note: note.into(), ..thread_table(subject, dump, shown, audience) };
    [thread_table(subject, dump, all, Audience::Programs), shown].map(ReportBlock::Table)
}

fn thread_table(
    subject: &ExplainSubject<'_>,
    dump: &CoreDump,
    threads: &[CoreThread],
    audience: Audience,
) -> ReportTable {
    let counts =
        |count: fn(&CoreThread) -> u64| ColumnCells::Counts(threads.iter().map(count).collect());
    let addresses = |address: fn(&CoreThread) -> u64| {
        ColumnCells::Addresses(threads.iter().map(address).collect())
    };
    let values = |value: &dyn Fn(&CoreThread) -> CellValue| {
        ColumnCells::Values(threads.iter().map(value).collect())
    };
    // The kernel writes the signal into the notes of all threads.
    let received = |thread: &CoreThread| dump.signal.filter(|signal| signal.tid == thread.tid);
    let signal = |thread: &CoreThread| {
        received(thread).map_or(CellValue::None, |it| CellValue::text(signal_text(it.number)))
    };
    let used = |thread: &CoreThread| stack_used(subject, thread.stack_pointer);
    let location = |thread: &CoreThread| location(subject, thread.instruction);
    let columns = vec![
        TableColumn::new("tid", "Thread", counts(|thread| thread.tid.0.into())),
        TableColumn::new("signal", "Signal", values(&signal)),
        TableColumn::new("instruction", "Instruction", addresses(|thread| thread.instruction)),
        TableColumn::new("location", "In", values(&location)),
        TableColumn::new("stack_pointer", "Stack pointer", addresses(|it| it.stack_pointer)),
        TableColumn {
            meaning: "From the stack pointer to the end of the mapping that it points into.".into(),
            ..TableColumn::new("stack_used", "Stack used", values(&used))
        },
    ];
    table("threads", "Threads", audience, columns)
}

/// The mapping of an address, and the offset in its file: `libc.so.6+0x8a1b2`.
pub(crate) fn location(subject: &ExplainSubject<'_>, address: u64) -> CellValue {
    let Some(index) = mapping_at(subject.mappings, address) else {
        return CellValue::text("no mapping");
    };
    let mapping = &subject.mappings[index];
    let known = subject.pools.known_as(index, mapping);
    let offset = mapping.offset.wrapping_add(address - mapping.range.start);
    let mut text = known.base().to_vec();
    if mapping.file_key().is_some() {
        text.extend(format!("+{offset:#x}").bytes());
    }
    CellValue::Name(Name::new(&text))
}

fn stack_used(subject: &ExplainSubject<'_>, pointer: u64) -> CellValue {
    let stack = mapping_at(subject.mappings, pointer).filter(|&index| {
        let kind = subject.pools.pool_of(index).kind;
        matches!(kind, PoolKind::MainStack | PoolKind::ThreadStack)
    });
    stack.map_or(CellValue::None, |index| {
        CellValue::Bytes(subject.mappings[index].range.end - pointer)
    })
}

/// The index of the mapping that holds an address.
pub(crate) fn mapping_at(mappings: &[Mapping], address: u64) -> Option<usize> {
    let after = mappings.partition_point(|mapping| mapping.range.start <= address);
    let index = after.checked_sub(1)?;
    mappings[index].range.contains(address).then_some(index)
}
