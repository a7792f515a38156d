//! A constructed machine with some processes and cgroups, its table, and frames as text.

use std::sync::Arc;
use std::time::Duration;

use pagewise_analysis::top::{self, TopHistory};
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::settings::{Pressure, PressureFigures};
use pagewise_model::sweep::{
    BytesByPageKind, CgroupUsage, PagesReading, ProcessIdentity, ProcessKey, Sweep, SweepCgroup,
    SweepCost, SweepEvent, SweepEventKind, SweepMachine, SweepProcess, SweepTime,
};
use pagewise_model::top::TopQuery;
use pagewise_model::{Absent, Bytes, Name, Pid};
use pagewise_tui::{TopOptions, TopState, TuiAction, TuiEvent, draw};
use pagewise_view::text::Units;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// Time of the first sweep in seconds since 1970: 2026-11-24 02:13:05 UTC.
const BEGIN: u64 = 1_795_486_385;

/// PID, PID of the parent, size in MiB, growth in MiB per second, user, cgroup, command.
type MadeProcess = (u32, u32, u64, u64, &'static str, &'static str, &'static [&'static str]);

const PROCESSES: &[MadeProcess] = &[
    (1, 0, 9, 0, "root", "/init.scope", &["/sbin/init"]),
    (412, 1, 48, 0, "root", "/system.slice/dockerd.service", &["/usr/bin/dockerd", "-H", "fd://"]),
    (733, 1, 812, 0, "postgres", "/system.slice/postgresql.service", &["postgres: checkpointer "]),
    (734, 733, 96, 0, "postgres", "/system.slice/postgresql.service", &["postgres: walwriter "]),
    (1200, 1, 6, 0, "alice", "/user.slice/user-1000.slice", &["-bash"]),
    (1301, 1200, 31, 0, "alice", "/user.slice/user-1000.slice", &["/opt/rust/bin/cargo", "build"]),
    (
        1377,
        1301,
        540,
        12,
        "alice",
        "/user.slice/user-1000.slice",
        &["/opt/rust/bin/rustc", "--crate-name", "syn", "--edition=2021", "/src/syn/src/lib.rs"],
    ),
    (
        1378,
        1301,
        275,
        3,
        "alice",
        "/user.slice/user-1000.slice",
        &["/opt/rust/bin/rustc", "--crate-name", "gimli", "/src/gimli/src/lib.rs"],
    ),
    (
        2042,
        1,
        1740,
        1,
        "www",
        "/system.slice/shop.service",
        &["/usr/bin/java", "-Xmx4g", "-cp", "/srv/shop.jar", "org.example.Shop"],
    ),
    (
        2977,
        1200,
        14,
        0,
        "alice",
        "/user.slice/user-1000.slice",
        &["/usr/bin/python3", "/srv/日本語.py"],
    ),
    (
        2980,
        1200,
        3,
        0,
        "mallory",
        "/user.slice/user-1001.slice",
        &["evil\x1b[2J\x07\n\u{202e}name", "\x1b]0;x\x07"],
    ),
];

fn process(made: &MadeProcess, second: u64) -> SweepProcess {
    let &(pid, parent, mib, growth, user, cgroup, command) = made;
    let bytes = Bytes::mib(mib + growth * second);
    let is_hidden = user == "mallory";
    let hidden = || Absent::NotPermitted("CAP_SYS_PTRACE".into());
    let pss = BytesByPageKind { anonymous: bytes, ..BytesByPageKind::default() };
    SweepProcess {
        key: ProcessKey { pid: Pid(pid), start_ticks: u64::from(pid) * 7 },
        identity: Arc::new(ProcessIdentity {
            name: "comm".into(),
            parent: Pid(parent),
            command: Ok(command.iter().map(|word| Name::from(*word)).collect()),
            exe: Ok(Name::from(command[0])),
            uid: Ok(1000),
            user: Some(user.into()),
            cgroup: Ok(cgroup.into()),
            started_unix_ns: 0,
        }),
        state: 'S',
        threads: 1,
        virt: Bytes::gib(1),
        rss: bytes + Bytes::mib(4),
        rss_by_kind: Err(Absent::Vanished),
        peak_rss: Err(Absent::Vanished),
        pss: if is_hidden { Err(hidden()) } else { Ok(pss) },
        uss: if is_hidden { Err(hidden()) } else { Ok(bytes.saturating_sub(Bytes::mib(2))) },
        uss_anonymous: Err(hidden()),
        pages: PagesReading::Now,
        swap: Ok(Bytes::mib(mib / 40)),
        swap_shmem: Ok(Bytes::ZERO),
        minor_faults: second * growth * 256,
        major_faults: second * u64::from(pid == 733) * 3,
        cpu_ns: 0,
        oom_score: Ok(mib),
        oom_score_adj: Ok(if pid == 412 { -1000 } else { 0 }),
    }
}

fn cgroup(path: &str, mib: u64, limit: Option<u64>, some: u64) -> SweepCgroup {
    SweepCgroup {
        path: path.into(),
        current: Ok(Bytes::mib(mib)),
        peak: Err(Absent::Vanished),
        limit: Ok(limit.map(Bytes::mib)),
        swap: Ok(Bytes::mib(mib / 50)),
        usage: Ok(CgroupUsage::default()),
        limit_hits: Ok(0),
        oom_kills: Ok(0),
        pressure: Ok(PressureFigures {
            avg10: Pressure { some, full: some / 3 },
            ..PressureFigures::default()
        }),
    }
}

fn sweep(second: u64) -> Sweep {
    let kib = |mib: u64| mib << 20;
    let meminfo = [
        ("MemTotal", kib(7966)),
        ("MemAvailable", kib(3271 - 16 * second)),
        ("SwapTotal", kib(2048)),
        ("SwapFree", kib(1930)),
    ];
    let counters = |list: &[(&str, u64)]| {
        Ok(list
            .iter()
            .map(|(name, count)| BootCounter { name: (*name).into(), count: *count })
            .collect())
    };
    let vmstat = [("pgmajfault", 3 * second), ("pswpin", 0), ("pswpout", 0)];
    let pressure = |some, full| {
        Ok(PressureFigures { avg10: Pressure { some, full }, ..PressureFigures::default() })
    };
    Sweep {
        time: SweepTime {
            unix_ns: (BEGIN + second) * 1_000_000_000,
            boot_ns: (5000 + second) * 1_000_000_000,
        },
        cost: SweepCost::default(),
        processes: PROCESSES.iter().map(|made| process(made, second)).collect(),
        kernel_threads: 90,
        vanished: 0,
        hidden: 0,
        cgroups: Ok(vec![
            cgroup("/", 7000, None, 120),
            cgroup("/init.scope", 20, None, 0),
            cgroup("/system.slice", 3900, None, 90),
            cgroup("/system.slice/dockerd.service", 130, None, 0),
            cgroup("/system.slice/postgresql.service", 1400, Some(1500), 410),
            cgroup("/system.slice/shop.service", 1900 + second, Some(2048), 0),
            cgroup("/user.slice", 1100, None, 30),
            cgroup("/user.slice/user-1000.slice", 1090, None, 30),
        ]),
        machine: SweepMachine {
            meminfo: counters(&meminfo),
            vmstat: counters(&vmstat),
            memory_pressure: pressure(123, 41),
            io_pressure: pressure(0, 0),
            forks: Ok(0),
        },
    }
}

/// Sweeps of half a minute, each changed by `change`. The last sweep has an event.
fn history(change: impl Fn(&mut Sweep)) -> TopHistory {
    let mut history = TopHistory::default();
    for second in 0..=30 {
        let mut sweep = sweep(second);
        change(&mut sweep);
        let kill = SweepEvent {
            time: sweep.time,
            event: SweepEventKind::OomKill {
                cgroup: Some("/system.slice/postgresql.service".into()),
                kills: 1,
            },
        };
        let events = if second == 30 { vec![kill] } else { Vec::new() };
        history.push(Arc::new(sweep), &events);
    }
    history
}

/// A state machine and its caller: queries are answered, other actions are recorded.
pub(crate) struct MadeScreen {
    pub(crate) state: TopState,
    pub(crate) actions: Vec<TuiAction>,
    history: TopHistory,
    size: (u16, u16),
}

impl MadeScreen {
    pub(crate) fn new(columns: u16, lines: u16) -> MadeScreen {
        MadeScreen::with((columns, lines), TopQuery::default(), None)
    }

    pub(crate) fn with(
        size: (u16, u16),
        query: TopQuery,
        recording: Option<(u64, u64)>,
    ) -> MadeScreen {
        MadeScreen::of(history(|_| ()), size, query, recording)
    }

    /// A screen on which PSS and USS of two processes are from the first sweep.
    pub(crate) fn outdated(columns: u16, lines: u16) -> MadeScreen {
        let first = sweep(0);
        let history = history(|sweep| {
            for process in &mut sweep.processes {
                let before = first.process(process.key).unwrap();
                if matches!(process.key.pid.0, 1377 | 2042) && sweep.time > first.time {
                    process.pages = PagesReading::Postponed(first.time.boot_ns);
                    (process.pss, process.uss) = (before.pss.clone(), before.uss.clone());
                }
            }
        });
        MadeScreen::of(history, (columns, lines), TopQuery::default(), None)
    }

    fn of(
        history: TopHistory,
        size: (u16, u16),
        query: TopQuery,
        recording: Option<(u64, u64)>,
    ) -> MadeScreen {
        let state = TopState::new(TopOptions {
            size,
            color: true,
            units: Units::Human,
            interval: Duration::from_secs(1),
            query,
            recording,
            utc_offset: 0,
        });
        let mut screen = MadeScreen { state, actions: Vec::new(), history, size };
        screen.answer();
        screen
    }

    fn answer(&mut self) {
        let table = top::table(&self.history, self.state.query()).unwrap();
        self.state.apply(TuiEvent::Table(Arc::new(table)));
    }

    /// Applies an event, and answers the query that the state may return.
    pub(crate) fn apply(&mut self, event: TuiEvent) {
        if let TuiEvent::Resize(columns, lines) = event {
            self.size = (columns, lines);
        }
        for action in self.state.apply(event) {
            if matches!(action, TuiAction::Query(_)) {
                self.answer();
            }
            self.actions.push(action);
        }
    }

    /// Returns the actions since the last call, without queries.
    pub(crate) fn taken(&mut self) -> Vec<TuiAction> {
        let mut actions = std::mem::take(&mut self.actions);
        actions.retain(|action| !matches!(action, TuiAction::Query(_)));
        actions
    }

    fn terminal(&self) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(self.size.0, self.size.1)).unwrap();
        terminal.draw(|frame| draw(frame, &self.state)).unwrap();
        terminal
    }

    /// The frame as text, without spaces at the ends of lines.
    pub(crate) fn frame(&self) -> String {
        let terminal = self.terminal();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..self.size.1 {
            let mut line = String::new();
            let mut x = 0;
            while x < self.size.0 {
                let symbol = buffer[(x, y)].symbol();
                line.push_str(symbol);
                // A wide character also covers the next cell.
                let width = unicode_width::UnicodeWidthStr::width(symbol);
                x += u16::try_from(width.max(1)).unwrap();
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Text of the selected row's line.
    pub(crate) fn selected(&self) -> String {
        let terminal = self.terminal();
        let buffer = terminal.backend().buffer();
        let reversed = ratatui::style::Modifier::REVERSED;
        let is_reversed =
            |y: u16| (0..self.size.0).any(|x| buffer[(x, y)].modifier.contains(reversed));
        // The headings are the first reversed line, the selected row is the second one.
        let line = (0..self.size.1).filter(|y| is_reversed(*y)).nth(1);
        let frame = self.frame();
        line.and_then(|y| frame.lines().nth(usize::from(y))).unwrap_or_default().to_owned()
    }

    /// True if the frame contains a control character.
    pub(crate) fn has_control_characters(&self) -> bool {
        let terminal = self.terminal();
        let cells = &terminal.backend().buffer().content;
        cells.iter().any(|cell| cell.symbol().chars().any(|c| !pagewise_model::name::is_plain(c)))
    }
}
