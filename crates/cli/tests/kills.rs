//! A signal ends pagewise while it inspects or changes a process, at every step and at any time:
//! the process continues unharmed.
//!
//! `PAGEWISE_KILLS` is the number of steps of each command that are tried, or `all`.
//! `PAGEWISE_ROUNDS` is the number of signals at random times. `PAGEWISE_COMMANDS` selects commands
//! by a part of their names. `PAGEWISE_SEED` replays a random choice.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "what fails here fails a test")]

mod fixture;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pagewise_skip::{Lack, is_root, skip_part};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use fixture::disk;
use fixture::unharmed::{AllowedChanges, GRACE, TargetBefore};
use fixture::victim::{Calls, EndedCommand, KILL, KillStep, Random, Victim, Whom, stop_at};

/// Size of the huge pages, and of the program's other mappings, in MiB.
const MIB: u64 = 16;
/// Time limit for the end of a command after a signal, or after its own duration.
const MAX_END: Duration = Duration::from_secs(180);
/// Number of times that `pagewise keep` is run: each waits thirty seconds.
const KEEP_TRIES: u32 = 3;
/// Exit status of `diagnose` that found trouble.
const TROUBLE: i32 = 10;
/// Maximum number of printed cases of a failing test.
const MAX_SHOWN: usize = 25;
/// Time in which a command places its remaining uprobes after its first uprobe.
const PLACING: Duration = Duration::from_millis(10);
/// File with the perf event type of uprobes.
const UPROBES: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Memory of the program before a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VictimMemory {
    AsItIs,
    Sparse,
    Dense,
    /// Blocks that no pointer leads to.
    Leaked,
}

/// A command that inspects or changes a process.
#[derive(Clone, Copy, Debug)]
struct KillCase {
    name: &'static str,
    memory: VictimMemory,
    allowed: AllowedChanges,
    /// Arguments of pagewise: `PID` stands for the process, `FILE` for a file to write.
    arguments: &'static str,
    needs_swap: bool,
    /// A library that the program is started with; empty for none.
    preload: &'static str,
}

const READS: KillCase = KillCase {
    name: "",
    memory: VictimMemory::AsItIs,
    allowed: AllowedChanges {
        forbids_huge_pages: false,
        library: false,
        allocator: false,
        heap_end: false,
    },
    arguments: "",
    needs_swap: false,
    preload: "",
};
const HOLDS: KillCase = KillCase {
    memory: VictimMemory::Sparse,
    allowed: AllowedChanges { forbids_huge_pages: true, ..READS.allowed },
    ..READS
};

const SPLIT: KillCase =
    KillCase { name: "thp split", arguments: "thp PID --fix --hold --yes --method split", ..HOLDS };
const DROP: KillCase =
    KillCase { name: "thp drop", arguments: "thp PID --fix --hold --yes --method drop", ..HOLDS };
const ATTACH: KillCase = KillCase {
    name: "heap attach",
    allowed: AllowedChanges { library: true, ..READS.allowed },
    arguments: "heap attach PID --for 20ms -o FILE",
    ..READS
};
/// `heap attach` to a program whose `malloc` is jemalloc.
const ATTACH_JEMALLOC: KillCase = KillCase {
    name: "heap attach, jemalloc",
    allowed: AllowedChanges { library: true, allocator: true, ..READS.allowed },
    preload: "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
    ..ATTACH
};
const TRIM: KillCase = KillCase {
    name: "trim",
    allowed: AllowedChanges { heap_end: true, ..READS.allowed },
    arguments: "trim PID --heap --stacks --yes --settle 0s",
    ..READS
};
/// `trim` of a program whose `malloc` is jemalloc.
const TRIM_JEMALLOC: KillCase = KillCase {
    name: "trim, jemalloc",
    allowed: AllowedChanges { allocator: true, heap_end: true, ..READS.allowed },
    preload: "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
    ..TRIM
};
const TRIM_HUGE: KillCase = KillCase {
    name: "trim huge",
    memory: VictimMemory::Sparse,
    arguments: "trim PID --huge --yes --settle 0s",
    ..READS
};
const SYSCALLS: KillCase =
    KillCase { name: "syscalls", arguments: "syscalls PID --for 20ms -o FILE", ..READS };
const WATCH: KillCase =
    KillCase { name: "watch", arguments: "watch PID failures 4 --rw --for 20ms -o FILE", ..READS };
const SCAN: KillCase = KillCase { name: "heap scan", arguments: "heap scan PID", ..READS };
const SCAN_FORK: KillCase =
    KillCase { name: "heap scan fork", arguments: "heap scan PID --fork", ..READS };
const DIAGNOSE: KillCase =
    KillCase { name: "diagnose", arguments: "diagnose PID --for 300ms -o FILE", ..READS };
/// `diagnose` of a process that leaks: the functions that allocate are found by uprobes.
const DIAGNOSE_LEAK: KillCase = KillCase {
    name: "diagnose, leak",
    memory: VictimMemory::Leaked,
    arguments: "diagnose PID --for 300ms --max-pause 10s --budget 100 -o FILE",
    ..READS
};
/// `shootdowns --user-wait`, in which uprobes measure calls of the C library. The program maps its
/// own copy of the C library, so that the uprobes change no other process.
const SHOOTDOWNS_WAIT: KillCase = KillCase {
    name: "shootdowns, user wait",
    memory: VictimMemory::Leaked,
    arguments: "shootdowns PID --user-wait --for 1s -o FILE",
    ..READS
};
const POOLS: KillCase = KillCase { name: "pools", arguments: "pools PID", ..READS };

/// Commands that change their target, and commands that stop it.
const CASES: [KillCase; 19] = [
    SPLIT,
    DROP,
    KillCase {
        name: "thp swap",
        arguments: "thp PID --fix --hold --yes --method swap",
        needs_swap: true,
        ..HOLDS
    },
    KillCase {
        name: "thp collapse",
        memory: VictimMemory::Dense,
        arguments: "thp PID --collapse --yes",
        ..READS
    },
    KillCase {
        name: "thp pageout",
        arguments: "thp PID --pageout --idle 20ms --yes",
        needs_swap: true,
        ..READS
    },
    ATTACH,
    ATTACH_JEMALLOC,
    SCAN,
    SCAN_FORK,
    TRIM,
    TRIM_JEMALLOC,
    TRIM_HUGE,
    SYSCALLS,
    WATCH,
    POOLS,
    DIAGNOSE,
    DIAGNOSE_LEAK,
    KillCase { name: "faults", arguments: "faults PID --for 20ms -o FILE", ..READS },
    KillCase { name: "shootdowns", arguments: "shootdowns PID --for 20ms -o FILE", ..READS },
];

impl KillCase {
    fn command_words(&self, pid: u32, file: &Path) -> Vec<String> {
        let word = |word: &str| match word {
            "PID" => pid.to_string(),
            "FILE" => file.to_str().unwrap().to_owned(),
            other => other.to_owned(),
        };
        self.arguments.split(' ').map(word).collect()
    }

    fn is_chosen(&self) -> bool {
        let chosen = std::env::var("PAGEWISE_COMMANDS").unwrap_or_default();
        if self.needs_swap
            && fs::read_to_string("/proc/swaps").is_ok_and(|it| it.lines().count() < 2)
        {
            let why = format!("{}: the machine has no swap", self.name);
            skip_part(&Lack::Machine(&why));
            return false;
        }
        if !self.preload.is_empty() && !Path::new(self.preload).exists() {
            skip_part(&Lack::Tool(self.preload));
            return false;
        }
        chosen.split(',').any(|part| self.name.contains(part))
    }
}

/// A target, with its initial state. A command runs on the same target many times, until the target
/// is harmed.
struct KillTarget {
    command: &'static str,
    victim: Victim,
    before: TargetBefore,
    /// Folder that has a copy of the C library for the target alone, if the case needs a copy.
    _folder: Option<tempfile::TempDir>,
}

impl KillTarget {
    fn start(random: &mut Random) -> KillTarget {
        KillTarget::start_for(&READS, random)
    }

    fn start_for(case: &KillCase, random: &mut Random) -> KillTarget {
        let folder = (case.memory == VictimMemory::Leaked).then(own_libc);
        let libc = folder.as_ref().map(|it| it.path().join("libc.so.6").display().to_string());
        let preload = libc.as_deref().unwrap_or(case.preload);
        let mut victim = Victim::start(1, MIB, random, preload);
        victim.ask().expect("the program is well before anything happens to it");
        if case.memory == VictimMemory::Leaked {
            victim.lose_blocks().unwrap();
        }
        let mut before = TargetBefore::of_victim(&victim);
        if let Some(libc) = libc {
            before = before.with_own_files(&libc);
        }
        KillTarget { command: case.name, victim, before, _folder: folder }
    }

    /// Prepares the memory for a command. The error is the reason why that is not possible.
    fn prepare(&mut self, memory: VictimMemory) -> Result<(), String> {
        let huge = match memory {
            VictimMemory::AsItIs | VictimMemory::Leaked => return Ok(()),
            VictimMemory::Sparse => self.victim.map_sparse()?,
            VictimMemory::Dense => return self.victim.map_dense().map(drop),
        };
        if huge < MIB << 20 {
            return Err(format!("the machine gives {huge} bytes of huge pages"));
        }
        Ok(())
    }
}

/// Returns a folder with a copy of the C library: uprobes in the copy affect only the process that
/// maps it.
fn own_libc() -> tempfile::TempDir {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let libc = paths.into_iter().find(|path| path.ends_with("/libc.so.6")).unwrap();
    let folder = tempfile::tempdir_in(disk()).unwrap();
    fs::copy(libc, folder.path().join("libc.so.6")).unwrap();
    folder
}

/// The harm that was found, and the number of tries.
#[derive(Default)]
struct Harm {
    tried: AtomicUsize,
    cases: Mutex<Vec<String>>,
}

impl Harm {
    fn note(&self, case: &KillCase, what: &str, harm: &[String]) {
        let more = harm.len().saturating_sub(4);
        let more = if more > 0 { format!("; {more} more") } else { String::new() };
        let shown = harm.iter().take(4).cloned().collect::<Vec<_>>().join("; ");
        let line = format!("{}: {what}: {shown}{more}", case.name);
        eprintln!("HARM {line}");
        self.cases.lock().unwrap().push(line);
    }

    fn check(self) {
        let (tried, cases) = (self.tried.into_inner(), self.cases.into_inner().unwrap());
        let mut all: Vec<&str> = cases.iter().map(String::as_str).collect();
        all.sort_unstable();
        let shown = &all[..all.len().min(MAX_SHOWN)];
        assert!(all.is_empty(), "{} of {tried} harmed:\n{}", all.len(), shown.join("\n"));
    }
}

/// Does all `work` in several threads, each with a target of its own.
fn each<T: Sync>(
    work: &[T],
    random: &mut Random,
    act: impl Fn(&T, &mut Option<KillTarget>, &mut Random, &Path) + Sync,
) {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, 16);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (next, act) = (&next, &act);
            let mut random = Random::new(random.next());
            scope.spawn(move || {
                let folder = tempfile::tempdir_in(disk()).unwrap();
                let mut target = None;
                while let Some(one) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    act(one, &mut target, &mut random, folder.path());
                }
            });
        }
    });
}

fn number_of_environment(name: &str, otherwise: usize) -> usize {
    match std::env::var(name).as_deref() {
        Ok("all") => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => otherwise,
    }
}

/// Returns the result of a command that ran to its end under `kill_at`, once for all tests; or the
/// reason why the command cannot be tried at all.
fn counted(case: &KillCase, random: &mut Random, folder: &Path) -> Result<EndedCommand, String> {
    type Counted = Arc<OnceLock<Result<EndedCommand, String>>>;
    static ALL: Mutex<BTreeMap<&str, Counted>> = Mutex::new(BTreeMap::new());
    let counted = Arc::clone(ALL.lock().unwrap().entry(case.name).or_default());
    let count = || {
        let mut target = KillTarget::start_for(case, random);
        target.prepare(case.memory)?;
        let words = case.command_words(target.victim.pid, &folder.join("file"));
        let ended = stop_at(KillStep::NEVER, &words);
        let EndedCommand { steps, status, processes, .. } = &ended;
        eprintln!("{}: {steps:?} steps of {processes} processes, status {status}", case.name);
        Ok(ended)
    };
    counted.get_or_init(count).clone()
}

/// Returns all steps of a command to its end, each with the processes that are killed.
fn steps(
    ended: &EndedCommand,
    random: &mut Random,
    calls: Calls,
    signals: &[i32],
) -> Vec<KillStep> {
    let whom: &[Whom] = match ended.processes {
        1 => &[Whom::Caller],
        _ => &[Whom::Caller, Whom::Others, Whom::All],
    };
    let mut all = Vec::new();
    // The number of steps differs from run to run, so two more steps are tried.
    for number in 1..=ended.steps[&calls] + 2 {
        all.extend(whom.iter().map(|&whom| {
            let signal = *random.one_of(signals);
            KillStep { calls, number, whom, signal }
        }));
    }
    all
}

/// Returns up to `count` elements of a list, in random order.
fn some<T>(mut all: Vec<T>, count: usize, random: &mut Random) -> Vec<T> {
    for index in (1..all.len()).rev() {
        let other = usize::try_from(random.below(index as u64 + 1)).unwrap();
        all.swap(index, other);
    }
    all.truncate(count);
    all
}

/// Ends a command at one step, and notes the harm to its target.
fn try_step(
    case: &KillCase,
    step: KillStep,
    target: &mut Option<KillTarget>,
    random: &mut Random,
    folder: &Path,
    harm: &Harm,
) {
    target.take_if(|it| it.command != case.name);
    let there = target.get_or_insert_with(|| KillTarget::start_for(case, random));
    if let Err(why) = there.prepare(case.memory) {
        skip_part(&Lack::Chance(&format!("a step of {}: {why}", case.name)));
        *target = None;
        return;
    }
    let file = folder.join("file");
    let ended = stop_at(step, &case.command_words(there.victim.pid, &file));
    let _ = fs::remove_file(&file);
    harm.tried.fetch_add(1, Ordering::Relaxed);
    let mut found = Vec::new();
    if step.whom == Whom::All {
        // No process is left to unmap the mapping of pagewise: the target works with it, and the
        // next run of pagewise unmaps it.
        found.extend(there.victim.ask().err());
        // On busy CPUs the threads of the target may need time to leave the mapping of pagewise.
        let keep = || Command::new(env!("CARGO_BIN_EXE_pagewise")).arg("keep").status().unwrap();
        if !(0..KEEP_TRIES).any(|_| keep().success()) {
            found.push("pagewise keep could not undo what was left".to_owned());
        }
    }
    found.extend(there.before.harm(&mut there.victim, case.allowed, GRACE));
    if ended.left > 0 {
        found.push(format!("{} processes of pagewise do not end: {}", ended.left, ended.said));
    }
    if ended.at.is_none() && !matches!(ended.status >> 8, 0 | 1 | TROUBLE) || ended.status == 139 {
        found.push(format!(
            "pagewise itself ended with wait status {:#x}: {}",
            ended.status, ended.said
        ));
    }
    if !found.is_empty() {
        let at = ended.at.unwrap_or_else(|| "its own end".to_owned());
        let KillStep { number, whom, signal, calls } = step;
        let what = format!("signal {signal} to {whom:?} at step {number} of {calls:?} calls, {at}");
        harm.note(case, &what, &found);
        *target = None;
    }
}

/// Kills commands at every step, or at the requested number of random steps, half of them at calls
/// that change the target.
fn kill_at_steps(cases: &[KillCase], otherwise: usize, calls: &[Calls], signals: &[i32]) {
    if !is_root() {
        return;
    }
    let mut random = Random::of_environment();
    let wanted = number_of_environment("PAGEWISE_KILLS", otherwise);
    let harm = Harm::default();
    let cases: Vec<&KillCase> = cases.iter().filter(|case| case.is_chosen()).collect();
    each(&cases, &mut random, |case, _, random, folder| {
        let _ = counted(case, random, folder);
    });
    let mut all = Vec::new();
    for case in cases {
        let ended = match counted(case, &mut random, Path::new("")) {
            Ok(ended) => ended,
            Err(why) => {
                skip_part(&Lack::Chance(&format!("{}: {why}", case.name)));
                continue;
            }
        };
        for &calls in calls {
            let steps = steps(&ended, &mut random, calls, signals);
            all.extend(some(steps, wanted / 2, &mut random).into_iter().map(|step| (case, step)));
        }
    }
    let began = Instant::now();
    each(&all, &mut random, |(case, step), target, random, folder| {
        try_step(case, *step, target, random, folder, &harm);
    });
    eprintln!("{} steps in {:.1?}", all.len(), began.elapsed());
    harm.check();
}

#[test]
fn harm_is_noticed() {
    if !is_root() {
        return;
    }
    let mut random = Random::of_environment();
    let memory = |pid: u32| {
        fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap()
    };
    let grace = Duration::from_secs(10);
    let harm = |mut target: KillTarget| {
        let found = target.before.harm(&mut target.victim, AllowedChanges::default(), grace);
        found.join("; ")
    };

    assert_eq!(harm(KillTarget::start(&mut random)), "");

    let target = KillTarget::start(&mut random);
    let id = Pid::from_raw(target.victim.pid.cast_signed()).unwrap();
    kill_process(id, Signal::STOP).unwrap();
    // The stopped target cannot answer until another thread continues it.
    let goes_on = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(13));
        kill_process(id, Signal::CONT).unwrap();
    });
    let found = harm(target);
    goes_on.join().unwrap();
    assert!(found.contains("is in state T"), "{found}");

    // A word of a page that is never written again.
    let target = KillTarget::start(&mut random);
    let word = target.victim.memory.start + 300 * 4096;
    memory(target.victim.pid).write_all_at(&[0x11], word).unwrap();
    let found = harm(target);
    assert!(found.starts_with("bad check_memory"), "{found}");

    // The last byte of a file's code is behind the last function, so no thread executes it.
    let target = KillTarget::start(&mut random);
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.victim.pid)).unwrap();
    let libc = maps.lines().find(|it| it.contains(" r-xp ") && it.contains("/libc")).unwrap();
    let end = libc.split([' ', '-']).nth(1).unwrap();
    let last = u64::from_str_radix(end, 16).unwrap() - 1;
    memory(target.victim.pid).write_all_at(&[0xe9], last).unwrap();
    let found = harm(target);
    assert!(found.starts_with("code: ") && found.contains("libc"), "{found}");
}

#[test]
fn a_kill_at_any_step_of_a_change_leaves_no_process_harmed() {
    kill_at_steps(
        &[SPLIT, DROP, ATTACH, ATTACH_JEMALLOC, SCAN_FORK, TRIM, TRIM_JEMALLOC],
        4,
        &[Calls::Target, Calls::Outward],
        &[KILL],
    );
}

#[test]
fn a_kill_at_any_step_of_any_command_leaves_no_process_harmed() {
    kill_at_steps(&CASES, 4, &[Calls::All], &[KILL]);
}

#[test]
fn an_interrupt_at_any_step_leaves_no_process_harmed() {
    const SIGNALS: [i32; 3] = [1, 2, 15];
    kill_at_steps(
        &[SPLIT, DROP, ATTACH, ATTACH_JEMALLOC, SCAN_FORK, TRIM, SYSCALLS],
        2,
        &[Calls::Target, Calls::All],
        &SIGNALS,
    );
}

/// A started command, which is killed when this value is dropped.
struct RunningCommand(Child);

impl RunningCommand {
    fn start(case: &KillCase, pid: u32, file: &Path) -> RunningCommand {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        command.args(case.command_words(pid, file)).stdin(Stdio::null());
        RunningCommand(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killed_while_its_uprobes_are_in_the_target_diagnose_leaves_the_code_as_it_was() {
    kill_with_uprobes(&DIAGNOSE_LEAK);
}

#[test]
fn killed_while_its_uprobes_are_in_the_target_shootdowns_leaves_the_code_as_it_was() {
    kill_with_uprobes(&SHOOTDOWNS_WAIT);
}

/// Kills a command again and again while its uprobes are in the target, and checks the code of the
/// target for changes.
fn kill_with_uprobes(case: &KillCase) {
    if !is_root() {
        return;
    }
    if !Path::new(UPROBES).exists() {
        return fixture::skip_without_events(UPROBES);
    }
    let (mut random, harm) = (Random::of_environment(), Harm::default());
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let file = folder.path().join("file");
    let mut target = KillTarget::start_for(case, &mut random);
    let rounds = number_of_environment("PAGEWISE_ROUNDS", 4);
    let mut tries_left = 4 * rounds;
    let mut round = 0;
    while round < rounds {
        if tries_left == 0 {
            skip_part(&Lack::Chance(&format!(
                "{} placed probes in {round} rounds only",
                case.name
            )));
            break;
        }
        tries_left -= 1;
        let mut command = RunningCommand::start(case, target.victim.pid, &file);
        let mut ended = None;
        while ended.is_none() && !target.before.has_own_code_changed() {
            ended = command.0.try_wait().unwrap();
        }
        // On busy CPUs, the command may have too little time to see the leak.
        if ended.is_some() {
            continue;
        }
        // The other probes are placed within some milliseconds; then the recording takes up to a
        // second.
        let at_most = if round % 2 == 0 { PLACING } else { Duration::from_secs(1) };
        std::thread::sleep(at_most.mul_f64(random.fraction()));
        drop(command);
        harm.tried.fetch_add(1, Ordering::Relaxed);
        let found = target.before.harm(&mut target.victim, case.allowed, GRACE);
        if !found.is_empty() {
            harm.note(case, &format!("killed in round {round}"), &found);
            target = KillTarget::start_for(case, &mut random);
        }
        round += 1;
    }
    harm.check();
    target.victim.end().unwrap();
}

/// A command, and a signal that is sent at a random time.
#[derive(Clone, Copy, Debug)]
struct Round {
    case: KillCase,
    signal: i32,
    /// Time of the signal, as a share of the duration of the command.
    after: f64,
    /// Duration of an uninterrupted command.
    whole: Duration,
    /// True if all processes of its group receive the signal, as after Ctrl-C.
    group: bool,
}

/// Returns the duration of an uninterrupted command.
fn duration(case: &KillCase, random: &mut Random) -> Option<Duration> {
    let mut target = KillTarget::start_for(case, random);
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        if let Err(why) = target.prepare(case.memory) {
            skip_part(&Lack::Chance(&format!("{}: {why}", case.name)));
            return None;
        }
        let began = Instant::now();
        fixture::pagewise(&case.command_words(target.victim.pid, &folder.path().join("file")));
        all.push(began.elapsed());
    }
    // The first run reads files that are not in the page cache.
    all.into_iter().min()
}

/// Runs a command and sends a signal. Returns an error if it does not end.
fn interrupt(round: &Round, pid: u32, file: &Path) -> Option<String> {
    let mut command = fixture::interruptible();
    command.args(round.case.command_words(pid, file)).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().unwrap();
    std::thread::sleep(round.whole.mul_f64(round.after));
    let id = Pid::from_raw(child.id().cast_signed()).unwrap();
    let signal = Signal::from_named_raw(round.signal).unwrap();
    let send = if round.group { kill_process_group } else { kill_process };
    // `send` fails if the command has ended.
    let _ = send(id, signal);
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > MAX_END {
            let _ = child.kill();
            let _ = child.wait();
            return Some(format!("pagewise does not end in {MAX_END:?}"));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    None
}

/// Sends a signal to a command at one time, and notes the harm to its target.
fn try_round(
    round: &Round,
    target: &mut Option<KillTarget>,
    random: &mut Random,
    folder: &Path,
    harm: &Harm,
) {
    let case = &round.case;
    target.take_if(|it| it.command != case.name);
    let there = target.get_or_insert_with(|| KillTarget::start_for(case, random));
    if let Err(why) = there.prepare(case.memory) {
        skip_part(&Lack::Chance(&format!("a round of {}: {why}", case.name)));
        *target = None;
        return;
    }
    let file = folder.join("file");
    let mut found = Vec::from_iter(interrupt(round, there.victim.pid, &file));
    harm.tried.fetch_add(1, Ordering::Relaxed);
    found.extend(there.before.harm(&mut there.victim, case.allowed, GRACE));
    let _ = fs::remove_file(&file);
    if !found.is_empty() {
        let Round { signal, after, whole, group, .. } = round;
        let whom = if *group { "its group" } else { "it" };
        let what = format!("signal {signal} to {whom} after {after:.3} of {whole:?}");
        harm.note(case, &what, &found);
        *target = None;
    }
}

#[test]
fn a_signal_at_any_time_leaves_no_process_harmed() {
    if !is_root() {
        return;
    }
    let mut random = Random::of_environment();
    let rounds = number_of_environment("PAGEWISE_ROUNDS", 2);
    let harm = Harm::default();
    let cases = [
        SPLIT,
        DROP,
        ATTACH,
        ATTACH_JEMALLOC,
        SCAN,
        SCAN_FORK,
        TRIM,
        TRIM_JEMALLOC,
        SYSCALLS,
        WATCH,
        POOLS,
    ];
    let cases: Vec<&KillCase> = cases.iter().filter(|it| it.is_chosen()).collect();
    let durations = Mutex::new(BTreeMap::new());
    each(&cases, &mut random, |case, _, random, _| {
        let whole = duration(case, random);
        durations.lock().unwrap().insert(case.name, whole);
    });
    let durations = durations.into_inner().unwrap();
    let mut all = Vec::new();
    for case in cases {
        let Some(whole) = durations[case.name] else { continue };
        all.extend((0..rounds).map(|_| Round {
            case: *case,
            signal: *random.one_of(&[KILL, 1, 2, 15]),
            after: random.fraction() * 1.1,
            whole,
            group: random.below(2) == 0,
        }));
    }
    let began = Instant::now();
    each(&all, &mut random, |round, target, random, folder| {
        try_round(round, target, random, folder, &harm);
    });
    eprintln!("{} signals in {:.1?}", all.len(), began.elapsed());
    harm.check();
}

#[test]
fn a_command_that_runs_to_its_end_leaves_no_process_harmed() {
    if !is_root() {
        return;
    }
    let (mut random, harm) = (Random::of_environment(), Harm::default());
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let mut breakpoints = BTreeMap::new();
    for case in CASES.iter().filter(|case| case.is_chosen()) {
        let mut target = None;
        for _ in 0..2 {
            try_step(case, KillStep::NEVER, &mut target, &mut random, folder.path(), &harm);
        }
        let Some(target) = target else { continue };
        let left = target.before.breakpoints();
        if !left.is_empty() {
            breakpoints.insert(case.name, left);
        }
        if let Err(why) = target.victim.end() {
            harm.note(case, "at the end of the program", &[why]);
        }
    }
    assert!(breakpoints.is_empty(), "{breakpoints:?}");
    harm.check();
}
