//! Reports to draw: one made by hand with every kind of block and hostile names, and any at all.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use pagewise_model::lab::{Claim, Verdict};
use pagewise_model::report::*;
use pagewise_model::{Absent, AddrRange, Name, Report};
use proptest::prelude::*;

/// A name with all that terminals and browsers must not get: an escape sequence, a newline, markup,
/// a direction mark, invalid UTF-8.
pub(crate) fn hostile() -> Name {
    Name::new(b"/tmp/\x1b[2J\nevil <script>alert('1')</script> & \"\xe2\x80\xae\xc2\x9b\xff.so")
}

fn fact(key: &'static str, label: &'static str, value: Value, meaning: &'static str) -> Fact {
    let audience = Audience::Everyone;
    Fact { key: key.into(), label: label.into(), value, meaning: meaning.into(), audience }
}

fn needs_root() -> Absent {
    Absent::NotPermitted("CAP_SYS_ADMIN: try sudo".into())
}

/// One report with every kind of block.
pub(crate) fn sample() -> Report {
    let blocks = vec![
        who(),
        totals(),
        quadrants("declared", "Memory by mapping", 0),
        quadrants("effective", "Memory by page", 3 << 20),
        pools(),
        mappings(),
        Block::Findings(findings()),
        Block::AddressMap(address_map()),
        Block::Chart(chart()),
        Block::Bars(bars()),
        Block::Claims(claims()),
        all_mappings(),
        Block::Part("In the end".into()),
        Block::Text(Paragraph {
            title: "How to read this".into(),
            pieces: vec![
                Value::text("PSS counts a page that "),
                Value::Count(3),
                Value::text(
                    " processes map as a third of a page, so that PSS adds up over processes while RES does not. The longest hold was ",
                ),
                Value::Nanos(1_234_567),
                Value::text("."),
            ],
            audience: Audience::People,
        }),
    ];
    let title = vec![Value::Name("cached".into()), Value::text(", process "), Value::Count(4242)];
    Report { schema: "pagewise.explain/1", title, blocks }
}

fn claims() -> Vec<Claim> {
    let claim = |verdict, measured: &'static str, why: &'static str| Claim {
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
        claim(Verdict::Agrees, "25 × (24 × to 26 ×)", ""),
        claim(Verdict::Disagrees, "1.09 ×", why),
        claim(Verdict::CannotTell, "", "it was not measured here"),
    ]
}

fn chart() -> Chart {
    let line = |label: &'static str, points: &[(u32, u32)]| Line {
        label: label.into(),
        points: points.iter().map(|(x, y)| (f64::from(*x), f64::from(*y))).collect(),
    };
    let live = [(0, 0), (1000, 300 << 10), (5000, 2 << 20), (9000, 700 << 10), (10_000, 0)];
    let held = [(0, 64 << 10), (4000, 1 << 20), (4001, 3 << 20), (10_000, 3 << 20)];
    let scale = Scale::Linear;
    Chart {
        title: vec![Value::text("Pool "), Value::Name("a<b>\x1b[2J".into())],
        x: Axis { label: "requests".into(), unit: Unit::Count, scale },
        y: Axis { label: "memory".into(), unit: Unit::Bytes, scale },
        lines: vec![line("live", &live), line("held", &held)],
    }
}

fn bars() -> Bars {
    let bar =
        |label: &'static str, value: f64, interval| Bar { label: label.into(), value, interval };
    Bars {
        title: vec![Value::text("Time for a page")],
        axis: Axis { label: "".into(), unit: Unit::Nanos, scale: Scale::Linear },
        bars: vec![
            bar("touch", 1_512.0, Some((1_480.0, 1_640.0))),
            bar("populate <&>", 1_203.0, Some((1_190.0, 1_260.0))),
            bar("huge", 602.0, None),
        ],
    }
}

fn who() -> Block {
    let facts = vec![
        fact("pid", "pid", Value::Count(4242), ""),
        fact(
            "command",
            "command",
            Value::List(vec![Value::Name("/usr/sbin/cached".into()), Value::Name(hostile())]),
            "",
        ),
        fact("uptime_ns", "up", Value::Nanos(266_400_000_000_000), ""),
        fact("threads", "threads", Value::Count(8), ""),
        fact("kernel", "kernel", Value::Name("6.18.0".into()), ""),
        fact("page_size", "page size", Value::Bytes(4096), ""),
        Fact {
            audience: Audience::Long,
            ..fact(
                "method",
                "method",
                Value::text("polite"),
                "Reads maps and pagemap with rests between.",
            )
        },
        Fact { audience: Audience::Programs, ..fact("torn", "torn", Value::Flag(false), "") },
    ];
    Block::Facts(Facts {
        key: "process".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: Shape::Line,
        facts,
    })
}

fn totals() -> Block {
    let facts = vec![
        fact(
            "virt",
            "VIRT",
            Value::Bytes(16 << 40),
            "All mappings, touched or not: address space, not memory.",
        ),
        fact("res", "RES", Value::Bytes(57_407_488), "Resident anonymous, file and shmem pages."),
        fact(
            "shr",
            "SHR",
            Value::Bytes(2_981_888),
            "Resident file and shmem pages; no other process need map them.",
        ),
        fact(
            "data",
            "DATA",
            Value::Bytes(16 << 40),
            "Reserved private writable memory, resident or not.",
        ),
        fact("code", "CODE", Value::Bytes(14_114_816), "The program's text."),
        fact("swap", "SWAP", Value::Bytes(0), "Anonymous memory that is in swap."),
        fact("mem", "%MEM", Value::Share(0.0123), "RES as a share of the machine's memory."),
        fact(
            "pss",
            "PSS",
            Value::Bytes(55_112_090),
            "RES with each page divided by how often it is mapped.",
        ),
        fact("uss", "USS", Value::Bytes(54_000_000), "What ending the process would free."),
        fact("peak_res", "peak RES", Value::Bytes(u64::MAX), "Highest RES so far."),
        fact(
            "locked",
            "locked",
            Value::Absent(Absent::NotInThisKernel("3.5".into())),
            "Locked by mlock.",
        ),
        fact(
            "page_tables",
            "page tables",
            Value::Absent(needs_root()),
            "The kernel's own cost of mapping it all.",
        ),
    ];
    Block::Facts(Facts {
        key: "totals".into(),
        title: "Totals".into(),
        audience: Audience::Everyone,
        shape: Shape::Columns,
        facts,
    })
}

fn quadrants(kind: &'static str, title: &'static str, moved: u64) -> Block {
    let keys = ["private_anonymous", "shared_anonymous", "private_file", "shared_file"];
    let name = Column {
        audience: Audience::People,
        ..Column::new(
            "name",
            "",
            Cells::Labels(vec![
                "private anonymous".into(),
                "shared anonymous".into(),
                "private file".into(),
                "shared file".into(),
            ]),
        )
    };
    let swapped = Column {
        gaps: Gaps::All(needs_root()),
        ..Column::new("swapped", "Swapped", Cells::Bytes(vec![0; 4]))
    };
    let columns = vec![
        name,
        Column::new("reserved", "Reserved", Cells::Bytes(vec![16 << 40, 50 << 20, 30 << 20, 4096])),
        Column::new(
            "resident",
            "Resident",
            Cells::Bytes(vec![(40 << 20) + moved, 5 << 20, (8 << 20) - moved, 0]),
        ),
        Column::new("pss", "PSS", Cells::Bytes(vec![(40 << 20) + moved, 2_621_440, 987_654, 0])),
        swapped,
    ];
    let total = vec![
        Value::text("all"),
        Value::Bytes((16 << 40) + (80 << 20)),
        Value::Bytes(53 << 20),
        Value::Bytes(45_000_000),
        Value::None,
    ];
    Block::Table(Table {
        key: format!("quadrants.{kind}").into(),
        title: title.into(),
        audience: Audience::Everyone,
        columns,
        row_keys: Some(keys.map(Label::from).to_vec()),
        total: Some(total),
        note: "".into(),
    })
}

fn pools() -> Block {
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
        Column::new("pool", "Pool", Cells::Labels(pools.map(Label::from).to_vec())),
        Column::new("name", "Name", Cells::Names(names)),
        Column::new(
            "reserved",
            "Reserved",
            Cells::Bytes(vec![1023, 1024, 1_048_575, 8 << 20, u64::MAX]),
        ),
        Column::new("resident", "Resident", Cells::Bytes(vec![0, 512, 99_999, 1 << 30, 7])),
        Column {
            gaps: Gaps::Some(gaps),
            ..Column::new("pss", "PSS", Cells::Bytes(vec![0, 1, 0, 0, 3]))
        },
        Column::new(
            "change",
            "Change",
            Cells::Values(vec![
                Value::Change(0),
                Value::Change(4096),
                Value::Change(-1),
                Value::Change(i64::MIN),
                Value::None,
            ]),
        ),
    ];
    Block::Table(Table {
        key: "pools".into(),
        title: "Where it comes from".into(),
        audience: Audience::Everyone,
        columns,
        row_keys: None,
        total: None,
        note: "12 more pools hold 3.4M of RES.".into(),
    })
}

fn mappings() -> Block {
    let addresses: Vec<u64> = vec![0x55d0_c000_0000, 0x7f12_3456_7000, 0x7ffd_0000_0000];
    let columns = vec![
        Column { meaning: "The first address.".into(), ..Column::new("start", "Address", Cells::Addresses(addresses)) },
        Column::new("mode", "Mode", Cells::Labels(vec!["r-xp".into(), "rw-s".into(), "rw-pR".into()])),
        Column::new("size", "Size", Cells::Bytes(vec![132 << 10, 1 << 30, 8 << 20])),
        Column::new("rss", "RSS", Cells::Bytes(vec![132 << 10, 4096, 8 << 10])),
        Column::new("pss", "PSS", Cells::Bytes(vec![66 << 10, 4096, 8 << 10])),
        Column::new("dirty", "Dirty", Cells::Bytes(vec![0, 4096, 8 << 10])),
        Column::new("huge", "Huge", Cells::Bytes(vec![0, 0, 2 << 20])),
        Column::new("swap", "Swap", Cells::Bytes(vec![0, 0, 0])),
        Column { audience: Audience::Long, meaning: "Where in the file.".into(), ..Column::new("offset", "Offset", Cells::Addresses(vec![0, 0x1000, 0])) },
        Column { meaning: "What is mapped.".into(), ..Column::new("name", "Name", Cells::Names(vec!["/usr/sbin/cached".into(), hostile(), "/a/very/long/path/that/no/terminal/of/eighty/columns/could/ever/show/libfoo.so.1.2.3".into()])) },
    ];
    let total = vec![
        Value::None,
        Value::text("all"),
        Value::Bytes(1_082_267_648),
        Value::Bytes(147_456),
        Value::Bytes(79_872),
        Value::Bytes(12_288),
        Value::Bytes(2 << 20),
        Value::Bytes(0),
        Value::None,
        Value::None,
    ];
    Block::Table(Table {
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
            Value::text("The library "),
            Value::Name(hostile()),
            Value::text(" was replaced on disk; "),
            Value::Bytes(99_999),
            Value::text(" of the old one is still mapped."),
        ],
        evidence: vec![
            fact("resident", "resident", Value::Bytes(99_999), ""),
            fact("file", "file", Value::Name(hostile()), ""),
            fact("swapped", "swapped", Value::Absent(needs_root()), ""),
        ],
        next_step: vec![Value::text("Restart the process to run the new one.")],
    };
    let reserved = Finding {
        id: "reserved",
        severity: Severity::Note,
        claim: vec![Value::Share(0.999), Value::text(" of VIRT is only reserved.")],
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
        fact("mode", "mode", Value::text("rw-p"), ""),
        fact("rss", "RSS", Value::Bytes(4096), ""),
    ];
    MapCell { range: AddrRange { start, end }, pool, label: vec![Value::Name(name)], filled, facts }
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

fn all_mappings() -> Block {
    let columns = vec![
        Column::new("start", "Start", Cells::Addresses(vec![0xffff_ffff_ff60_0000])),
        Column::new("name", "Name", Cells::Names(vec![hostile()])),
        Column {
            gaps: Gaps::All(Absent::NotCollected("use --full".into())),
            ..Column::new("pss", "PSS", Cells::Bytes(vec![0]))
        },
    ];
    Block::Table(Table {
        key: "mappings".into(),
        title: "".into(),
        audience: Audience::Programs,
        columns,
        row_keys: None,
        total: None,
        note: "".into(),
    })
}

/// A table of as many rows and columns of numbers, and names.
pub(crate) fn big_table(rows: usize, columns: usize) -> Report {
    let n = |row: usize, column: usize| {
        (row * 2_654_435_761 + column * 40_503) as u64 % 1_000_003
            * 4096
            * u64::from((row + column).is_multiple_of(3))
    };
    let addresses = (0..rows).map(|row| 0x7f00_0000_0000 + row as u64 * 8192).collect();
    let mut all = vec![Column::new("start", "Address", Cells::Addresses(addresses))];
    for column in 2..columns {
        let cells = (0..rows).map(|row| n(row, column)).collect();
        all.push(Column::new(
            format!("column_{column}"),
            format!("C{column}"),
            Cells::Bytes(cells),
        ));
    }
    let names =
        [Name::from("/usr/lib/x86_64-linux-gnu/libc.so.6"), Name::from("[heap]"), Name::from("")];
    all.push(Column::new(
        "name",
        "Name",
        Cells::Names((0..rows).map(|row| names[row % 3].clone()).collect()),
    ));
    let table = Table {
        key: "mappings".into(),
        title: "".into(),
        audience: Audience::Everyone,
        columns: all,
        row_keys: None,
        total: None,
        note: "".into(),
    };
    Report { schema: "pagewise.maps/1", title: vec![], blocks: vec![Block::Table(table)] }
}

fn any_label() -> impl Strategy<Value = Label> {
    prop_oneof!["[a-z_]{0,8}", "\\PC{0,20}", ".{0,12}", Just("quadrants.x".to_owned())]
        .prop_map(Label::from)
}

fn any_name() -> impl Strategy<Value = Name> {
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

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<u64>().prop_map(Value::Bytes),
        any::<i64>().prop_map(Value::Change),
        any::<u64>().prop_map(Value::Count),
        any::<u64>().prop_map(Value::Address),
        any::<f64>().prop_map(Value::Share),
        (0.0..1.0).prop_map(Value::Share),
        any::<f64>().prop_map(Value::Rate),
        any::<f64>().prop_map(Value::Number),
        any::<f64>().prop_map(Value::Bar),
        any::<u64>().prop_map(Value::Nanos),
        any::<u64>().prop_map(Value::Seconds),
        any::<bool>().prop_map(Value::Flag),
        any_label().prop_map(Value::Text),
        any_label().prop_map(Value::Picture),
        any_name().prop_map(Value::Name),
        any_absent().prop_map(Value::Absent),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            proptest::collection::vec((any_label(), inner), 0..3).prop_map(Value::Record),
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

fn any_facts() -> impl Strategy<Value = Block> {
    let shape = prop_oneof![Just(Shape::Line), Just(Shape::Columns), Just(Shape::List)];
    (any_label(), any_label(), any_audience(), shape, some(any_fact())).prop_map(
        |(key, title, audience, shape, facts)| {
            Block::Facts(Facts { key, title, audience, shape, facts })
        },
    )
}

fn any_column() -> impl Strategy<Value = Column> {
    let cells = prop_oneof![
        some(any::<u64>()).prop_map(Cells::Bytes),
        some(any::<u64>()).prop_map(Cells::Counts),
        some(any::<u64>()).prop_map(Cells::Addresses),
        some(any_name()).prop_map(Cells::Names),
        some(any_label()).prop_map(Cells::Labels),
        some(any_value()).prop_map(Cells::Values),
    ];
    let gaps = prop_oneof![
        Just(Gaps::None),
        any_absent().prop_map(Gaps::All),
        proptest::collection::btree_map(0..9usize, any_absent(), 0..3).prop_map(Gaps::Some),
    ];
    (any_label(), any_label(), any_label(), any_audience(), cells, gaps).prop_map(
        |(key, label, meaning, audience, cells, gaps)| Column {
            key,
            label,
            meaning,
            audience,
            cells,
            gaps,
        },
    )
}

/// Columns of different lengths are in it on purpose: a view must not panic on a wrong report.
fn any_table() -> impl Strategy<Value = Block> {
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
            Block::Table(Table { key, title, audience, columns, row_keys, total, note })
        })
}

fn any_findings() -> impl Strategy<Value = Block> {
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
    (some(finding), any_label()).prop_map(|(list, none)| Block::Findings(Findings { list, none }))
}

fn any_range() -> impl Strategy<Value = AddrRange> {
    (any::<u64>(), any::<u64>(), 0..64u32).prop_map(|(start, length, shift)| AddrRange {
        start,
        end: start.wrapping_add(length >> shift),
    })
}

fn any_map() -> impl Strategy<Value = Block> {
    let pool = proptest::sample::select(vec![
        "heap", "text", "a<b", "p3", "p4", "p5", "p6", "p7", "p8", "p9", "p10", "p11", "p12",
    ]);
    let filled = prop_oneof![any::<f64>().prop_map(Ok), any_absent().prop_map(Err)];
    let cell = (any_range(), pool, some(any_value()), filled, some(any_fact())).prop_map(
        |(range, pool, label, filled, facts)| MapCell { range, pool, label, filled, facts },
    );
    let cluster = (any_range(), some(cell)).prop_map(|(range, cells)| Cluster { range, cells });
    (any_label(), some(cluster))
        .prop_map(|(title, clusters)| Block::AddressMap(AddressMap { title, clusters }))
}

fn any_chart() -> impl Strategy<Value = Block> {
    let line =
        (any_label(), some(any::<(f64, f64)>())).prop_map(|(label, points)| Line { label, points });
    (some(any_value()), any_axis(), any_axis(), some(line))
        .prop_map(|(title, x, y, lines)| Block::Chart(Chart { title, x, y, lines }))
}

fn any_axis() -> impl Strategy<Value = Axis> {
    let units = vec![Unit::Bytes, Unit::Count, Unit::Nanos, Unit::Number, Unit::Share, Unit::Rate];
    let scale = proptest::sample::select(vec![Scale::Linear, Scale::Log]);
    (any_label(), proptest::sample::select(units), scale).prop_map(|(label, unit, scale)| Axis {
        label,
        unit,
        scale,
    })
}

fn any_bars() -> impl Strategy<Value = Block> {
    let interval = proptest::option::of(any::<(f64, f64)>());
    let bar = (any_label(), any::<f64>(), interval).prop_map(|(label, value, interval)| Bar {
        label,
        value,
        interval,
    });
    (some(any_value()), any_axis(), some(bar))
        .prop_map(|(title, axis, bars)| Block::Bars(Bars { title, axis, bars }))
}

fn any_claims() -> impl Strategy<Value = Block> {
    let verdict =
        prop_oneof![Just(Verdict::Agrees), Just(Verdict::CannotTell), Just(Verdict::Disagrees)];
    let words = [any_label(), any_label(), any_label(), any_label(), any_label()];
    let claim = (words, verdict).prop_map(|([text, source, expected, measured, why], verdict)| {
        Claim { text, source, expected, measured, verdict, why }
    });
    some(claim).prop_map(Block::Claims)
}

fn any_text() -> impl Strategy<Value = Block> {
    (any_label(), some(any_value()), any_audience())
        .prop_map(|(title, pieces, audience)| Block::Text(Paragraph { title, pieces, audience }))
}

/// Any report, sensible or not.
pub(crate) fn any_report() -> impl Strategy<Value = Report> {
    let block = prop_oneof![
        any_facts(),
        any_table(),
        any_findings(),
        any_map(),
        any_chart(),
        any_bars(),
        any_claims(),
        any_label().prop_map(Block::Part),
        any_text()
    ];
    (some(any_value()), proptest::collection::vec(block, 0..5)).prop_map(|(title, blocks)| Report {
        schema: "pagewise.test/1",
        title,
        blocks,
    })
}
