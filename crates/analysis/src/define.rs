//! Meanings of names: fields of the kernel, columns of pagewise, `VmFlags` codes, pools and causes.

use pagewise_model::counters::VM_FLAGS;
use pagewise_model::fields::{self, FIELDS, FieldMeaning};
use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Report, ReportBlock,
    ReportTable, TableColumn,
};

use crate::pools::PoolKind;
use crate::{causes, findings};

/// Source name of the definitions of causes.
const CAUSE: &str = "cause";
/// Source name of the definitions of findings that state a cause under another ID.
const FINDING: &str = "finding";
/// Maximum number of suggestions.
const SUGGESTIONS: usize = 3;

/// Returns all definitions of a name; `None` if the name has no definition.
///
/// If several kernel files use the name, the report has a block for each file. Case is ignored
/// unless two fields differ only in case.
pub fn define(name: &str) -> Option<Report> {
    let found = named(name.trim());
    let first = found.first()?;
    Some(Report {
        schema: "pagewise.define/1",
        title: vec![CellValue::text(first.name)],
        blocks: vec![ReportBlock::Table(programs(&found))]
            .into_iter()
            .chain(found.iter().map(people))
            .collect(),
    })
}

/// Returns all definitions as one table.
pub fn all() -> Report {
    let fields: Vec<FieldMeaning> = FIELDS.iter().copied().chain(others()).collect();
    let mut table = programs(&fields);
    table.audience = Audience::Everyone;
    for column in &mut table.columns {
        let is_brief = matches!(column.key.as_ref(), "name" | "source" | "unit" | "since");
        column.audience = if is_brief { Audience::Everyone } else { Audience::Long };
    }
    Report {
        schema: "pagewise.define/1",
        title: vec![CellValue::text("Every number and what it means")],
        blocks: vec![ReportBlock::Table(table)],
    }
}

/// Returns names that are spelled like `name`, the most similar name first.
pub fn similar(name: &str) -> Vec<&'static str> {
    nearest(name.trim(), FIELDS.iter().copied().chain(others()).map(|field| field.name))
}

fn named(name: &str) -> Vec<FieldMeaning> {
    let alike = others().filter(|field| fields::is_alike(field.name, name));
    fields::named(name).copied().chain(alike).collect()
}

/// Returns the definitions that are not in [`FIELDS`].
fn others() -> impl Iterator<Item = FieldMeaning> {
    let named = |name, source, unit, meaning| FieldMeaning {
        name,
        source,
        unit,
        since: "",
        meaning,
        trap: "",
    };
    let flags =
        VM_FLAGS.iter().map(move |(code, meaning)| named(code, "VmFlags", "flag", *meaning));
    let pools =
        PoolKind::ALL.iter().map(move |kind| named(kind.id(), "pool", "text", kind.meaning()));
    let causes = causes::causes().map(|row| (row.id, CAUSE, row));
    let findings = findings::with_other_ids().map(|(id, row)| (id, FINDING, row));
    let causes = causes.chain(findings).map(move |(id, source, row)| FieldMeaning {
        trap: row.excluded_by,
        ..named(id, source, "", row.meaning)
    });
    flags.chain(pools).chain(causes)
}

/// Returns the names of `known` that are within a small edit distance of `name` or contain it, the
/// smallest edit distance first.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let name: Vec<char> = name.to_lowercase().chars().take(64).collect();
    let allowed = (name.len() / 3).max(1);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for candidate in known {
        let letters: Vec<char> = candidate.to_lowercase().chars().collect();
        let is_part = name.len() >= 3 && letters.windows(name.len()).any(|part| part == name);
        let slips = distance(&name, &letters);
        if (slips <= allowed || is_part) && !found.iter().any(|(_, seen)| *seen == candidate) {
            found.push((slips, candidate));
        }
    }
    found.sort_by_key(|(slips, _)| *slips);
    found.into_iter().take(SUGGESTIONS).map(|(_, candidate)| candidate).collect()
}

/// Edit distance: number of letters to insert, delete, replace or swap with the adjacent letter.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Returns the name of a definition's source (a file or a group of names) for people.
fn place(source: &'static str) -> &'static str {
    match source {
        "smaps" => "/proc/PID/smaps and smaps_rollup",
        "smaps_rollup" => "/proc/PID/smaps_rollup",
        "status" => "/proc/PID/status",
        "statm" => "/proc/PID/statm",
        "maps" => "/proc/PID/maps",
        "meminfo" => "/proc/meminfo",
        "vmstat" => "/proc/vmstat",
        "hugepages stats" => "/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats",
        "VmFlags" => "VmFlags in /proc/PID/smaps",
        "pool" => "a pool in pagewise's tables",
        CAUSE => "a cause that `pagewise diagnose` names",
        _ => "computed by pagewise",
    }
}

fn people(field: &FieldMeaning) -> ReportBlock {
    let fact = |key: &'static str, label: &'static str, text: Label| {
        (!text.is_empty()).then(|| Fact {
            key: key.into(),
            label: label.into(),
            value: CellValue::Text(text),
            meaning: "".into(),
            audience: Audience::People,
        })
    };
    let since =
        if field.since.is_empty() { "".into() } else { format!("Linux {}", field.since).into() };
    let facts = [
        fact("meaning", "means", field.meaning.into()),
        fact("unit", "unit", field.unit.into()),
        fact("source", "source", place(field.source).into()),
        fact("since", "since", since),
        fact("trap", if field.source == CAUSE { "excluded by" } else { "trap" }, field.trap.into()),
    ];
    ReportBlock::Facts(NamedFacts {
        key: "".into(),
        title: format!("{} ({})", field.name, field.source).into(),
        audience: Audience::People,
        shape: FactsShape::List,
        facts: facts.into_iter().flatten().collect(),
    })
}

fn programs(fields: &[FieldMeaning]) -> ReportTable {
    let column = |key: &'static str, text: fn(&FieldMeaning) -> &'static str| {
        let cell = |field: &FieldMeaning| match text(field) {
            "" => CellValue::None,
            text => CellValue::text(text),
        };
        TableColumn::new(key, key, ColumnCells::Values(fields.iter().map(cell).collect()))
    };
    ReportTable {
        key: "fields".into(),
        title: "".into(),
        audience: Audience::Programs,
        columns: vec![
            column("name", |f| f.name),
            column("source", |f| f.source),
            column("unit", |f| f.unit),
            column("since", |f| f.since),
            column("meaning", |f| f.meaning),
            column("trap", |f| f.trap),
        ],
        row_keys: None,
        total: None,
        note: "".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_text(report: &Report) -> String {
        format!("{report:?}")
    }

    #[test]
    fn a_name_is_found_regardless_of_case() {
        assert_eq!(define("pss_dirty"), define("Pss_Dirty"));
        assert!(report_text(&define("PSS_DIRTY").unwrap()).contains("6.0"));
    }

    #[test]
    fn a_name_that_two_files_use_gets_both_meanings() {
        let report = report_text(&define("AnonHugePages").unwrap());
        assert!(
            report.contains("AnonHugePages (smaps)") && report.contains("AnonHugePages (meminfo)")
        );
    }

    #[test]
    fn names_that_differ_only_by_case_are_distinguished_when_written_exactly() {
        assert_ne!(define("SHR"), None);
        let names = |name| fields::named(name).map(|f| (f.name, f.source)).collect::<Vec<_>>();
        assert!(
            names("RSS").contains(&("RSS", "pagewise"))
                && !names("RSS").contains(&("Rss", "smaps"))
        );
        assert!(names("rss").len() > 1);
    }

    #[test]
    fn codes_of_vm_flags_and_pools_are_defined_too() {
        assert!(report_text(&define("nr").unwrap()).contains("MAP_NORESERVE"));
        assert!(report_text(&define("malloc arena").unwrap()).contains("64 MiB"));
        assert!(report_text(&define("wf").unwrap()).contains("MADV_WIPEONFORK"));
    }

    #[test]
    fn findings_with_an_id_of_their_own_are_defined_by_their_causes() {
        let report = report_text(&define("touched-again").unwrap());
        assert!(report.contains("faulted in again"), "{report}");
        let report = report_text(&define("not-freed").unwrap());
        assert!(report.contains("last pointer") && report.contains("without bound"), "{report}");
        // Each entry of the table names causes that exist.
        for (id, causes) in findings::CAUSES_OF_FINDINGS {
            assert_eq!(findings::causes_of(id).count(), causes.len(), "{id}");
        }
    }

    #[test]
    fn every_column_of_our_tables_is_defined() {
        use crate::sample::{resident, snapshot};
        use pagewise_model::report::ReportBlock;

        let snapshot = snapshot(vec![resident("1000-3000 rw-p 0 0 [heap]", 4096)]);
        let report = crate::maps::maps(&snapshot, &crate::maps::MapsOptions::default()).unwrap();
        for block in &report.blocks {
            let ReportBlock::Table(table) = block else { continue };
            for column in &table.columns {
                assert!(define(&column.key).is_some(), "{}", column.key);
            }
        }
    }

    #[test]
    fn an_unknown_name_yields_the_most_similar_names() {
        assert_eq!(define("Pss_Dirt"), None);
        assert_eq!(similar("Pss_Dirt")[0], "Pss_Dirty");
        assert_eq!(similar("MemAvailabel")[0], "MemAvailable");
        assert!(similar("anonhugep").contains(&"AnonHugePages"));
        assert!(similar("zzzzzzzzzzzz").is_empty());
    }

    #[test]
    fn two_swapped_letters_are_one_edit() {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        assert_eq!(distance(&letters("rsS"), &letters("rSs")), 1);
        assert_eq!(distance(&letters(""), &letters("abc")), 3);
        assert_eq!(distance(&letters("kitten"), &letters("sitting")), 3);
    }
}
