//! Accesses to watched bytes: each access, the code that made it, its callers, and the values
//! before and after it.

use std::collections::BTreeMap;

use pagewise_model::bounds::OTHER_STACKS;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::traced::Frame;
use pagewise_model::watched::{
    Hit, ValueOrigin, WatchAccess, WatchEnding, WatchRecording, WatchedBlock,
};
use pagewise_model::{Name, Reading};

use crate::blocks::{self, facts_of, for_programs, process, table};
use crate::explain::fact;
use crate::filter::{BoundFilter, ColumnKind, Datum, FilterError, RowFilter};
use crate::heap::frames::{allocator, frame_cell, function_words, with_its_line};

/// Options of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchOptions {
    /// Maximum number of accesses, the last ones of the recording; `None` for all.
    pub limit: Option<usize>,
    /// True if each access was printed for people when it occurred; see [`lines`].
    pub told: bool,
}

/// Condition on the values of an access: `value == 0`, `value < 10 && old >= 10`.
#[derive(Clone, Debug)]
pub struct AccessCondition(BoundFilter<Which>);

#[derive(Clone, Copy, Debug)]
enum Which {
    Old,
    Value,
}

impl AccessCondition {
    /// Parses a condition. The language is that of filters, with the columns `value` and `old`,
    /// which are unsigned numbers of up to 8 bytes.
    ///
    /// # Errors
    /// Returns an error with the position of the invalid text.
    pub fn parse(text: &str) -> Result<AccessCondition, FilterError> {
        let look_up = |name: &str| match name {
            "value" | "new" => Some((Which::Value, ColumnKind::Number)),
            "old" => Some((Which::Old, ColumnKind::Number)),
            _ => None,
        };
        RowFilter::parse(text)?.bind(look_up, &["value", "old"]).map(AccessCondition)
    }

    /// True if an access satisfies the condition. An unknown value satisfies no comparison.
    pub fn holds(&self, hit: &Hit) -> bool {
        let datum = |reading: &Reading<Vec<u8>>| {
            reading
                .as_ref()
                .ok()
                .and_then(|bytes| number(bytes))
                .map_or(Datum::Absent, Datum::Number)
        };
        self.0.fits(&|which| match which {
            Which::Old => datum(&hit.old),
            Which::Value => datum(&hit.value),
        })
    }
}

/// Converts bytes of a little-endian machine to a number; `None` for more than 8 bytes.
fn number(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

/// Reports the accesses: `watched`, `hits`, `sites` and `stacks`.
pub fn watch(watched: &WatchRecording, options: &WatchOptions) -> Report {
    let hidden = options.limit.map_or(0, |limit| watched.hits.len().saturating_sub(limit));
    let mut blocks = vec![ReportBlock::Facts(recording_facts(watched))];
    let mut hits = hits(watched, &watched.hits[hidden..]);
    if hidden > 0 {
        hits.note = format!("{hidden} earlier ones are not shown; --hits all shows them.").into();
    }
    // People do not see a table without rows, or accesses that were already printed.
    let is_empty = hits.rows() == 0;
    hits.audience = if is_empty || options.told { Audience::Programs } else { hits.audience };
    blocks.push(ReportBlock::Table(hits));
    let frames = if options.told { sites } else { frames };
    blocks.extend((!is_empty).then(|| ReportBlock::Table(frames(watched))));
    blocks.push(ReportBlock::Table(stacks(watched)));
    blocks.extend(remarks(watched).into_iter().map(ReportBlock::Text));
    Report { schema: "pagewise.watch/1", title: title(watched), blocks }
}

/// Describes an access for people when it occurs: one line, and one line for each caller if its
/// call stack was not printed before. Call stacks have a number after a `#`.
pub fn lines(hit: &Hit, stacks: &[Vec<Frame>], is_new: bool) -> Vec<Vec<CellValue>> {
    // The reason for an unknown value is printed once, at the end.
    let side = |side: fn(&Hit) -> &Reading<Vec<u8>>| match side(hit) {
        Ok(_) => value_text(hit, side),
        Err(_) => CellValue::text("?"),
    };
    let mut line = vec![CellValue::Seconds(hit.time_ns), CellValue::text("  ")];
    line.extend(match hit.access {
        WatchAccess::Read => vec![CellValue::text("reads "), side(|hit| &hit.value)],
        WatchAccess::Write | WatchAccess::Either => {
            vec![side(|hit| &hit.old), CellValue::text(" → "), side(|hit| &hit.value)]
        }
    });
    let place = place(stacks, hit);
    line.extend([CellValue::text("  "), CellValue::Name(place.clone())]);
    line.push(CellValue::text(match hit.known {
        ValueOrigin::Unchanged => String::new(),
        ValueOrigin::Not => "  unknown".to_owned(),
        told => format!("  {}", known(told)),
    }));
    line.extend([
        CellValue::text("  "),
        CellValue::Name(with_number(hit)),
        CellValue::text(format!("  #{}", hit.stack)),
    ]);
    let frames = stacks.get(hit.stack as usize).filter(|_| is_new).map_or(&[][..], Vec::as_slice);
    let frames = frames.iter().map(|frame| {
        let module = frame.module.as_ref().filter(|_| frame.line.is_none());
        let module = module.map(|module| format!(" in {}", String::from_utf8_lossy(module.base())));
        Name::new((with_its_line(frame) + &module.unwrap_or_default()).as_bytes())
    });
    // The first line already contains the innermost frame.
    let frames = frames.enumerate().filter(|(at, name)| *at > 0 || *name != place);
    let frames = frames.map(|(_, name)| vec![CellValue::text("        "), CellValue::Name(name)]);
    std::iter::once(line).chain(frames).collect()
}

fn title(watched: &WatchRecording) -> Vec<CellValue> {
    let subject = match &watched.symbol {
        Some(symbol) => CellValue::Name(symbol.clone()),
        None => CellValue::Address(watched.address),
    };
    vec![
        CellValue::text(if watched.reads { "Accesses to " } else { "Writes to " }),
        subject,
        CellValue::text(" of "),
        CellValue::Name(Name::new(watched.name.base())),
        CellValue::text(format!(" ({})", watched.pid)),
    ]
}

fn recording_facts(watched: &WatchRecording) -> NamedFacts {
    let [pid, command] = process(watched.pid, &watched.command);
    let mapping = match &watched.mapping {
        Some((name, _)) if name.as_bytes().is_empty() => CellValue::text("anonymous memory"),
        Some((name, _)) => CellValue::Name(name.clone()),
        None => CellValue::None,
    };
    let count = |count: u64| CellValue::Count(count);
    let limit = blocks::limit(watched.memory_limit);
    let of_block = |value: &dyn Fn(&WatchedBlock) -> CellValue| {
        watched.block.as_ref().map_or(CellValue::None, value)
    };
    let offset = |block: &WatchedBlock| watched.address.saturating_sub(block.start);
    let bytes = |bytes: Option<u64>| bytes.map_or(CellValue::None, CellValue::Bytes);
    let who = |block: &WatchedBlock| allocator(&block.frames).map_or(CellValue::None, frame_cell);
    let allocated_by = of_block(&who);
    let block_frames =
        |block: &WatchedBlock| CellValue::List(block.frames.iter().map(frame_cell).collect());
    facts_of(
        "watched",
        "",
        FactsShape::Line,
        vec![
            pid,
            command,
            fact(
                "symbol",
                "symbol",
                watched.symbol.clone().map_or(CellValue::None, CellValue::Name),
                "",
            )
            .hidden_if(true),
            fact("address", "address", CellValue::Address(watched.address), ""),
            fact("length", "bytes", count(watched.length), ""),
            fact("mapping", "in", mapping, "").hidden_if(watched.mapping.is_none()),
            fact(
                "block_offset",
                "byte",
                of_block(&|it| count(offset(it))),
                meaning("block_offset"),
            )
            .hidden_if(watched.block.is_none()),
            fact(
                "block_size",
                "of a block of",
                of_block(&|it| bytes(it.size)),
                meaning("block_size"),
            )
            .hidden_if(watched.block.as_ref().is_none_or(|it| it.size.is_none())),
            fact(
                "block_room",
                "of a block with usable size",
                of_block(&|it| bytes(it.room)),
                meaning("block_room"),
            )
            .hidden_if(watched.block.as_ref().is_none_or(|it| it.size.is_some())),
            fact("allocated_by", "that was allocated by", allocated_by, meaning("allocated_by"))
                .hidden_if(watched.block.is_none()),
            fact("block_frames", "", of_block(&block_frames), meaning("block_frames"))
                .for_programs(),
            fact("first", "at first", value_of(&watched.first), ""),
            fact("reads", "reads too", CellValue::Flag(watched.reads), "")
                .hidden_if(!watched.reads),
            fact(
                "when",
                "when",
                watched
                    .when
                    .clone()
                    .map_or(CellValue::None, |text| CellValue::Name(Name::new(text.as_bytes()))),
                "",
            )
            .hidden_if(watched.when.is_none()),
            fact("count", "hits", count(watched.hits.len() as u64 + watched.dropped), ""),
            fact("passed_over", "passed over", count(watched.passed_over), meaning("passed_over"))
                .hidden_if(watched.when.is_none()),
            fact("dropped", "not kept", count(watched.dropped), meaning("dropped"))
                .hidden_if(watched.dropped == 0),
            fact("other_stacks", "", count(watched.other_stacks), meaning("other_stacks"))
                .for_programs(),
            fact("memory_limit", "", limit, meaning("memory_limit")).for_programs(),
            fact("in_copies", "in copies", count(watched.in_copies), meaning("in_copies"))
                .hidden_if(watched.in_copies == 0),
            fact("unseen", "unseen", count(watched.unseen), meaning("unseen"))
                .hidden_if(watched.unseen == 0),
            fact("lost", "lost", count(watched.lost), meaning("lost")).hidden_if(watched.lost == 0),
            fact("seconds", "after", CellValue::Seconds(watched.took_ns), ""),
            fact("ending", "ended", ended(watched.ended), ""),
        ],
    )
}

/// Returns the meaning of a column.
fn meaning(column: &str) -> &'static str {
    let field = pagewise_model::fields::named(column).find(|field| field.source == "watch");
    field.map_or("", |field| field.meaning)
}

fn ended(ended: WatchEnding) -> CellValue {
    match ended {
        WatchEnding::Process(None) => CellValue::text("with the process"),
        WatchEnding::Process(Some(ending)) => blocks::ended(ending),
        WatchEnding::Executed => CellValue::text("with another program"),
        WatchEnding::Enough => CellValue::text("enough hits"),
        WatchEnding::Time => CellValue::text("time is up"),
        WatchEnding::Interrupted => CellValue::text("interrupted"),
    }
}

/// Returns a value for programs: a number, or hexadecimal digits for more than 8 bytes.
fn value_of(reading: &Reading<Vec<u8>>) -> CellValue {
    CellValue::from_reading(reading.clone(), |bytes| match number(&bytes) {
        Some(number) => CellValue::Count(number),
        None => CellValue::text(digits(&bytes)),
    })
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a value for people: a number in decimal and hexadecimal, printable characters as text.
fn text(bytes: &[u8]) -> String {
    let is_text = |byte: &u8| (b' '..=b'~').contains(byte);
    match (number(bytes), bytes) {
        (Some(_), [byte]) if is_text(byte) => format!("{byte} ({byte:#x} '{}')", char::from(*byte)),
        // Addresses and similar values are readable in hexadecimal, but not in decimal.
        (Some(number), _) if number > u32::MAX.into() => format!("{number:#x}"),
        (Some(number @ 0..10), _) => number.to_string(),
        (Some(number), _) => format!("{number} ({number:#x})"),
        (None, _) => {
            let letter = |byte: &u8| if is_text(byte) { char::from(*byte) } else { '.' };
            format!("{} {}", digits(bytes), bytes.iter().map(letter).collect::<String>())
        }
    }
}

/// Returns the value before or after an access for people. For more than 8 bytes, only the changed
/// bytes are shown, with their offset.
fn value_text(hit: &Hit, side: fn(&Hit) -> &Reading<Vec<u8>>) -> CellValue {
    CellValue::from_reading(side(hit).clone(), |bytes| {
        let changed = hit.old.as_ref().ok().zip(hit.value.as_ref().ok());
        let changed =
            changed.filter(|_| bytes.len() > 8).and_then(|(old, new)| changed_part(old, new));
        CellValue::Text(match changed {
            Some((at, length)) => format!("+{at}: {}", text(&bytes[at..at + length])).into(),
            None => text(&bytes).into(),
        })
    })
}

/// Returns offset and size of the aligned part of 1, 2, 4 or 8 bytes that contains all differences.
fn changed_part(old: &[u8], new: &[u8]) -> Option<(usize, usize)> {
    let differs = |at: &usize| old.get(*at) != new.get(*at);
    let (first, last) = ((0..new.len()).find(differs)?, (0..new.len()).rfind(differs)?);
    let piece = |size: usize| (first / size * size, size);
    [1, 2, 4, 8]
        .map(piece)
        .into_iter()
        .find(|(at, size)| last < at + size && at + size <= new.len())
}

fn hits(watched: &WatchRecording, hits: &[Hit]) -> ReportTable {
    let values =
        |value: fn(&Hit) -> CellValue| ColumnCells::Values(hits.iter().map(value).collect());
    let labels = |label: fn(&Hit) -> Label| ColumnCells::Labels(hits.iter().map(label).collect());
    let numbers = |number: fn(&Hit) -> u64| ColumnCells::Counts(hits.iter().map(number).collect());
    let people = |column: TableColumn| TableColumn { audience: Audience::People, ..column };
    let places = hits.iter().map(|hit| place(&watched.stacks, hit)).collect();
    let long = |column: TableColumn| TableColumn { audience: Audience::Long, ..column };
    let call = |hit: &Hit| match hit.kernel.as_ref().and_then(|kernel| kernel.call.clone()) {
        Some(call) => CellValue::Name(Name::new(call.as_bytes())),
        None => CellValue::None,
    };
    let function = |hit: &Hit| match hit.kernel.as_ref().map(|kernel| kernel.function.clone()) {
        Some(Some(function)) => CellValue::Name(Name::new(function.as_bytes())),
        Some(None) => CellValue::text("?"),
        None => CellValue::None,
    };
    let columns = vec![
        TableColumn::new("time", "TIME", values(|hit| CellValue::Seconds(hit.time_ns))),
        TableColumn::new("stack", "STACK", numbers(|hit| hit.stack.into())),
        for_programs(TableColumn::new("pid", "PID", numbers(|hit| hit.pid.0.into()))),
        for_programs(TableColumn::new("tid", "TID", numbers(|hit| hit.tid.0.into()))),
        for_programs(TableColumn::new("access", "ACCESS", labels(|hit| access(hit.access).into()))),
        for_programs(TableColumn::new("old", "OLD", values(|hit| value_of(&hit.old)))),
        for_programs(TableColumn::new("value", "VALUE", values(|hit| value_of(&hit.value)))),
        people(TableColumn {
            meaning: meaning("old").into(),
            ..TableColumn::new("old_words", "OLD", values(|hit| value_text(hit, |hit| &hit.old)))
        }),
        people(TableColumn {
            meaning: meaning("value").into(),
            ..TableColumn::new(
                "value_words",
                "VALUE",
                values(|hit| match hit.access {
                    WatchAccess::Read => CellValue::text("(read)"),
                    WatchAccess::Write | WatchAccess::Either => value_text(hit, |hit| &hit.value),
                }),
            )
        }),
        TableColumn::new("place", "CODE", ColumnCells::Names(places)),
        TableColumn::new("known", "VALUE FROM", labels(|hit| known(hit.known).into())),
        for_programs(TableColumn::new(
            "thread",
            "NAME",
            values(|hit| CellValue::Name(hit.thread.clone())),
        )),
        people(TableColumn {
            meaning: meaning("thread").into(),
            ..TableColumn::new(
                "thread_words",
                "THREAD",
                values(|hit| CellValue::Name(with_number(hit))),
            )
        }),
        long(TableColumn::new(
            "instruction",
            "INSTRUCTION",
            values(|hit| match &hit.instruction {
                Some(text) => CellValue::Name(Name::new(text.as_bytes())),
                None => CellValue::None,
            }),
        )),
        for_programs(TableColumn::new(
            "call",
            "CALL",
            ColumnCells::Values(hits.iter().map(call).collect()),
        )),
        long(TableColumn::new(
            "kernel",
            "KERNEL",
            ColumnCells::Values(hits.iter().map(function).collect()),
        )),
    ];
    table("hits", "Hits", Audience::Everyone, described(columns))
}

/// Adds the meanings of this report to columns. Reports about other recordings use some of these
/// keys with other meanings.
fn described(columns: Vec<TableColumn>) -> Vec<TableColumn> {
    let described = |column: TableColumn| match column.meaning.as_ref() {
        "" => TableColumn { meaning: meaning(&column.key).into(), ..column },
        _ => column,
    };
    columns.into_iter().map(described).collect()
}

/// Writes the TID and the name of a thread.
fn with_number(hit: &Hit) -> Name {
    Name::new(&[format!("{} ", hit.tid).as_bytes(), hit.thread.as_bytes()].concat())
}

fn access(access: WatchAccess) -> &'static str {
    match access {
        WatchAccess::Write => "write",
        WatchAccess::Read => "read",
        WatchAccess::Either => "read or write",
    }
}

fn known(known: ValueOrigin) -> &'static str {
    match known {
        ValueOrigin::Stored => "stored",
        ValueOrigin::Computed => "computed",
        ValueOrigin::Copied => "copied",
        ValueOrigin::Read => "read",
        ValueOrigin::Unchanged => "unchanged",
        ValueOrigin::Not => "no",
    }
}

/// Describes the code of an access in a few words: the system call or the innermost function, and
/// the innermost function of the program itself with its source line.
fn place(stacks: &[Vec<Frame>], hit: &Hit) -> Name {
    let frames = stacks.get(hit.stack as usize).map_or(&[][..], Vec::as_slice);
    let kernel = hit.kernel.as_ref().map(|kernel| match (&kernel.call, &kernel.function) {
        (Some(call), _) => format!("{call}(2)"),
        (None, Some(function)) => format!("the kernel ({function})"),
        (None, None) => "the kernel".to_owned(),
    });
    // A library acts on behalf of the program, so the description also names a frame of the
    // program.
    let its_own = |frame: &&Frame| {
        let module = frame.module.as_ref().map(Name::base);
        module.is_some_and(|module| !module.windows(3).any(|piece| piece == b".so"))
    };
    let of_program = frames.iter().find(its_own);
    let first = frames.first().filter(|first| of_program.is_none_or(|frame| frame != *first));
    let by = |frame: &Frame| format!(", by {}", with_its_line(frame));
    let text = match (kernel, first, of_program) {
        (Some(kernel), _, Some(frame)) => kernel + &by(frame),
        (Some(kernel), Some(first), None) => kernel + &by(first),
        (Some(kernel), None, None) => kernel,
        (None, Some(first), Some(frame)) => function_words(first) + &by(frame),
        (None, None, Some(frame)) | (None, Some(frame), None) => with_its_line(frame),
        (None, None, None) => "?".to_owned(),
    };
    Name::new(text.as_bytes())
}

/// Returns the number of accesses of each call stack, the largest first.
fn counted(watched: &WatchRecording) -> Vec<(u32, u64)> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for hit in &watched.hits {
        *counts.entry(hit.stack).or_default() += 1;
    }
    let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(stack, count)| (std::cmp::Reverse(*count), *stack));
    counts
}

fn frames_of(watched: &WatchRecording, stack: u32) -> &[Frame] {
    watched.stacks.get(stack as usize).map_or(&[], Vec::as_slice)
}

/// Builds the table of call stacks, one row each, for people to whom their frames were already
/// printed.
fn sites(watched: &WatchRecording) -> ReportTable {
    let counted = counted(watched);
    let first = |stack: u32| watched.hits.iter().find(|hit| hit.stack == stack);
    let place =
        |stack: u32| first(stack).map_or(Name::from("?"), |hit| place(&watched.stacks, hit));
    let numbers = |number: fn(&(u32, u64)) -> u64| counted.iter().map(number).collect();
    let columns = vec![
        TableColumn::new("stack", "STACK", ColumnCells::Counts(numbers(|it| it.0.into()))),
        TableColumn::new("count", "HITS", ColumnCells::Counts(numbers(|it| it.1))),
        TableColumn::new(
            "place",
            "WHERE",
            ColumnCells::Names(counted.iter().map(|it| place(it.0)).collect()),
        ),
    ];
    table("sites", "Call stacks", Audience::People, described(columns))
}

/// Builds the table of call stacks, one row per frame.
fn frames(watched: &WatchRecording) -> ReportTable {
    let counted = counted(watched);
    let rows = counted.iter().flat_map(|(stack, count)| {
        let frames = frames_of(watched, *stack).iter().enumerate();
        frames.map(|(depth, frame)| ((depth == 0).then_some((*stack, *count)), frame))
    });
    let rows: Vec<(Option<(u32, u64)>, &Frame)> = rows.collect();
    let once = |value: fn((u32, u64)) -> u64| {
        let cell = |head: &Option<(u32, u64)>| {
            head.map_or(CellValue::None, |it| CellValue::Count(value(it)))
        };
        ColumnCells::Values(rows.iter().map(|(head, _)| cell(head)).collect())
    };
    let names = |name: fn(&Frame) -> Option<Name>| {
        let cell = |frame: &Frame| name(frame).map_or(CellValue::None, CellValue::Name);
        ColumnCells::Values(rows.iter().map(|(_, frame)| cell(frame)).collect())
    };
    let columns = vec![
        TableColumn::new("stack", "STACK", once(|(stack, _)| stack.into())),
        TableColumn::new("count", "HITS", once(|(_, count)| count)),
        TableColumn::new(
            "function",
            "FUNCTION",
            names(|frame| {
                let inlined = if frame.inlined { " (inlined)" } else { "" };
                Some(Name::new(format!("{}{inlined}", function_words(frame)).as_bytes()))
            }),
        ),
        TableColumn::new(
            "line",
            "LINE",
            names(|frame| {
                let line = frame.line.as_ref()?;
                let file = line.file.rsplit('/').next().unwrap_or_default();
                Some(Name::new(format!("{file}:{}", line.number).as_bytes()))
            }),
        ),
        TableColumn::new(
            "module",
            "MODULE",
            names(|frame| frame.module.as_ref().map(|module| Name::new(module.base()))),
        ),
    ];
    ReportTable {
        key: "frames".into(),
        ..table("frames", "Call stacks", Audience::People, described(columns))
    }
}

/// Builds the table of call stacks for programs, one row each.
fn stacks(watched: &WatchRecording) -> ReportTable {
    let counted = counted(watched);
    let frames =
        |stack: u32| CellValue::List(frames_of(watched, stack).iter().map(record).collect());
    let columns = vec![
        TableColumn::new(
            "stack",
            "STACK",
            ColumnCells::Counts(counted.iter().map(|it| it.0.into()).collect()),
        ),
        TableColumn::new(
            "count",
            "HITS",
            ColumnCells::Counts(counted.iter().map(|it| it.1).collect()),
        ),
        TableColumn::new(
            "frames",
            "FRAMES",
            ColumnCells::Values(counted.iter().map(|it| frames(it.0)).collect()),
        ),
    ];
    table("stacks", "", Audience::Programs, described(columns))
}

fn record(frame: &Frame) -> CellValue {
    let text = |text: &str| CellValue::Name(Name::new(text.as_bytes()));
    let line = frame.line.as_ref();
    CellValue::Record(vec![
        ("function".into(), frame.function.as_deref().map_or(CellValue::None, text)),
        ("file".into(), line.map_or(CellValue::None, |line| text(&line.file))),
        ("line".into(), line.map_or(CellValue::None, |line| CellValue::Count(line.number.into()))),
        ("module".into(), frame.module.clone().map_or(CellValue::None, CellValue::Name)),
        ("offset".into(), CellValue::Count(frame.offset)),
        ("inlined".into(), CellValue::Flag(frame.inlined)),
    ])
}

/// Returns remarks on the numbers.
fn remarks(watched: &WatchRecording) -> Vec<Paragraph> {
    let mut remarks: Vec<String> = Vec::new();
    let limit = watched.memory_limit >> 20;
    let seen = watched.hits.len() as u64 + watched.dropped + watched.passed_over;
    if seen == 0 && watched.lost == 0 {
        let what = if watched.reads { "No access to" } else { "No write to" };
        remarks.push(format!("{what} these bytes while they were watched."));
    } else if watched.hits.is_empty() && watched.passed_over > 0 {
        remarks.push("The condition was false for all of them.".into());
    }
    if watched.mapping.is_none() {
        remarks.push("No memory was mapped at that address when the watch began.".into());
    }
    if let Err(absent) = &watched.kernel {
        remarks.push(format!(
            "Writes of the kernel for the process, as in read(2), are not recorded: {absent}."
        ));
    }
    if watched.hits.iter().any(|hit| hit.known == ValueOrigin::Not) {
        remarks.push("A value is unknown if the instruction does not show it and another access came before the memory could be read.".into());
    }
    if watched.dropped > 0 {
        remarks.push(format!(
            "{} hits exceeded the memory limit of {limit} MiB (--memory-limit): they are counted only.",
            watched.dropped
        ));
    }
    if watched.other_stacks > 0 {
        remarks.push(format!(
            "{} hits are of `{OTHER_STACKS}`: no more call stacks fit into {limit} MiB (--memory-limit).",
            watched.other_stacks
        ));
    }
    if watched.unseen > 0 {
        let by = match watched.kernel {
            Ok(()) => {
                "another process, by shared memory or by process_vm_writev, a debugger, or a device"
            }
            Err(_) => "the kernel for the process, another process, or a device",
        };
        remarks.push(format!("{} times the memory differed from the value that the last access left: written by {by}.", watched.unseen));
    }
    let paragraph = |text: String| Paragraph {
        title: "".into(),
        pieces: vec![CellValue::text(text)],
        audience: Audience::People,
    };
    remarks.into_iter().map(paragraph).collect()
}

#[cfg(test)]
mod tests {
    use pagewise_model::{Absent, Pid};

    use super::*;

    fn hit(old: Option<&[u8]>, value: Option<&[u8]>) -> Hit {
        let reading = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec).ok_or(Absent::Vanished);
        Hit {
            time_ns: 0,
            pid: Pid(1),
            tid: Pid(1),
            thread: Name::default(),
            access: WatchAccess::Write,
            old: reading(old),
            value: reading(value),
            known: ValueOrigin::Stored,
            instruction: None,
            kernel: None,
            stack: 0,
        }
    }

    #[test]
    fn a_condition_holds_by_the_numbers_and_never_for_what_is_unknown() {
        let holds = |text: &str, hit: &Hit| AccessCondition::parse(text).unwrap().holds(hit);
        let it = hit(Some(&[0, 1, 0, 0]), Some(&[0xff, 0, 0, 0]));
        assert!(holds("old == 256 && value == 0xff", &it));
        assert!(holds("value < 256 || value == 0", &it));
        assert!(!holds("!(value >= 255)", &it));
        let unknown = hit(None, Some(&[0; 4]));
        assert!(!holds("old == 0", &unknown) && !holds("old != 0", &unknown));
        assert!(holds("value == 0", &unknown));
        assert!(
            AccessCondition::parse("size == 0").is_err()
                && AccessCondition::parse("value ~ x").is_err()
        );
    }

    #[test]
    fn values_are_printed_in_decimal_hexadecimal_and_as_characters() {
        assert_eq!(text(&[65]), "65 (0x41 'A')");
        assert_eq!(text(&[0x1b]), "27 (0x1b)");
        assert_eq!(text(&[1, 2]), "513 (0x201)");
        assert_eq!(text(b"0123456789\x1b"), "303132333435363738391b 0123456789.");
    }

    #[test]
    fn an_access_is_a_line_and_its_callers_follow_once() {
        let frame = |function: &str, line: Option<u32>| Frame {
            function: Some(function.to_owned()),
            module: Some(Name::from("/lib/libc.so.6")),
            line: line.map(|number| pagewise_model::traced::SourcePosition {
                file: "a/b.c".into(),
                number,
            }),
            offset: 0,
            inlined: false,
        };
        let stacks = [vec![frame("sets", Some(7)), frame("start\u{1b}[2J", None)]];
        let it = Hit { time_ns: 2_000_000, thread: "one".into(), ..hit(Some(&[5]), Some(&[6])) };
        let told = |hit: &Hit, is_new| -> Vec<String> {
            let lines = lines(hit, &stacks, is_new).into_iter();
            lines.map(|pieces| format!("{pieces:?}")).collect()
        };
        assert_eq!(told(&it, false).len(), 1);
        let lines = told(&it, true);
        // The caller lines do not repeat the frame of the first line.
        assert_eq!(lines.len(), 2);
        for (line, words) in [(0, "\" → \""), (0, "1 one"), (0, "sets b.c:7"), (1, "in libc.so.6")]
        {
            assert!(lines[line].contains(words), "{words}: {}", lines[line]);
        }
        let unknown = hit(None, None);
        assert_eq!(told(&unknown, true)[0].matches("\"?\"").count(), 2);
    }

    #[test]
    fn only_changed_bytes_of_a_long_range_are_reported() {
        let mut new = [0; 16];
        (new[9], new[11]) = (1, 2);
        let it = hit(Some(&[0; 16]), Some(&new));
        assert_eq!(value_text(&it, |hit| &hit.old), CellValue::text("+8: 0"));
        assert_eq!(value_text(&it, |hit| &hit.value), CellValue::text("+8: 33554688 (0x2000100)"));
        assert_eq!(changed_part(&[0; 12], &new[..12]), Some((8, 4)));
        assert_eq!(changed_part(&[0; 16], &[1; 16]), None);
        assert_eq!(changed_part(&new, &new), None);
        let unknown = hit(None, Some(&[0; 4]));
        assert_eq!(value_text(&unknown, |hit| &hit.old), CellValue::Absent(Absent::Vanished));
    }
}
