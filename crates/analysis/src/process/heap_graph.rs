//! Leaked blocks of a heap, the bytes that roots retain, and the paths that keep a block alive.

use pagewise_model::Name;
use pagewise_model::heap_graph::{
    HeapGraph, HeapRoot, KeptBlock, KeptStep, LeakGroup, RetainedCell, RetainingRoot,
    RetentionEntry, RetentionStep, RootFrame, RootKind, RootPath, TypedBlocks,
};
use pagewise_model::heap_scan::LiveAmount;
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Paragraph, ReportBlock,
    ReportTable, TableColumn,
};
use pagewise_model::traced::Frame;

use crate::blocks::{facts_of, first, for_people, for_programs, gaps, table};
use crate::cells::{share, text};
use crate::explain::fact;
use crate::heap::frames::{allocator, frame_cell};

/// Maximum number of blocks of a path in text.
const SHOWN_STEPS: usize = 8;

/// The graph as blocks of a report: `leaked`, `leaks`, `reachable`, `typed`, `types`,
/// `types_lack`, `retained`, `why`.
pub(crate) fn blocks(graph: &HeapGraph, limit: Option<usize>) -> Vec<ReportBlock> {
    let mut blocks = vec![
        ReportBlock::Text(verdict(graph)),
        ReportBlock::Facts(amount("leaked", "Leaked", graph.leaked)),
        ReportBlock::Table(leaks(graph, limit)),
        ReportBlock::Facts(reachable(graph)),
    ];
    if let Some(typed) = &graph.types {
        blocks.push(ReportBlock::Facts(typed_facts(typed, graph)));
        blocks.push(ReportBlock::Table(types_table(typed, graph, limit)));
        blocks.push(ReportBlock::Table(lacks(typed)));
    }
    if !graph.retained.is_empty() {
        blocks.push(ReportBlock::Table(retained(graph, limit)));
    }
    if let Some(kept) = &graph.why {
        blocks.push(ReportBlock::Facts(kept_block(kept)));
        blocks.push(ReportBlock::Table(paths(kept, limit)));
    }
    blocks
}

fn verdict(graph: &HeapGraph) -> Paragraph {
    let LiveAmount { blocks, bytes } = graph.leaked;
    let mut pieces = match blocks {
        0 => vec![text("Every live block is reachable: nothing is leaked.")],
        _ => vec![
            CellValue::Bytes(bytes),
            text(" in "),
            CellValue::Count(blocks),
            text(if blocks == 1 { " block is leaked" } else { " blocks are leaked" }),
            text(": no register, stack, variable or mapping leads to them."),
        ],
    };
    if !graph.unseen.is_zero() {
        pieces.extend([
            text(" Pointers in "),
            CellValue::Bytes(graph.unseen.0),
            text(
                " that are in swap or not readable are unknown: blocks may be kept alive by them.",
            ),
        ]);
    }
    if graph.unrecorded > 0 {
        pieces.extend([
            CellValue::Count(graph.unrecorded),
            text(" pointers exceeded the limit. Their blocks count as reachable."),
        ]);
    }
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}

fn amount(key: &'static str, title: &'static str, amount: LiveAmount) -> NamedFacts {
    let facts = vec![
        fact("blocks", "BLOCKS", CellValue::Count(amount.blocks), "Number of blocks."),
        fact("bytes", "BYTES", CellValue::Bytes(amount.bytes), "Their usable bytes."),
    ];
    facts_of(key, title, FactsShape::Columns, facts)
}

fn reachable(graph: &HeapGraph) -> NamedFacts {
    let count = |key: &'static str, label: &'static str, number: u64| {
        fact(key, label, CellValue::Count(number), "")
    };
    let LiveAmount { blocks, bytes } = graph.reachable;
    let facts = vec![
        count("blocks", "blocks", blocks),
        fact("bytes", "bytes", CellValue::Bytes(bytes), ""),
        count("roots", "roots", graph.roots),
        count("pointers", "pointers", graph.pointers),
        count("unrecorded", "pointers beyond the limit", graph.unrecorded)
            .hidden_if(graph.unrecorded == 0),
        fact("unseen", "not read", CellValue::Bytes(graph.unseen.0), "")
            .hidden_if(graph.unseen.is_zero()),
        fact("took_ns", "in", CellValue::Nanos(graph.took_ns), "Duration of the search."),
    ];
    facts_of("reachable", "Reachable", FactsShape::Line, facts)
}

fn leaks(graph: &HeapGraph, limit: Option<usize>) -> ReportTable {
    let audience = if graph.leaks.is_empty() { Audience::Programs } else { Audience::Everyone };
    let (shown, note) = first(&graph.leaks, limit, "--top");
    let counts = |of: fn(&LeakGroup) -> u64| ColumnCells::Counts(shown.iter().map(of).collect());
    let bytes = |of: fn(&LeakGroup) -> u64| ColumnCells::Bytes(shown.iter().map(of).collect());
    let columns = vec![
        TableColumn {
            meaning: "Blocks that no other leaked block leads to, and cycles.".into(),
            ..TableColumn::new("leaks", "LEAKS", counts(|it| it.leaks))
        },
        TableColumn {
            meaning: "These blocks, and those that only they lead to.".into(),
            ..TableColumn::new("blocks", "BLOCKS", counts(|it| it.blocks))
        },
        TableColumn::new("bytes", "BYTES", bytes(|it| it.bytes)),
        TableColumn {
            meaning: "Usable bytes of each block that no other leaked block leads to.".into(),
            ..TableColumn::new("size", "SIZE", bytes(|it| it.size))
        },
        TableColumn {
            meaning:
                "Class of the block if it has virtual functions, or with `--types` the type that \
                      a pointer to it shows."
                    .into(),
            ..TableColumn::new("type", "TYPE", types(shown.iter().map(|it| &it.block_type)))
        },
        TableColumn {
            meaning: "Address of one of these blocks.".into(),
            ..TableColumn::new(
                "address",
                "ADDRESS",
                ColumnCells::Addresses(shown.iter().map(|it| it.address).collect()),
            )
        },
        TableColumn {
            meaning: "First bytes of this block.".into(),
            ..TableColumn::new(
                "first_bytes",
                "FIRST BYTES",
                ColumnCells::Labels(shown.iter().map(|it| hex(&it.first_bytes)).collect()),
            )
        },
        allocating_functions(shown),
        for_programs(stack_column("stack", "", shown, |stack| {
            CellValue::List(stack.iter().map(frame_cell).collect())
        })),
    ];
    let has_stacks = shown.iter().any(|it| it.stack.is_ok());
    let title =
        if has_stacks { "Leaks by size, type and call stack" } else { "Leaks by size and type" };
    ReportTable { note, ..table("leaks", title, audience, columns) }
}

/// The function that allocated the blocks of each row; hidden from people if all are unknown.
fn allocating_functions(shown: &[LeakGroup]) -> TableColumn {
    let function = |stack: &[Frame]| allocator(stack).map_or(CellValue::None, frame_cell);
    let column = TableColumn {
        meaning: "Function and source line that allocated these blocks.".into(),
        ..stack_column("allocated_by", "ALLOCATED BY", shown, function)
    };
    if shown.iter().any(|it| it.stack.is_ok()) { column } else { for_programs(column) }
}

fn stack_column(
    key: &'static str,
    label: &'static str,
    shown: &[LeakGroup],
    cell: impl Fn(&[Frame]) -> CellValue,
) -> TableColumn {
    let cells = shown.iter().map(|it| it.stack.as_ref().map_or(CellValue::None, |it| cell(it)));
    let absent = shown.iter().enumerate();
    let absent = absent.filter_map(|(at, it)| Some((at, it.stack.as_ref().err()?.clone())));
    TableColumn {
        gaps: gaps(absent.collect(), shown.len()),
        ..TableColumn::new(key, label, ColumnCells::Values(cells.collect()))
    }
}

fn live_bytes(graph: &HeapGraph) -> u64 {
    graph.reachable.bytes.saturating_add(graph.leaked.bytes)
}

fn typed_facts(typed: &TypedBlocks, graph: &HeapGraph) -> NamedFacts {
    let facts = vec![
        fact("blocks", "blocks", CellValue::Count(typed.typed.blocks), "Blocks with a type."),
        fact("bytes", "bytes", CellValue::Bytes(typed.typed.bytes), "Their usable bytes."),
        fact(
            "share",
            "share",
            share(typed.typed.bytes, live_bytes(graph)),
            "Share of the live bytes.",
        ),
        fact(
            "contradicted",
            "contradicted",
            CellValue::Count(typed.contradicted.blocks),
            "Blocks to which pointers of different types lead: they have no type.",
        )
        .hidden_if(typed.contradicted.blocks == 0),
        fact("took_ns", "in", CellValue::Nanos(typed.took_ns), "Duration of the search."),
    ];
    facts_of("typed", "Typed", FactsShape::Line, facts)
}

fn types_table(typed: &TypedBlocks, graph: &HeapGraph, limit: Option<usize>) -> ReportTable {
    let audience = if typed.groups.is_empty() { Audience::Programs } else { Audience::Everyone };
    let (shown, note) = first(&typed.groups, limit, "--top");
    let all = live_bytes(graph);
    let columns = vec![
        TableColumn::new(
            "bytes",
            "BYTES",
            ColumnCells::Bytes(shown.iter().map(|it| it.live.bytes).collect()),
        ),
        TableColumn {
            meaning: "Share of the live bytes.".into(),
            ..TableColumn::new(
                "share",
                "SHARE",
                ColumnCells::Values(shown.iter().map(|it| share(it.live.bytes, all)).collect()),
            )
        },
        TableColumn::new(
            "blocks",
            "BLOCKS",
            ColumnCells::Counts(shown.iter().map(|it| it.live.blocks).collect()),
        ),
        TableColumn {
            meaning: "Type of each block; with `[]` if each is an array of it.".into(),
            ..TableColumn::new(
                "type",
                "TYPE",
                ColumnCells::Names(shown.iter().map(|it| it.name.clone()).collect()),
            )
        },
        for_programs(TableColumn::new(
            "evidence",
            "",
            ColumnCells::Labels(shown.iter().map(|it| it.evidence.key().into()).collect()),
        )),
        for_programs(TableColumn::new(
            "address",
            "",
            ColumnCells::Addresses(shown.iter().map(|it| it.address).collect()),
        )),
    ];
    ReportTable { note, ..table("types", "Live blocks by type", audience, columns) }
}

fn lacks(typed: &TypedBlocks) -> ReportTable {
    let audience = if typed.lacks.is_empty() { Audience::Programs } else { Audience::Everyone };
    let names = typed.lacks.iter().map(|it| it.module.clone()).collect();
    let reasons = typed.lacks.iter().map(|it| it.why.clone().into()).collect();
    let columns = vec![
        TableColumn::new("file", "FILE", ColumnCells::Names(names)),
        TableColumn::new("why", "REASON", ColumnCells::Labels(reasons)),
    ];
    table("types_lack", "Files without types", audience, columns)
}

fn types<'a>(types: impl Iterator<Item = &'a Option<Name>>) -> ColumnCells {
    ColumnCells::Values(
        types.map(|it| it.clone().map_or(CellValue::None, CellValue::Name)).collect(),
    )
}

fn hex(bytes: &[u8]) -> Label {
    let words = bytes.chunks(8).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect());
    words.collect::<Vec<String>>().join(" ").into()
}

fn retained(graph: &HeapGraph, limit: Option<usize>) -> ReportTable {
    let (shown, note) = first(&graph.retained, limit, "--top");
    let all = graph.reachable.bytes;
    let bytes = |it: &RetainingRoot| it.retained.bytes;
    let columns = vec![
        TableColumn::new(
            "bytes",
            "RETAINED",
            ColumnCells::Bytes(shown.iter().map(bytes).collect()),
        ),
        TableColumn::new(
            "share",
            "SHARE",
            ColumnCells::Values(shown.iter().map(|it| share(bytes(it), all)).collect()),
        ),
        TableColumn::new(
            "blocks",
            "BLOCKS",
            ColumnCells::Counts(shown.iter().map(|it| it.retained.blocks).collect()),
        ),
        TableColumn::new(
            "kind",
            "KIND",
            ColumnCells::Labels(shown.iter().map(|it| it.root.kind.key().into()).collect()),
        ),
        for_people(TableColumn::new(
            "root",
            "ROOT",
            ColumnCells::Names(shown.iter().map(retaining_name).collect()),
        )),
        for_programs(TableColumn::new(
            "root",
            "",
            ColumnCells::Names(shown.iter().map(|it| root_name(&it.root)).collect()),
        )),
        for_programs(TableColumn {
            meaning: "Roots that lead to the first of blocks that several roots keep.".into(),
            ..TableColumn::new(
                "roots",
                "",
                ColumnCells::Values(shown.iter().map(|it| several(&it.roots)).collect()),
            )
        }),
        for_programs(TableColumn::new(
            "more_roots",
            "",
            ColumnCells::Values(
                shown.iter().map(|it| CellValue::Flag(it.has_more_roots)).collect(),
            ),
        )),
        TableColumn {
            meaning: "Blocks on the way to most of the retained bytes.".into(),
            ..TableColumn::new(
                "path",
                "LARGEST BELOW",
                ColumnCells::Values(shown.iter().map(|it| steps(&it.path)).collect()),
            )
        },
        for_programs(TableColumn::new(
            "address",
            "",
            ColumnCells::Addresses(shown.iter().map(|it| it.root.address).collect()),
        )),
        for_programs(TableColumn::new(
            "frame",
            "",
            ColumnCells::Values(shown.iter().map(|it| frame_record(&it.root)).collect()),
        )),
    ];
    let title = "Bytes that would be unreachable without each root";
    ReportTable { note, ..table("retained", title, Audience::Everyone, columns) }
}

fn steps(path: &[RetentionStep]) -> CellValue {
    let step = |step: &RetentionStep| {
        let mut words = vec![
            ("blocks".into(), CellValue::Count(step.blocks)),
            ("size".into(), CellValue::Bytes(step.size)),
        ];
        words.extend(step.block_type.clone().map(|it| ("type".into(), CellValue::Name(it))));
        words.extend(step.member.clone().map(|it| ("member".into(), CellValue::Name(it))));
        words.push(("at".into(), CellValue::Address(step.address)));
        CellValue::Record(words)
    };
    CellValue::List(path.iter().map(step).collect())
}

/// One name for a root: `s3.c: item (s3)`, `stack of thread 7 (worker), serve at s3.c:12`.
pub fn root_name(root: &HeapRoot) -> Name {
    let base = |name: &Name| String::from_utf8_lossy(name.base()).into_owned();
    let name = String::from_utf8_lossy(root.name.as_bytes()).into_owned();
    let thread = match root.tid {
        Some(tid) if name.is_empty() || root.module.is_some() => format!("thread {tid}"),
        Some(tid) => format!("thread {tid} ({name})"),
        None => String::new(),
    };
    let address = root.address;
    let function = root.frame.as_ref().map(frame_name).unwrap_or_default();
    let source = root.source.as_ref().map(|source| format!("{}: ", base(source)));
    let name = format!("{}{name}", source.unwrap_or_default());
    let text = match (root.kind, &root.module) {
        (RootKind::Register, _) => format!("registers of {thread}{function}"),
        (RootKind::ThreadLocal, Some(module)) => format!("{name} ({}), {thread}", base(module)),
        (RootKind::ThreadLocal, None) => format!("thread-local storage of {thread}"),
        (RootKind::Stack, _) => format!("stack of {thread}{function}"),
        (RootKind::Variable, Some(module)) => format!("{name} ({})", base(module)),
        (RootKind::Variable, None) => name,
        (RootKind::Data, _) => format!("data of {} at {address:#x}", base(&root.name)),
        (RootKind::Mapping, _) if name.is_empty() => format!("anonymous mapping at {address:#x}"),
        (RootKind::Mapping, _) => format!("mapping {name} at {address:#x}"),
        (RootKind::Several, _) => "several roots".to_owned(),
        (RootKind::Unrecorded, _) => "pointers beyond the limit".to_owned(),
    };
    Name::from(text.as_str())
}

/// The name of the root of a row; if several roots keep the blocks, the names of some of them.
fn retaining_name(row: &RetainingRoot) -> Name {
    if row.roots.is_empty() {
        return root_name(&row.root);
    }
    let roots = row.roots.iter().map(root_name);
    let roots: Vec<String> =
        roots.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect();
    let more = if row.has_more_roots { " and others" } else { "" };
    Name::from(format!("{}{more}", roots.join(", ")).as_str())
}

fn several(roots: &[HeapRoot]) -> CellValue {
    CellValue::List(roots.iter().map(|root| CellValue::Name(root_name(root))).collect())
}

/// The function of a frame as words.
fn frame_record(root: &HeapRoot) -> CellValue {
    let Some(frame) = &root.frame else { return CellValue::None };
    let mut words = vec![("depth".into(), CellValue::Count(frame.depth.into()))];
    let mut name = |key: &'static str, name: &Option<Name>| {
        words.extend(name.clone().map(|it| (key.into(), CellValue::Name(it))));
    };
    name("function", &frame.function);
    name("module", &frame.module);
    name("source", &frame.source);
    if frame.source.is_some() {
        words.push(("line".into(), CellValue::Count(frame.line.into())));
    }
    CellValue::Record(words)
}

/// The function of a frame: `, serve at s3.c:12`.
fn frame_name(frame: &RootFrame) -> String {
    let text = |name: &Name| String::from_utf8_lossy(name.base()).into_owned();
    let whole = |name: &Name| String::from_utf8_lossy(name.as_bytes()).into_owned();
    let function = match (&frame.function, &frame.module) {
        (Some(function), _) => whole(function),
        (None, Some(module)) => format!("a function of {}", text(module)),
        (None, None) => return String::new(),
    };
    match &frame.source {
        Some(source) => format!(", {function} at {}:{}", text(source), frame.line),
        None => format!(", {function}"),
    }
}

/// The tree of retained bytes as cells of a picture.
pub fn cells(graph: &HeapGraph) -> Vec<RetainedCell> {
    let cell = |entry: &RetentionEntry| RetainedCell {
        parent: entry.parent,
        label: entry_label(entry),
        retained: entry.retained,
    };
    graph.retention.iter().map(cell).collect()
}

fn entry_label(entry: &RetentionEntry) -> Name {
    let blocks = entry.blocks.as_ref().map(|step| {
        let name = step.block_type.as_ref().map(|it| String::from_utf8_lossy(it.as_bytes()));
        let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
        format!("{} x {} B{name}", step.blocks, step.size)
    });
    let root = entry.root.as_ref().map(root_name);
    match (root, blocks) {
        (Some(root), None) => root,
        (Some(root), Some(blocks)) => {
            let root = String::from_utf8_lossy(root.as_bytes()).into_owned();
            Name::from(format!("{blocks}, kept by {root}").as_str())
        }
        (None, blocks) => Name::from(blocks.unwrap_or_default().as_str()),
    }
}

fn kept_block(kept: &KeptBlock) -> NamedFacts {
    let block = |of: fn(&KeptStep) -> CellValue| kept.block.as_ref().map_or(CellValue::None, of);
    let facts: Vec<Fact> = vec![
        fact("asked", "address", CellValue::Address(kept.asked), ""),
        fact("block", "block", block(|it| CellValue::Address(it.address)), ""),
        fact("size", "size", block(|it| CellValue::Bytes(it.size)), ""),
        fact(
            "type",
            "type",
            block(|it| it.block_type.clone().map_or(CellValue::None, CellValue::Name)),
            "",
        ),
        fact("reachable", "reachable", CellValue::Flag(!kept.paths.is_empty()), ""),
        fact("roots", "kept by", kept_by(kept), "Roots that lead to the block, the nearest first."),
        fact(
            "more_roots",
            "and others",
            CellValue::Flag(kept.has_more_roots),
            "True if further roots lead to the block.",
        )
        .hidden_if(!kept.has_more_roots),
        fact("retained_bytes", "retained", CellValue::Bytes(kept.retained.bytes), ""),
        fact("retained_blocks", "blocks", CellValue::Count(kept.retained.blocks), ""),
    ];
    facts_of("why", "Block", FactsShape::Line, facts)
}

/// The roots of the paths, each once.
fn kept_by(kept: &KeptBlock) -> CellValue {
    let mut names: Vec<Name> = Vec::new();
    for name in kept.paths.iter().map(|path| root_name(&path.root)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    CellValue::List(names.into_iter().map(CellValue::Name).collect())
}

fn paths(kept: &KeptBlock, limit: Option<usize>) -> ReportTable {
    let (shown, note) = first(&kept.paths, limit, "--top");
    let columns = vec![
        TableColumn::new(
            "root",
            "ROOT",
            ColumnCells::Names(shown.iter().map(|it| root_name(&it.root)).collect()),
        ),
        TableColumn::new(
            "kind",
            "KIND",
            ColumnCells::Labels(shown.iter().map(|it| it.root.kind.key().into()).collect()),
        ),
        TableColumn::new(
            "pointer",
            "POINTER",
            ColumnCells::Addresses(shown.iter().map(|it| it.root.address).collect()),
        ),
        TableColumn::new(
            "length",
            "BLOCKS",
            ColumnCells::Counts(
                shown.iter().map(|it| it.steps.len() as u64 + it.omitted).collect(),
            ),
        ),
        TableColumn::new(
            "steps",
            "PATH",
            ColumnCells::Values(shown.iter().map(path_steps).collect()),
        ),
    ];
    let title = "Shortest paths that keep the block alive";
    ReportTable { note, ..table("why.paths", title, Audience::Everyone, columns) }
}

fn path_steps(path: &RootPath) -> CellValue {
    let step = |step: &KeptStep| {
        let mut words = vec![
            ("at".into(), CellValue::Address(step.address)),
            ("size".into(), CellValue::Bytes(step.size)),
        ];
        words.extend(step.block_type.clone().map(|it| ("type".into(), CellValue::Name(it))));
        words.extend(step.member.clone().map(|it| ("member".into(), CellValue::Name(it))));
        CellValue::Record(words)
    };
    let (head, tail) = path.steps.split_at(path.steps.len().min(SHOWN_STEPS));
    let shown_tail = &tail[tail.len().saturating_sub(SHOWN_STEPS)..];
    let omitted = path.omitted + (tail.len() - shown_tail.len()) as u64;
    let mut cells: Vec<CellValue> = head.iter().map(step).collect();
    if omitted > 0 {
        cells.push(CellValue::Record(vec![("omitted".into(), CellValue::Count(omitted))]));
    }
    cells.extend(shown_tail.iter().map(step));
    CellValue::List(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_has_the_name_that_its_program_gave_it() {
        let root = |kind, name: &str, module: Option<&str>, tid| HeapRoot {
            kind,
            name: name.into(),
            module: module.map(Name::from),
            source: None,
            frame: None,
            tid,
            address: 0x10,
        };
        let named = |root: HeapRoot| root_name(&root).escaped().into_owned();
        assert_eq!(named(root(RootKind::Variable, "item", Some("/bin/s3"), None)), "item (s3)");
        assert_eq!(
            named(root(RootKind::Stack, "worker", None, Some(7))),
            "stack of thread 7 (worker)"
        );
        assert_eq!(
            named(root(RootKind::ThreadLocal, "own", Some("/bin/s3"), Some(7))),
            "own (s3), thread 7"
        );
        let frame = RootFrame {
            depth: 1,
            function: Some("serve".into()),
            module: Some("/bin/s3".into()),
            source: Some("/src/s3.c".into()),
            line: 12,
        };
        let framed = root(RootKind::Stack, "worker", None, Some(7));
        assert_eq!(
            named(HeapRoot { frame: Some(frame), ..framed }),
            "stack of thread 7 (worker), serve at s3.c:12"
        );
        let local = root(RootKind::Variable, "item", Some("/bin/s3"), None);
        assert_eq!(named(HeapRoot { source: Some("s3.c".into()), ..local }), "s3.c: item (s3)");
        assert_eq!(named(root(RootKind::Mapping, "", None, None)), "anonymous mapping at 0x10");
    }
}
