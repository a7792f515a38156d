//! Reports for the tests: one constructed report with every kind of block and hostile names, and
//! arbitrary reports.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use pagewise_model::lab::{ClaimVerdict, ExperimentClaim};
use pagewise_model::report::*;
use pagewise_model::{Absent, AddrRange, Name, Report};
use proptest::prelude::*;

/// A name with everything that terminals and browsers must not receive: an escape sequence, a
/// newline, markup, a direction mark, invalid UTF-8.
pub(crate) fn hostile() -> Name {
    Name::new(b"/tmp/\x1b[2J\nevil <script>alert('1')</script> & \"\xe2\x80\xae\xc2\x9b\xff.so")
}

fn fact(key: &'static str, label: &'static str, value: CellValue, meaning: &'static str) -> Fact {
    let audience = Audience::Everyone;
    Fact { key: key.into(), label: label.into(), value, meaning: meaning.into(), audience }
}

fn needs_root() -> Absent {
    Absent::NotPermitted("CAP_SYS_ADMIN: try sudo".into())
}

/// A report with every kind of block.
pub(crate) fn sample() -> Report {
    let blocks = vec![
        who(),
        totals(),
        quadrants("declared", "Memory by mapping", 0),
        quadrants("effective", "Memory by page", 3 << 20),
        pools(),
        mappings(),
        ReportBlock::Findings(findings()),
        ReportBlock::AddressMap(address_map()),
        ReportBlock::Chart(chart()),
        ReportBlock::Bars(bars()),
        ReportBlock::Claims(claims()),
        all_mappings(),
        ReportBlock::Part("In the end".into()),
        ReportBlock::Text(Paragraph {
            title: "How to read this".into(),
            pieces: vec![
                CellValue::text("PSS counts a page that "),
                CellValue::Count(3),
                CellValue::text(
                    " processes map as a third of a page, so that PSS adds up over processes while RES does not. The longest hold was ",
                ),
                CellValue::Nanos(1_234_567),
                CellValue::text("."),
            ],
            audience: Audience::People,
        }),
    ];
    let title = vec![
        CellValue::Name("cached".into()),
        CellValue::text(", process "),
        CellValue::Count(4242),
    ];
    Report { schema: "pagewise.explain/1", title, blocks }
}

fn claims() -> Vec<ExperimentClaim> {
    let claim = |verdict, measured: &'static str, why: &'static str| ExperimentClaim {
        text: "A sibling that runs makes the taking away of a page slower".into(),
        source: "1,398 ns with 2 threads".into(),
        expected: "more than 1.50 ×".into(),
        measured: measured.into(),
        verdict,
        why: why.into(),
    };
    let why =
        "between the CPUs of a virtual machine an interrupt costs what the hypervisor makes of it";
    vec![
        claim(ClaimVerdict::Agrees, "25 × (24 × to 26 ×)", ""),
        claim(ClaimVerdict::Disagrees, "1.09 ×", why),
        claim(ClaimVerdict::CannotTell, "", "it was not measured here"),
    ]
}

fn chart() -> Chart {
    let line = |label: &'static str, points: &[(u32, u32)]| ChartLine {
        label: label.into(),
        points: points.iter().map(|(x, y)| (f64::from(*x), f64::from(*y))).collect(),
    };
    let live = [(0, 0), (1000, 300 << 10), (5000, 2 << 20), (9000, 700 << 10), (10_000, 0)];
    let held = [(0, 64 << 10), (4000, 1 << 20), (4001, 3 << 20), (10_000, 3 << 20)];
    let scale = Scale::Linear;
    Chart {
        title: vec![CellValue::text("Pool "), CellValue::Name("a<b>\x1b[2J".into())],
        x: Axis { label: "requests".into(), unit: AxisUnit::Count, scale },
        y: Axis { label: "memory".into(), unit: AxisUnit::Bytes, scale },
        lines: vec![line("live", &live), line("held", &held)],
    }
}

fn bars() -> Bars {
    let bar =
        |label: &'static str, value: f64, interval| Bar { label: label.into(), value, interval };
    Bars {
        title: vec![CellValue::text("Time for a page")],
        axis: Axis { label: "".into(), unit: AxisUnit::Nanos, scale: Scale::Linear },
        bars: vec![
            bar("touch", 1_512.0, Some((1_480.0, 1_640.0))),
            bar("populate <&>", 1_203.0, Some((1_190.0, 1_260.0))),
            bar("huge", 602.0, None),
        ],
    }
}

fn who() -> ReportBlock {
    let facts = vec![
        fact("pid", "pid", CellValue::Count(4242), ""),
        fact(
            "command",
            "command",
            CellValue::List(vec![
                CellValue::Name("/usr/sbin/cached".into()),
                CellValue::Name(hostile()),
            ]),
            "",
        ),
        fact("uptime_ns", "up", CellValue::Nanos(266_400_000_000_000), ""),
        fact("threads", "threads", CellValue::Count(8), ""),
        fact("kernel", "kernel", CellValue::Name("6.18.0".into()), ""),
        fact("page_size", "page size", CellValue::Bytes(4096), ""),
        Fact {
            audience: Audience::Long,
            ..fact(
                "method",
                "method",
                CellValue::text("polite"),
                "Reads maps and pagemap with rests between.",
            )
        },
        Fact { audience: Audience::Programs, ..fact("torn", "torn", CellValue::Flag(false), "") },
    ];
    ReportBlock::Facts(NamedFacts {
        key: "process".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Line,
        facts,
    })
}

fn totals() -> ReportBlock {
    let facts = vec![
        fact(
            "virt",
            "VIRT",
            CellValue::Bytes(16 << 40),
            "All mappings, touched or not: address space, not memory.",
        ),
        fact(
            "res",
            "RES",
            CellValue::Bytes(57_407_488),
            "Resident anonymous, file and shmem pages.",
        ),
        fact(
            "shr",
            "SHR",
            CellValue::Bytes(2_981_888),
            "Resident file and shmem pages; no other process need map them.",
        ),
        fact(
            "data",
            "DATA",
            CellValue::Bytes(16 << 40),
            "Reserved private writable memory, resident or not.",
        ),
        fact("code", "CODE", CellValue::Bytes(14_114_816), "The program's text."),
        fact("swap", "SWAP", CellValue::Bytes(0), "Anonymous memory that is in swap."),
        fact("mem", "%MEM", CellValue::Share(0.0123), "RES as a share of the machine's memory."),
        fact(
            "pss",
            "PSS",
            CellValue::Bytes(55_112_090),
            "RES with each page divided by how often it is mapped.",
        ),
        fact("uss", "USS", CellValue::Bytes(54_000_000), "What ending the process would free."),
        fact("peak_res", "peak RES", CellValue::Bytes(u64::MAX), "Highest RES so far."),
        fact(
            "locked",
            "locked",
            CellValue::Absent(Absent::NotInThisKernel("3.5".into())),
            "Locked by mlock.",
        ),
        fact(
            "page_tables",
            "page tables",
            CellValue::Absent(needs_root()),
            "The kernel's own cost of mapping it all.",
        ),
    ];
    ReportBlock::Facts(NamedFacts {
        key: "totals".into(),
        title: "Totals".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Columns,
        facts,
    })
}

fn quadrants(kind: &'static str, title: &'static str, moved: u64) -> ReportBlock {
    let keys = ["private_anonymous", "shared_anonymous", "private_file", "shared_file"];
    let name = TableColumn {
        audience: Audience::People,
        ..TableColumn::new(
            "name",
            "",
            ColumnCells::Labels(vec![
                "private anonymous".into(),
                "shared anonymous".into(),
                "private file".into(),
                "shared file".into(),
            ]),
        )
    };
    let swapped = TableColumn {
        gaps: Gaps::All(needs_root()),
        ..TableColumn::new("swapped", "Swapped", ColumnCells::Bytes(vec![0; 4]))
    };
    let columns = vec![
        name,
        TableColumn::new(
            "reserved",
            "Reserved",
            ColumnCells::Bytes(vec![16 << 40, 50 << 20, 30 << 20, 4096]),
        ),
        TableColumn::new(
            "resident",
            "Resident",
            ColumnCells::Bytes(vec![(40 << 20) + moved, 5 << 20, (8 << 20) - moved, 0]),
        ),
        TableColumn::new(
            "pss",
            "PSS",
            ColumnCells::Bytes(vec![(40 << 20) + moved, 2_621_440, 987_654, 0]),
        ),
        swapped,
    ];
    let total = vec![
        CellValue::text("all"),
        CellValue::Bytes((16 << 40) + (80 << 20)),
        CellValue::Bytes(53 << 20),
        CellValue::Bytes(45_000_000),
        CellValue::None,
    ];
    ReportBlock::Table(ReportTable {
        key: format!("quadrants.{kind}").into(),
        title: title.into(),
        audience: Audience::Everyone,
        columns,
        row_keys: Some(keys.map(Label::from).to_vec()),
        total: Some(total),
        note: "".into(),
    })
}

fn pools() -> ReportBlock {
    let pools = ["heap", "library", "library", "thread_stack", "text"];
    let names: Vec<Name> = vec![
        "[heap]".into(),
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into(),
        hostile(),
        "worker 3 (tid 4250) 漢字 é".into(),
        "".into(),
    ];
    let gaps = BTreeMap::from([(2, Absent::Vanished), (3, needs_root())]);
    let columns = vec![
        TableColumn::new("pool", "Pool", ColumnCells::Labels(pools.map(Label::from).to_vec())),
        TableColumn::new("name", "Name", ColumnCells::Names(names)),
        TableColumn::new(
            "reserved",
            "Reserved",
            ColumnCells::Bytes(vec![1023, 1024, 1_048_575, 8 << 20, u64::MAX]),
        ),
        TableColumn::new(
            "resident",
            "Resident",
            ColumnCells::Bytes(vec![0, 512, 99_999, 1 << 30, 7]),
        ),
        TableColumn {
            gaps: Gaps::Some(gaps),
            ..TableColumn::new("pss", "PSS", ColumnCells::Bytes(vec![0, 1, 0, 0, 3]))
        },
        TableColumn::new(
            "change",
            "Change",
            ColumnCells::Values(vec![
                CellValue::Change(0),
                CellValue::Change(4096),
                CellValue::Change(-1),
                CellValue::Change(i64::MIN),
                CellValue::None,
            ]),
        ),
    ];
    ReportBlock::Table(ReportTable {
        key: "pools".into(),
        title: "By pool".into(),
        audience: Audience::Everyone,
        columns,
        row_keys: None,
        total: None,
        note: "12 more pools hold 3.4M of RES.".into(),
    })
}

fn mappings() -> ReportBlock {
    let addresses: Vec<u64> = vec![0x55d0_c000_0000, 0x7f12_3456_7000, 0x7ffd_0000_0000];
    let columns = vec![
        TableColumn { meaning: "The first address.".into(), ..TableColumn::new("start", "Address", ColumnCells::Addresses(addresses)) },
        TableColumn::new("mode", "Mode", ColumnCells::Labels(vec!["r-xp".into(), "rw-s".into(), "rw-pR".into()])),
        TableColumn::new("size", "Size", ColumnCells::Bytes(vec![132 << 10, 1 << 30, 8 << 20])),
        TableColumn::new("rss", "RSS", ColumnCells::Bytes(vec![132 << 10, 4096, 8 << 10])),
        TableColumn::new("pss", "PSS", ColumnCells::Bytes(vec![66 << 10, 4096, 8 << 10])),
        TableColumn::new("dirty", "Dirty", ColumnCells::Bytes(vec![0, 4096, 8 << 10])),
        TableColumn::new("huge", "Huge", ColumnCells::Bytes(vec![0, 0, 2 << 20])),
        TableColumn::new("swap", "Swap", ColumnCells::Bytes(vec![0, 0, 0])),
        TableColumn { audience: Audience::Long, meaning: "Where in the file.".into(), ..TableColumn::new("offset", "Offset", ColumnCells::Addresses(vec![0, 0x1000, 0])) },
        TableColumn { meaning: "What is mapped.".into(), ..TableColumn::new("name", "Name", ColumnCells::Names(vec!["/usr/sbin/cached".into(), hostile(), "/a/very/long/path/that/no/terminal/of/eighty/columns/could/ever/show/libfoo.so.1.2.3".into()])) },
    ];
    let total = vec![
        CellValue::None,
        CellValue::text("all"),
        CellValue::Bytes(1_082_267_648),
        CellValue::Bytes(147_456),
        CellValue::Bytes(79_872),
        CellValue::Bytes(12_288),
        CellValue::Bytes(2 << 20),
        CellValue::Bytes(0),
        CellValue::None,
        CellValue::None,
    ];
    ReportBlock::Table(ReportTable {
        key: "largest".into(),
        title: "Largest mappings".into(),
        audience: Audience::People,
        columns,
        row_keys: None,
        total: Some(total),
        note: "".into(),
    })
}

fn findings() -> Findings {
    let deleted = Finding {
        id: "deleted-library",
        severity: Severity::Critical,
        claim: vec![
            CellValue::text("The library "),
            CellValue::Name(hostile()),
            CellValue::text(" was replaced on disk; "),
            CellValue::Bytes(99_999),
            CellValue::text(" of the old one is still mapped."),
        ],
        evidence: vec![
            fact("resident", "resident", CellValue::Bytes(99_999), ""),
            fact("file", "file", CellValue::Name(hostile()), ""),
            fact("swapped", "swapped", CellValue::Absent(needs_root()), ""),
        ],
        next_step: vec![CellValue::text("Restart the process to run the new one.")],
    };
    let reserved = Finding {
        id: "reserved",
        severity: Severity::Note,
        claim: vec![CellValue::Share(0.999), CellValue::text(" of VIRT is only reserved.")],
        evidence: vec![],
        next_step: vec![],
    };
    Findings { list: vec![deleted, reserved], none: "Nothing found.".into() }
}

fn cell(
    pool: &'static str,
    start: u64,
    end: u64,
    name: Name,
    filled: Result<f64, Absent>,
) -> MapCell {
    let facts = vec![
        fact("mode", "mode", CellValue::text("rw-p"), ""),
        fact("rss", "RSS", CellValue::Bytes(4096), ""),
    ];
    MapCell {
        range: AddrRange { start, end },
        pool,
        label: vec![CellValue::Name(name)],
        filled,
        facts,
    }
}

fn address_map() -> AddressMap {
    let program = Cluster {
        range: AddrRange { start: 0x55d0_c000_0000, end: 0x55d0_c200_0000 },
        cells: vec![
            cell("text", 0x55d0_c000_0000, 0x55d0_c080_0000, "/usr/sbin/cached".into(), Ok(0.9)),
            cell("data", 0x55d0_c080_0000, 0x55d0_c090_0000, "/usr/sbin/cached".into(), Ok(0.25)),
            cell("heap", 0x55d0_c100_0000, 0x55d0_c200_0000, "[heap]".into(), Ok(1.0)),
        ],
    };
    let libraries = Cluster {
        range: AddrRange { start: 0x7f12_0000_0000, end: 0x7f12_0080_0000 },
        cells: vec![
            cell("library", 0x7f12_0000_0000, 0x7f12_0040_0000, hostile(), Err(needs_root())),
            cell("thread_stack", 0x7f12_0060_0000, 0x7f12_0080_0000, "stack".into(), Ok(0.01)),
        ],
    };
    let last_page = 0xffff_ffff_ff60_0000;
    let vsyscall = Cluster {
        range: AddrRange { start: last_page, end: last_page + 4096 },
        cells: vec![cell("vdso", last_page, last_page + 4096, "[vsyscall]".into(), Ok(1.0))],
    };
    AddressMap { title: "Address space".into(), clusters: vec![program, libraries, vsyscall] }
}

fn all_mappings() -> ReportBlock {
    let columns = vec![
        TableColumn::new("start", "Start", ColumnCells::Addresses(vec![0xffff_ffff_ff60_0000])),
        TableColumn::new("name", "Name", ColumnCells::Names(vec![hostile()])),
        TableColumn {
            gaps: Gaps::All(Absent::NotCollected("use --full".into())),
            ..TableColumn::new("pss", "PSS", ColumnCells::Bytes(vec![0]))
        },
    ];
    ReportBlock::Table(ReportTable {
        key: "mappings".into(),
        title: "".into(),
        audience: Audience::Programs,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    })
}

/// A table with `rows` rows, `columns` columns of numbers, and one column of names.
pub(crate) fn big_table(rows: usize, columns: usize) -> Report {
    let n = |row: usize, column: usize| {
        (row * 2_654_435_761 + column * 40_503) as u64 % 1_000_003
            * 4096
            * u64::from((row + column).is_multiple_of(3))
    };
    let addresses = (0..rows).map(|row| 0x7f00_0000_0000 + row as u64 * 8192).collect();
    let mut all = vec![TableColumn::new("start", "Address", ColumnCells::Addresses(addresses))];
    for column in 2..columns {
        let cells = (0..rows).map(|row| n(row, column)).collect();
        all.push(TableColumn::new(
            format!("column_{column}"),
            format!("C{column}"),
            ColumnCells::Bytes(cells),
        ));
    }
    let names =
        [Name::from("/usr/lib/x86_64-linux-gnu/libc.so.6"), Name::from("[heap]"), Name::from("")];
    all.push(TableColumn::new(
        "name",
        "Name",
        ColumnCells::Names((0..rows).map(|row| names[row % 3].clone()).collect()),
    ));
    let table = ReportTable {
        key: "mappings".into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns: all,
        row_keys: None,
        total: None,
        note: "".into(),
    };
    Report { schema: "pagewise.maps/1", title: vec![], blocks: vec![ReportBlock::Table(table)] }
}

fn any_label() -> impl Strategy<Value = Label> {
    prop_oneof!["[a-z_]{0,8}", "\\PC{0,20}", ".{0,12}", Just("quadrants.x".to_owned())]
        .prop_map(Label::from)
}

pub(crate) fn any_name() -> impl Strategy<Value = Name> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| Name::new(&bytes));
    prop_oneof![bytes, any::<String>().prop_map(|text| Name::from(text.as_str())), Just(hostile())]
}

fn any_absent() -> impl Strategy<Value = Absent> {
    prop_oneof![
        Just(Absent::Vanished),
        Just(needs_root()),
        any_label().prop_map(|how| Absent::NotCollected(how.as_ref().into()))
    ]
}

fn any_value() -> impl Strategy<Value = CellValue> {
    let leaf = prop_oneof![
        Just(CellValue::None),
        any::<u64>().prop_map(CellValue::Bytes),
        any::<i64>().prop_map(CellValue::Change),
        any::<u64>().prop_map(CellValue::Count),
        any::<u64>().prop_map(CellValue::Address),
        any::<f64>().prop_map(CellValue::Share),
        (0.0..1.0).prop_map(CellValue::Share),
        any::<f64>().prop_map(CellValue::Rate),
        any::<f64>().prop_map(CellValue::Number),
        any::<f64>().prop_map(CellValue::Bar),
        any::<u64>().prop_map(CellValue::Nanos),
        any::<u64>().prop_map(CellValue::Seconds),
        any::<bool>().prop_map(CellValue::Flag),
        any_label().prop_map(CellValue::Text),
        any_label().prop_map(CellValue::Picture),
        any_name().prop_map(CellValue::Name),
        any_absent().prop_map(CellValue::Absent),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(CellValue::List),
            proptest::collection::vec(inner.clone(), 0..3).prop_map(CellValue::Sentence),
            proptest::collection::vec((any_label(), inner), 0..3).prop_map(CellValue::Record),
        ]
    })
}

fn any_audience() -> impl Strategy<Value = Audience> {
    prop_oneof![
        Just(Audience::Everyone),
        Just(Audience::People),
        Just(Audience::Long),
        Just(Audience::Programs)
    ]
}

fn any_fact() -> impl Strategy<Value = Fact> {
    (any_label(), any_label(), any_value(), any_label(), any_audience()).prop_map(
        |(key, label, value, meaning, audience)| Fact { key, label, value, meaning, audience },
    )
}

fn some<S: Strategy>(strategy: S) -> impl Strategy<Value = Vec<S::Value>> {
    proptest::collection::vec(strategy, 0..5)
}

fn any_facts() -> impl Strategy<Value = ReportBlock> {
    let shape =
        prop_oneof![Just(FactsShape::Line), Just(FactsShape::Columns), Just(FactsShape::List)];
    (any_label(), any_label(), any_audience(), shape, some(any_fact())).prop_map(
        |(key, title, audience, shape, facts)| {
            ReportBlock::Facts(NamedFacts { key, title, audience, shape, facts })
        },
    )
}

fn any_column() -> impl Strategy<Value = TableColumn> {
    let cells = prop_oneof![
        some(any::<u64>()).prop_map(ColumnCells::Bytes),
        some(any::<u64>()).prop_map(ColumnCells::Counts),
        some(any::<u64>()).prop_map(ColumnCells::Addresses),
        some(any_name()).prop_map(ColumnCells::Names),
        some(any_label()).prop_map(ColumnCells::Labels),
        some(any_value()).prop_map(ColumnCells::Values),
        (some(any_value()), some(0..9_u32)).prop_map(|(values, codes)| {
            ColumnCells::Coded(CodedCells { values, codes: Arc::new(codes) })
        }),
    ];
    let gaps = prop_oneof![
        Just(Gaps::None),
        any_absent().prop_map(Gaps::All),
        proptest::collection::btree_map(0..9usize, any_absent(), 0..3).prop_map(Gaps::Some),
    ];
    (any_label(), any_label(), any_label(), any_audience(), cells, gaps).prop_map(
        |(key, label, meaning, audience, cells, gaps)| TableColumn {
            key,
            label,
            meaning,
            audience,
            cells,
            gaps,
        },
    )
}

/// An arbitrary table. Its columns can differ in length, because a view must not panic on an
/// inconsistent report.
fn any_table() -> impl Strategy<Value = ReportBlock> {
    let keys = proptest::option::of(some(any_label()));
    let total = proptest::option::of(some(any_value()));
    (
        any_label(),
        any_label(),
        any_audience(),
        proptest::collection::vec(any_column(), 0..9),
        keys,
        total,
        any_label(),
    )
        .prop_map(|(key, title, audience, columns, row_keys, total, note)| {
            ReportBlock::Table(ReportTable { key, title, audience, columns, row_keys, total, note })
        })
}

fn any_findings() -> impl Strategy<Value = ReportBlock> {
    let severity =
        prop_oneof![Just(Severity::Note), Just(Severity::Warning), Just(Severity::Critical)];
    let finding = (severity, some(any_value()), some(any_fact()), some(any_value())).prop_map(
        |(severity, claim, evidence, next_step)| Finding {
            id: "some-id",
            severity,
            claim,
            evidence,
            next_step,
        },
    );
    (some(finding), any_label())
        .prop_map(|(list, none)| ReportBlock::Findings(Findings { list, none }))
}

fn any_range() -> impl Strategy<Value = AddrRange> {
    (any::<u64>(), any::<u64>(), 0..64u32).prop_map(|(start, length, shift)| AddrRange {
        start,
        end: start.wrapping_add(length >> shift),
    })
}

fn any_map() -> impl Strategy<Value = ReportBlock> {
    let pool = proptest::sample::select(vec![
        "heap", "text", "a<b", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12",
    ]);
    let filled = prop_oneof![any::<f64>().prop_map(Ok), any_absent().prop_map(Err)];
    let cell = (any_range(), pool, some(any_value()), filled, some(any_fact())).prop_map(
        |(range, pool, label, filled, facts)| MapCell { range, pool, label, filled, facts },
    );
    let cluster = (any_range(), some(cell)).prop_map(|(range, cells)| Cluster { range, cells });
    (any_label(), some(cluster))
        .prop_map(|(title, clusters)| ReportBlock::AddressMap(AddressMap { title, clusters }))
}

fn any_chart() -> impl Strategy<Value = ReportBlock> {
    let line = (any_label(), some(any::<(f64, f64)>()))
        .prop_map(|(label, points)| ChartLine { label, points });
    (some(any_value()), any_axis(), any_axis(), some(line))
        .prop_map(|(title, x, y, lines)| ReportBlock::Chart(Chart { title, x, y, lines }))
}

fn any_axis() -> impl Strategy<Value = Axis> {
    let units = vec![
        AxisUnit::Bytes,
        AxisUnit::Count,
        AxisUnit::Nanos,
        AxisUnit::Number,
        AxisUnit::Share,
        AxisUnit::Rate,
    ];
    let scale = proptest::sample::select(vec![Scale::Linear, Scale::Log]);
    (any_label(), proptest::sample::select(units), scale).prop_map(|(label, unit, scale)| Axis {
        label,
        unit,
        scale,
    })
}

fn any_bars() -> impl Strategy<Value = ReportBlock> {
    let interval = proptest::option::of(any::<(f64, f64)>());
    let bar = (any_label(), any::<f64>(), interval).prop_map(|(label, value, interval)| Bar {
        label,
        value,
        interval,
    });
    (some(any_value()), any_axis(), some(bar))
        .prop_map(|(title, axis, bars)| ReportBlock::Bars(Bars { title, axis, bars }))
}

fn any_claims() -> impl Strategy<Value = ReportBlock> {
    let verdict = prop_oneof![
        Just(ClaimVerdict::Agrees),
        Just(ClaimVerdict::CannotTell),
        Just(ClaimVerdict::Disagrees)
    ];
    let words = [any_label(), any_label(), any_label(), any_label(), any_label()];
    let claim = (words, verdict).prop_map(|([text, source, expected, measured, why], verdict)| {
        ExperimentClaim { text, source, expected, measured, verdict, why }
    });
    some(claim).prop_map(ReportBlock::Claims)
}

fn any_text() -> impl Strategy<Value = ReportBlock> {
    (any_label(), some(any_value()), any_audience()).prop_map(|(title, pieces, audience)| {
        ReportBlock::Text(Paragraph { title, pieces, audience })
    })
}

/// An arbitrary report, consistent or not.
pub(crate) fn any_report() -> impl Strategy<Value = Report> {
    let block = prop_oneof![
        any_facts(),
        any_table(),
        any_findings(),
        any_map(),
        any_chart(),
        any_bars(),
        any_claims(),
        any_label().prop_map(ReportBlock::Part),
        any_text()
    ];
    (some(any_value()), proptest::collection::vec(block, 0..5)).prop_map(|(title, blocks)| Report {
        schema: "pagewise.test/1",
        title,
        blocks,
    })
}
