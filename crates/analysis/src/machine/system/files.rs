//! Page cache by file system and by file.

use pagewise_model::Bytes;
use pagewise_model::account::{CachedFile, CachedFiles, PageCharge, SystemReading};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, FactsShape, ReportBlock, ReportTable, TableColumn,
};

use super::SystemOptions;
use crate::blocks::{facts_of, first, table};
use crate::cells::{share, text};
use crate::explain::fact;

/// Blocks of the search for cached files; if there was no search, its reason, for programs.
pub(super) fn blocks(reading: &SystemReading, options: &SystemOptions) -> Vec<ReportBlock> {
    let files = match &reading.files {
        Ok(files) => files,
        Err(absent) => {
            let why = fact("files", "", CellValue::Absent(absent.clone()), "").for_programs();
            return vec![ReportBlock::Facts(facts_of("", "", FactsShape::Line, vec![why]))];
        }
    };
    vec![
        ReportBlock::Facts(search(files)),
        ReportBlock::Table(file_systems(files)),
        ReportBlock::Table(largest(files, options)),
    ]
}

fn search(files: &CachedFiles) -> pagewise_model::report::NamedFacts {
    let cached: Bytes = files.file_systems.iter().map(|it| it.cached).sum();
    let facts = vec![
        fact("cached", "page cache found", CellValue::Bytes(cached.0), "Mapped pages included."),
        fact("asked", "files asked", CellValue::Count(files.files), ""),
        fact("unreadable", "not readable", CellValue::Count(files.unreadable), "")
            .hidden_if(files.unreadable == 0),
        fact(
            "incomplete",
            "search incomplete",
            CellValue::Flag(files.incomplete),
            "True if the search reached its limit of time: --files TIME.",
        )
        .hidden_if(!files.incomplete),
    ];
    facts_of("files", "Page cache of files", FactsShape::Line, facts)
}

fn dirty(bytes: Option<Bytes>) -> CellValue {
    bytes.map_or(CellValue::None, |it| CellValue::Bytes(it.0))
}

fn file_systems(files: &CachedFiles) -> ReportTable {
    let rows = &files.file_systems;
    let columns = vec![
        TableColumn::new(
            "cached",
            "Cached",
            ColumnCells::Bytes(rows.iter().map(|it| it.cached.0).collect()),
        ),
        TableColumn::new(
            "dirty",
            "Dirty",
            ColumnCells::Values(rows.iter().map(|it| dirty(it.dirty)).collect()),
        ),
        TableColumn::new(
            "files",
            "Files",
            ColumnCells::Counts(rows.iter().map(|it| it.files).collect()),
        ),
        TableColumn::new(
            "kind",
            "Type",
            ColumnCells::Names(rows.iter().map(|it| it.kind.clone()).collect()),
        ),
        TableColumn::new(
            "point",
            "Mount point",
            ColumnCells::Names(rows.iter().map(|it| it.point.clone()).collect()),
        ),
    ];
    table("files.file_systems", "Page cache by file system", Audience::Everyone, columns)
}

fn largest(files: &CachedFiles, options: &SystemOptions) -> ReportTable {
    let (rows, note) = first(&files.largest, options.rows, "--limit");
    let part = |it: &CachedFile| {
        it.cached.fraction_of(it.size).map_or(CellValue::None, |it| CellValue::Share(it.min(1.0)))
    };
    let mut columns = vec![
        TableColumn::new(
            "cached",
            "Cached",
            ColumnCells::Bytes(rows.iter().map(|it| it.cached.0).collect()),
        ),
        TableColumn {
            meaning: "Cached part of the file.".into(),
            ..TableColumn::new(
                "share",
                "Of it",
                ColumnCells::Values(rows.iter().map(part).collect()),
            )
        },
        TableColumn::new(
            "dirty",
            "Dirty",
            ColumnCells::Values(rows.iter().map(|it| dirty(it.dirty)).collect()),
        ),
    ];
    if rows.iter().any(|it| !it.charged.is_empty()) {
        columns.push(TableColumn {
            meaning: "Memory cgroups that pay for the pages of the file, by a sample of its pages."
                .into(),
            ..TableColumn::new(
                "charged",
                "Charged to",
                ColumnCells::Values(rows.iter().map(|it| charged(&it.charged)).collect()),
            )
        });
    }
    columns.push(TableColumn::new(
        "path",
        "File",
        ColumnCells::Names(rows.iter().map(|it| it.path.clone()).collect()),
    ));
    ReportTable {
        note,
        ..table("files.largest", "Largest files in the page cache", Audience::Everyone, columns)
    }
}

/// Maximum number of cgroups shown for a file.
const SHOWN_CHARGES: usize = 2;

fn charged(charges: &[PageCharge]) -> CellValue {
    let all: u64 = charges.iter().map(|it| it.pages).sum();
    let mut pieces = Vec::new();
    for charge in charges.iter().take(SHOWN_CHARGES) {
        if !pieces.is_empty() {
            pieces.push(text(", "));
        }
        pieces.push(match &charge.cgroup {
            Some(name) => CellValue::Name(name.clone()),
            None => text("(removed or hidden)"),
        });
        if charges.len() > 1 {
            pieces.extend([text(" "), share(charge.pages, all)]);
        }
    }
    CellValue::Sentence(pieces)
}
