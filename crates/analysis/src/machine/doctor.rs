//! Report of the settings that cost latency or memory: the value, the verdict, and the commands
//! that change and restore each setting.

mod checks;
mod judge;
mod outcome;

use pagewise_model::report::{
    Audience, CellValue, ColumnCells, Fact, FactsShape, Label, NamedFacts, Paragraph, Report,
    ReportBlock, ReportTable, TableColumn,
};
use pagewise_model::settings::SystemSettings;
use pagewise_model::{Name, Snapshot};

pub use checks::files;
use outcome::{DoctorSubject, SettingOutcome, outcomes};

use crate::blocks::table;
use crate::explain::fact;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "pagewise.doctor/1";

/// The user's goal for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadProfile {
    /// Short and steady response times, at the cost of more memory.
    Latency,
    /// Many programs in little memory, at the cost of longer response times.
    Density,
}

/// Verdict on a setting under the user's profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingVerdict {
    /// The setting costs much latency or memory.
    Warn,
    /// The setting costs a little latency or memory, or its value is important information.
    Note,
    /// The setting could not be read.
    Unknown,
    /// The setting fits the profile.
    Ok,
}

impl SettingVerdict {
    /// Name of the verdict, used as a key.
    pub const fn key(self) -> &'static str {
        match self {
            SettingVerdict::Warn => "warn",
            SettingVerdict::Note => "note",
            SettingVerdict::Unknown => "unknown",
            SettingVerdict::Ok => "ok",
        }
    }
}

/// Options of the report: the profile and the process for which settings are judged.
#[derive(Clone, Copy, Debug)]
pub struct DoctorOptions<'a> {
    /// The user's profile; `None` reports only settings that cost latency or memory under every
    /// profile.
    pub profile: Option<WorkloadProfile>,
    /// The process that the user named as target.
    pub target: Option<&'a Snapshot>,
}

/// Judges settings. The report for programs has table `checks`; the report for people has the
/// settings to improve, then the settings that fit.
pub fn doctor(settings: &SystemSettings, options: &DoctorOptions<'_>) -> Report {
    let outcomes = outcomes(&DoctorSubject { settings, options });
    let mut blocks = vec![ReportBlock::Facts(overview(settings, options, &outcomes))];
    blocks.push(ReportBlock::Table(programs(&outcomes)));
    let mut costly: Vec<&SettingOutcome> = outcomes
        .iter()
        .filter(|o| matches!(o.verdict, SettingVerdict::Warn | SettingVerdict::Note))
        .collect();
    costly.sort_by_key(|outcome| outcome.verdict);
    blocks.extend(costly.iter().map(|outcome| ReportBlock::Facts(advice(outcome))));
    blocks.push(ReportBlock::Text(last_word(&outcomes)));
    blocks.extend(well(&outcomes).map(ReportBlock::Table));
    blocks.extend(unknown(&outcomes).map(ReportBlock::Facts));
    Report { schema: SCHEMA, title: vec![CellValue::text(title(options.profile))], blocks }
}

fn title(profile: Option<WorkloadProfile>) -> &'static str {
    match profile {
        None => "Settings that cost latency or memory",
        Some(WorkloadProfile::Latency) => "Settings, judged for short and steady latency",
        Some(WorkloadProfile::Density) => "Settings, judged for many programs in little memory",
    }
}

fn overview(
    settings: &SystemSettings,
    options: &DoctorOptions<'_>,
    outcomes: &[SettingOutcome],
) -> NamedFacts {
    let profile = options.profile.map_or(CellValue::None, |profile| {
        CellValue::text(match profile {
            WorkloadProfile::Latency => "latency",
            WorkloadProfile::Density => "density",
        })
    });
    let count = |verdict: SettingVerdict| {
        let count = outcomes.iter().filter(|outcome| outcome.verdict == verdict).count();
        fact(verdict.key(), verdict.key(), CellValue::Count(count as u64), "")
    };
    let mut facts = vec![fact("kernel", "kernel", CellValue::Name(settings.kernel.clone()), "")];
    facts.push(fact("profile", "profile", profile, "").for_programs());
    if let Some(target) = options.target {
        let process = &target.process;
        facts.push(fact("pid", "process", CellValue::Count(process.pid.0.into()), ""));
        facts.push(fact("name", "called", CellValue::Name(process.name.clone()), ""));
    }
    facts.extend(
        [SettingVerdict::Warn, SettingVerdict::Note, SettingVerdict::Unknown, SettingVerdict::Ok]
            .map(count),
    );
    NamedFacts {
        key: "".into(),
        title: "".into(),
        audience: Audience::Everyone,
        shape: FactsShape::Line,
        facts,
    }
}

/// Builds the table of all checks, for programs.
fn programs(outcomes: &[SettingOutcome]) -> ReportTable {
    let each = |key: &'static str, value: &dyn Fn(&SettingOutcome) -> CellValue| {
        TableColumn::new(key, key, ColumnCells::Values(outcomes.iter().map(value).collect()))
    };
    let command = |command: &Option<String>| match command {
        Some(command) => CellValue::text(command.clone()),
        None => CellValue::None,
    };
    let columns = vec![
        each("id", &|outcome| CellValue::Text(outcome.id.clone())),
        each("label", &|outcome| CellValue::Text(outcome.label.clone())),
        each("value", &|outcome| outcome.value.clone()),
        each("verdict", &|outcome| CellValue::text(outcome.verdict.key())),
        each("why", &|outcome| CellValue::text(outcome.why())),
        each("change", &|outcome| command(&outcome.change)),
        each("undo", &|outcome| command(&outcome.undo)),
    ];
    table("checks", "", Audience::Programs, columns)
}

/// Builds the facts of a setting that could be better, for people.
fn advice(outcome: &SettingOutcome) -> NamedFacts {
    let mut facts =
        vec![line("now", outcome.value.clone()), line("why", CellValue::text(outcome.why()))];
    let commands = [("change", &outcome.change), ("undo", &outcome.undo)];
    facts.extend(commands.into_iter().filter_map(|(label, command)| {
        command.as_ref().map(|command| line(label, CellValue::text(command.clone())))
    }));
    NamedFacts {
        key: "".into(),
        title: format!("{}: {}", outcome.verdict.key(), outcome.label).into(),
        audience: Audience::People,
        shape: FactsShape::List,
        facts,
    }
}

fn line(label: impl Into<Label>, value: CellValue) -> Fact {
    fact("", label, value, "")
}

fn last_word(outcomes: &[SettingOutcome]) -> Paragraph {
    let has = |verdict| outcomes.iter().any(|outcome| outcome.verdict == verdict);
    let words = match (
        has(SettingVerdict::Warn) || has(SettingVerdict::Note),
        has(SettingVerdict::Ok),
    ) {
        (true, _) => {
            "Nothing was changed. Commands need root, and last until the next boot; undo restores what is set now."
        }
        (false, true) => "Nothing to change.",
        (false, false) => "Nothing could be judged.",
    };
    Paragraph {
        title: "Changes".into(),
        pieces: vec![CellValue::text(words)],
        audience: Audience::People,
    }
}

/// Builds the table, for people, of settings that need no change.
fn well(outcomes: &[SettingOutcome]) -> Option<ReportTable> {
    let rows: Vec<&SettingOutcome> =
        outcomes.iter().filter(|o| o.verdict == SettingVerdict::Ok).collect();
    let labels = rows.iter().map(|outcome| outcome.label.clone()).collect();
    let values = rows.iter().map(|outcome| in_words(&outcome.value)).collect();
    let columns = vec![
        TableColumn::new("label", "Setting", ColumnCells::Labels(labels)),
        TableColumn::new("value", "Now", ColumnCells::Values(values)),
    ];
    (!rows.is_empty()).then(|| table("", "Settings that fit", Audience::People, columns))
}

/// Returns a value for people; an empty name becomes "(empty)".
fn in_words(value: &CellValue) -> CellValue {
    match value {
        CellValue::Name(name) if name.is_empty() => CellValue::Name(Name::from("(empty)")),
        value => value.clone(),
    }
}

/// Lists the settings that could not be read, and the reasons.
fn unknown(outcomes: &[SettingOutcome]) -> Option<NamedFacts> {
    let rows = outcomes.iter().filter(|outcome| outcome.verdict == SettingVerdict::Unknown);
    let why = |outcome: &SettingOutcome| match &outcome.value {
        CellValue::Absent(absent) => CellValue::text(absent.to_string()),
        value => value.clone(),
    };
    let facts: Vec<Fact> = rows.map(|o| line(o.label.clone(), why(o))).collect();
    (!facts.is_empty()).then(|| NamedFacts {
        key: "".into(),
        title: "Unknown settings".into(),
        audience: Audience::People,
        shape: FactsShape::List,
        facts,
    })
}

#[cfg(test)]
mod tests {
    use pagewise_model::settings::{
        Capabilities, CgroupSettings, EnvVariable, Pressure, ProcessSettings, SettingFile,
        ShootdownCount, SizeSetting, SwapArea,
    };
    use pagewise_model::{Absent, Bytes, PageSize, Pid};

    use super::*;
    use crate::sample;

    const PROFILES: [Option<WorkloadProfile>; 3] =
        [None, Some(WorkloadProfile::Latency), Some(WorkloadProfile::Density)];

    fn absent() -> Absent {
        Absent::NotInThisKernel("".into())
    }

    /// Returns a machine with these files. All other settings of the machine fit.
    fn machine(files: &[(&str, &str)]) -> SystemSettings {
        let files = files
            .iter()
            .map(|(path, value)| SettingFile { path: (*path).into(), value: Ok((*value).into()) });
        SystemSettings {
            kernel: "6.18".into(),
            page_size: PageSize::new(4096).unwrap(),
            huge_size: Ok(Bytes::mib(2)),
            files: files.collect(),
            sizes: Ok(Vec::new()),
            mem_total: Ok(Bytes::gib(16)),
            commit_limit: Ok(Bytes::gib(10)),
            committed: Ok(Bytes::gib(2)),
            swaps: Ok(Vec::new()),
            nodes: Ok(2),
            five_levels: Ok(false),
            pressure: Ok(Pressure { some: 0, full: 0 }),
            shootdowns: Ok(ShootdownCount { count: 0, interval_ns: 1 }),
            ours: Ok(Capabilities { ptrace: true, admin: true, nice: true, perfmon: true }),
            process: Ok(ProcessSettings {
                pid: Pid(7),
                environment: Ok(Vec::new()),
                cgroup: Err(absent()),
            }),
        }
    }

    fn judged(
        settings: &SystemSettings,
        profile: Option<WorkloadProfile>,
        id: &str,
    ) -> SettingOutcome {
        let options = DoctorOptions { profile, target: None };
        let mut all = outcomes(&DoctorSubject { settings, options: &options });
        let at = all.iter().position(|outcome| outcome.id == id);
        all.swap_remove(at.unwrap_or_else(|| panic!("no check is {id}")))
    }

    fn verdicts(settings: &SystemSettings, id: &str) -> [&'static str; 3] {
        PROFILES.map(|profile| judged(settings, profile, id).verdict.key())
    }

    const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
    const PTES: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";

    #[test]
    fn each_profile_has_its_own_verdicts() {
        // Columns: identifier, file, value, and the verdicts without a profile, for latency and for
        // density.
        let cases = [
            ("thp_enabled", THP, "always", ["note", "note", "warn"]),
            ("thp_enabled", THP, "madvise", ["ok", "ok", "ok"]),
            ("thp_enabled", THP, "never", ["note", "note", "ok"]),
            ("thp_defrag", DEFRAG, "always", ["warn", "warn", "note"]),
            ("thp_defrag", DEFRAG, "madvise", ["ok", "note", "ok"]),
            ("thp_defrag", DEFRAG, "never", ["ok", "ok", "ok"]),
            ("khugepaged_max_ptes_none", PTES, "511", ["note", "ok", "warn"]),
            ("khugepaged_max_ptes_none", PTES, "64", ["ok", "ok", "ok"]),
            ("numa_balancing", "/proc/sys/kernel/numa_balancing", "1", ["note", "warn", "ok"]),
            ("ksm_run", "/sys/kernel/mm/ksm/run", "1", ["ok", "warn", "ok"]),
            ("ksm_run", "/sys/kernel/mm/ksm/run", "0", ["ok", "ok", "note"]),
            ("zone_reclaim_mode", "/proc/sys/vm/zone_reclaim_mode", "1", ["note", "warn", "note"]),
            ("overcommit_memory", "/proc/sys/vm/overcommit_memory", "1", ["note"; 3]),
            ("max_map_count", "/proc/sys/vm/max_map_count", "1000", ["note"; 3]),
            ("max_map_count", "/proc/sys/vm/max_map_count", "65530", ["ok"; 3]),
        ];
        for (id, file, value, expected) in cases {
            assert_eq!(verdicts(&machine(&[(file, value)]), id), expected, "{id} {value}");
        }
    }

    #[test]
    fn the_method_of_huge_pages_is_irrelevant_without_huge_pages() {
        let settings = machine(&[(THP, "never"), (DEFRAG, "always"), (PTES, "511")]);
        assert_eq!(verdicts(&settings, "thp_defrag"), ["ok"; 3]);
        assert_eq!(verdicts(&settings, "khugepaged_max_ptes_none"), ["ok"; 3]);
    }

    #[test]
    fn numa_balancing_does_not_matter_on_one_node() {
        let one = machine(&[("/proc/sys/kernel/numa_balancing", "1")]);
        assert_eq!(verdicts(&SystemSettings { nodes: Ok(1), ..one }, "numa_balancing"), ["ok"; 3]);
    }

    #[test]
    fn change_and_undo_are_commands_and_undo_has_the_value_found() {
        let settings = machine(&[(DEFRAG, "always"), ("/proc/sys/vm/zone_reclaim_mode", "3")]);
        let defrag = judged(&settings, None, "thp_defrag");
        assert_eq!(defrag.change.unwrap(), format!("echo defer+madvise > {DEFRAG}"));
        assert_eq!(defrag.undo.unwrap(), format!("echo always > {DEFRAG}"));
        let zone = judged(&settings, None, "zone_reclaim_mode");
        assert_eq!(zone.change.unwrap(), "sysctl -w vm.zone_reclaim_mode=0");
        assert_eq!(zone.undo.unwrap(), "sysctl -w vm.zone_reclaim_mode=3");
    }

    #[test]
    fn a_text_that_a_shell_would_interpret_is_not_in_a_command() {
        for value in ["a b", "$(x)", "`x`", "x;y", "a\nb", "", "-e", "é", "x>y", "*", "~", "a'b"] {
            assert_eq!(
                outcome::writes("/proc/sys/vm/swappiness", value.as_bytes()),
                None,
                "{value}"
            );
            assert_eq!(outcome::word(value.as_bytes()), None, "{value}");
        }
        let paranoid = outcome::writes("/proc/sys/kernel/perf_event_paranoid", b"-1");
        assert_eq!(paranoid.unwrap(), "sysctl -w kernel.perf_event_paranoid=-1");
    }

    #[test]
    fn swap_areas_are_disabled_and_enabled_with_their_priorities() {
        let area = |path: &str, priority| SwapArea {
            path: path.into(),
            size: Bytes::gib(1),
            used: Bytes::ZERO,
            priority,
        };
        let swaps = Ok(vec![area("/swapfile", -2), area("/dev/zram0", 100)]);
        let settings = SystemSettings { swaps, ..machine(&[]) };
        assert_eq!(verdicts(&settings, "swap"), ["ok", "note", "ok"]);
        let swap = judged(&settings, Some(WorkloadProfile::Latency), "swap");
        assert_eq!(swap.change.unwrap(), "swapoff /swapfile; swapoff /dev/zram0");
        assert_eq!(swap.undo.unwrap(), "swapon /swapfile; swapon -p 100 /dev/zram0");
        assert_eq!(verdicts(&machine(&[]), "swap"), ["ok", "ok", "note"]);
    }

    #[test]
    fn headroom_counts_only_where_the_limit_is_strict() {
        let nearly = |mode| SystemSettings {
            committed: Ok(Bytes::gib(12)),
            ..machine(&[("/proc/sys/vm/overcommit_memory", mode)])
        };
        assert_eq!(verdicts(&nearly("2"), "commit_headroom"), ["warn"; 3]);
        assert_eq!(verdicts(&nearly("0"), "commit_headroom"), ["ok"; 3]);
        let headroom = judged(&nearly("0"), None, "commit_headroom").value;
        assert_eq!(headroom, CellValue::Change(-(2 << 30)));
    }

    #[test]
    fn a_cgroup_near_its_limit_is_reported_with_the_remedy() {
        let with_swap = |usage, swapped| {
            let cgroup = CgroupSettings {
                limit_file: "/sys/fs/cgroup/app/memory.max".into(),
                limit: Some(Bytes(1000)),
                usage: Ok(Bytes(usage)),
                swapped,
                with_swap: None,
                pressure: Err(absent()),
            };
            let process =
                ProcessSettings { pid: Pid(7), environment: Ok(Vec::new()), cgroup: Ok(cgroup) };
            SystemSettings { process: Ok(process), ..machine(&[]) }
        };
        let used = |usage| with_swap(usage, Ok(Bytes::ZERO));
        assert_eq!(verdicts(&used(500), "cgroup_used"), ["ok"; 3]);
        assert_eq!(verdicts(&used(850), "cgroup_used"), ["note"; 3]);
        assert_eq!(verdicts(&used(960), "cgroup_used"), ["warn"; 3]);
        let raise = judged(&used(960), None, "cgroup_used");
        assert_eq!(raise.change.unwrap(), "echo 1500 > /sys/fs/cgroup/app/memory.max");
        assert_eq!(raise.undo.unwrap(), "echo 1000 > /sys/fs/cgroup/app/memory.max");
        let raise = judged(&with_swap(1000, Ok(Bytes(3000))), None, "cgroup_used");
        assert_eq!(
            raise.change.unwrap(),
            "echo 5000 > /sys/fs/cgroup/app/memory.max",
            "memory in swap needs room as well"
        );
    }

    #[test]
    fn pressure_and_shootdowns_weigh_more_where_latency_is_wanted() {
        let settings = SystemSettings {
            pressure: Ok(Pressure { some: 50, full: 0 }),
            shootdowns: Ok(ShootdownCount { count: 1000, interval_ns: 500_000_000 }),
            ..machine(&[])
        };
        assert_eq!(verdicts(&settings, "pressure_some"), ["ok", "note", "ok"]);
        assert_eq!(verdicts(&settings, "tlb_shootdowns"), ["ok", "note", "ok"]);
        assert_eq!(judged(&settings, None, "tlb_shootdowns").value, CellValue::Rate(2000.0));
    }

    #[test]
    fn a_target_with_nearly_as_many_mappings_as_allowed_is_warned_of() {
        let lines: Vec<String> =
            (1..20_u64).map(|i| format!("{:x}-{:x} rw-p 0 0", i * 8192, i * 8192 + 4096)).collect();
        let mappings = lines.iter().map(|line| sample::mapping(line)).collect();
        let target = sample::snapshot(mappings);
        let settings = machine(&[("/proc/sys/vm/max_map_count", "20")]);
        let options = DoctorOptions { profile: None, target: Some(&target) };
        let all = outcomes(&DoctorSubject { settings: &settings, options: &options });
        let check = all.iter().find(|outcome| outcome.id == "max_map_count").unwrap();
        assert_eq!(check.verdict, SettingVerdict::Warn);
        assert!(check.why().starts_with("The process has 19."), "{}", check.why());
        assert_eq!(check.change.as_deref(), Some("sysctl -w vm.max_map_count=40"));
    }

    #[test]
    fn variables_of_malloc_are_shown_as_they_are_and_judged_as_chosen() {
        let target = sample::snapshot(Vec::new());
        let with = |environment: Vec<EnvVariable>| {
            let process = ProcessSettings {
                pid: Pid(7),
                environment: Ok(environment),
                cgroup: Err(absent()),
            };
            let settings = SystemSettings { process: Ok(process), ..machine(&[]) };
            let options =
                DoctorOptions { profile: Some(WorkloadProfile::Latency), target: Some(&target) };
            let mut all = outcomes(&DoctorSubject { settings: &settings, options: &options });
            let at = all.iter().position(|outcome| outcome.id == "malloc_environment");
            all.swap_remove(at.unwrap())
        };
        let set = with(vec![EnvVariable { name: "LD_PRELOAD".into(), value: "/x\x1b".into() }]);
        assert_eq!(set.value, CellValue::List(vec![CellValue::Name("LD_PRELOAD=/x\x1b".into())]));
        assert_eq!(set.verdict, SettingVerdict::Ok);
        assert_eq!(with(Vec::new()).verdict, SettingVerdict::Note);
    }

    #[test]
    fn an_unreadable_setting_is_unknown_and_has_no_commands() {
        let mut settings = machine(&[]);
        let hidden = SettingFile { path: THP.into(), value: Err(absent()) };
        settings.files.push(hidden);
        settings.ours = Err(absent());
        for id in ["thp_enabled", "swappiness", "cap_sys_admin", "locked", "cgroup_used"] {
            let outcome = judged(&settings, None, id);
            assert_eq!(outcome.verdict, SettingVerdict::Unknown, "{id}");
            assert!(matches!(outcome.value, CellValue::Absent(_)), "{id}");
            assert_eq!((outcome.change, outcome.undo), (None, None), "{id}");
        }
    }

    #[test]
    fn each_size_of_huge_page_is_a_check_of_its_own() {
        let size = SizeSetting { size: Bytes::kib(64), enabled: "always".into() };
        let settings = SystemSettings { sizes: Ok(vec![size]), ..machine(&[]) };
        assert_eq!(verdicts(&settings, "thp_enabled_64kB"), ["ok", "ok", "note"]);
        let check = judged(&settings, Some(WorkloadProfile::Density), "thp_enabled_64kB");
        let file = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
        assert_eq!(check.undo.unwrap(), format!("echo always > {file}"));
    }

    #[test]
    fn no_two_checks_share_a_name_and_every_label_has_its_column() {
        let settings = machine(&[]);
        let options = DoctorOptions { profile: None, target: None };
        let all = outcomes(&DoctorSubject { settings: &settings, options: &options });
        for (at, outcome) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.id != outcome.id), "{}", outcome.id);
            assert!(outcome.label.len() <= 24 && outcome.why.ends_with('.'), "{}", outcome.id);
        }
    }
}
