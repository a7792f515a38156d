//! Complete readings of live processes and of copied trees, and their errors.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic anywhere")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pagewise_model::machine::ReadMethod;
use pagewise_model::object::{ElfObject, OnDisk};
use pagewise_model::{Absent, Bytes, Mapping, Name, Pid, SmapsCounter, Snapshot};
use pagewise_proc::capture::{CaptureRequest, Wish, capture};
use pagewise_proc::{ProcError, ProcRoot, listing, smaps, stat, target};
use pagewise_skip::{Lack, is_root, skip};
use pagewise_sys::system;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

fn read(pid: Pid, wish: Wish) -> Result<Snapshot, ProcError> {
    capture(&ProcRoot::live(), pid, &CaptureRequest { wish, ..CaptureRequest::default() })
}

fn us() -> Pid {
    Pid(std::process::id())
}

/// A stopped process with the program `sleep`, killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(program: &Path) -> Sleeper {
        let sleeper = Sleeper(Command::new(program).arg("600").spawn().unwrap());
        // A process in the dynamic loader still changes its mappings, so wait until the process
        // stays blocked.
        let mut before = "running\n".to_owned();
        loop {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let now = std::mem::replace(&mut before, sleeper.file("syscall"));
            if now == before && now != "running\n" {
                break;
            }
        }
        kill_process(rustix::process::Pid::from_child(&sleeper.0), Signal::STOP).unwrap();
        while !sleeper.file("stat").contains(") T ") {
            std::thread::yield_now();
        }
        sleeper
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid())).unwrap_or_default()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies a program by another process. If this process wrote the copy, a child that another test
/// forks meanwhile would keep the file open for writing, and a file that is open for writing cannot
/// be executed.
fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("--").args([from, to]).status().unwrap();
    assert!(status.success());
}

/// A copy of `sleep` with a name of its own, in a folder of its own.
fn own_sleep(name: &str) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    copy_program("/bin/sleep".as_ref(), &path);
    (folder, path)
}

/// A name of a program that no other run of these tests starts, of at most 15 bytes like `comm`.
fn own_name(start: &str) -> String {
    format!("{start}{}", std::process::id())
}

fn program<'a>(snapshot: &'a Snapshot, path: &Path) -> &'a ElfObject {
    let name = path.as_os_str().as_encoded_bytes();
    snapshot.objects.iter().find(|object| object.name.as_bytes().starts_with(name)).unwrap()
}

#[test]
fn every_reading_of_a_stopped_process_adds_up_to_statm() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    for wish in [Wish::Full, Wish::Fast, Wish::Polite] {
        let snapshot = read(sleeper.pid(), wish).unwrap();
        let (mappings, statm) = (snapshot.mappings.unwrap(), snapshot.statm.unwrap());
        let counted = mappings.iter().filter(|m| m.name.as_bytes() != b"[vsyscall]");
        assert_eq!(counted.map(Mapping::size).sum::<Bytes>(), statm.size, "{wish:?}");
        let rss: Bytes = mappings.iter().map(|m| m.rss().unwrap()).sum();
        let rollup = smaps::parse_rollup(sleeper.file("smaps_rollup").as_bytes()).unwrap();
        assert_eq!(Ok(rss), rollup.bytes(SmapsCounter::Rss), "{wish:?}");
        // The counter of the process lacks up to 64 pages of each thread before Linux 6.2, and of
        // each CPU since then.
        let cpus = fs::read_to_string("/proc/stat").unwrap().matches("\ncpu").count() as u64;
        let held_back = 64 * cpus * system::page_size();
        assert!(rss.0.abs_diff(statm.resident.0) <= held_back, "{wish:?}: {rss} {statm:?}");
    }
}

#[test]
fn a_full_reading_knows_the_pages_of_mappings_that_smaps_cannot_split() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let mappings = read(sleeper.pid(), Wish::Full).unwrap().mappings.unwrap();
    let get = |m: &Mapping, counter| m.counter(counter).unwrap();
    let is_file = |m: &&Mapping| m.inode != 0;
    let mixed = mappings.iter().filter(is_file).filter(|m| {
        let anonymous = get(m, SmapsCounter::Anonymous);
        Bytes::ZERO < anonymous && anonymous < get(m, SmapsCounter::Rss)
    });
    for mapping in mixed {
        let pages = mapping.pages.as_ref().unwrap().breakdown;
        assert_eq!(
            pages.anon_exclusive + pages.anon_co_mapped,
            get(mapping, SmapsCounter::Anonymous)
        );
        assert_eq!(pages.resident(), get(mapping, SmapsCounter::Rss));
    }
}

#[test]
fn the_reading_is_chosen_by_size() {
    assert_eq!(Wish::Auto.method(Bytes::mib(64)), ReadMethod::Full);
    assert_eq!(Wish::Auto.method(Bytes::mib(65)), ReadMethod::Polite);
    assert_eq!(Wish::Full.method(Bytes::gib(64)), ReadMethod::Full);
}

#[test]
fn an_ended_process_is_an_error_with_a_hint() {
    let mut child = Command::new("/bin/true").spawn().unwrap();
    child.wait().unwrap();
    let error = read(Pid(child.id()), Wish::Auto).unwrap_err();
    assert!(matches!(error, ProcError::NoSuchProcess { .. }), "{error}");
    assert!(error.hint().unwrap().contains("hidepid"));
}

#[test]
fn a_zombie_is_shown_without_memory() {
    let mut child = Command::new("/bin/true").spawn().unwrap();
    let pid = Pid(child.id());
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    for wish in [Wish::Full, Wish::Fast] {
        let snapshot = read(pid, wish).unwrap();
        assert_eq!((snapshot.process.state, snapshot.mappings), ('Z', Ok(vec![])), "{wish:?}");
        assert!(snapshot.process.exe.is_err());
    }
    child.wait().unwrap();
}

#[test]
fn a_process_whose_first_thread_has_ended_keeps_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("outlive.c"), folder.path().join("outlive"));
    let text = "#include <pthread.h>\n#include <unistd.h>\n\
                static void *wait(void *p) { sleep(600); return p; }\n\
                int main(void) { pthread_t t; pthread_create(&t, 0, wait, 0); pthread_exit(0); }\n";
    fs::write(&source, text).unwrap();
    let built = Command::new("cc").args(["-pthread", "-o"]).args([&program, &source]).status();
    if !built.is_ok_and(|status| status.success()) {
        return skip(&Lack::Tool("cc"));
    }
    let child = Sleeper(Command::new(&program).spawn().unwrap());
    while !child.file("stat").contains(") Z ") {
        std::thread::yield_now();
    }
    for wish in [Wish::Full, Wish::Fast] {
        let snapshot = read(child.pid(), wish).unwrap();
        assert_eq!((snapshot.process.pid, snapshot.process.state), (child.pid(), 'Z'));
        assert!(snapshot.mappings.unwrap().len() > 5, "{wish:?}");
        assert!(snapshot.statm.unwrap().resident > Bytes::ZERO);
        assert_eq!(
            snapshot.process.exe.unwrap().as_bytes(),
            program.as_os_str().as_encoded_bytes()
        );
        let listing = listing::list(&ProcRoot::live(), wish).unwrap();
        let listed = listing.processes.iter().find(|s| s.pid == child.pid()).unwrap();
        assert!(listed.rss.clone().unwrap() > Bytes::ZERO && !listed.is_zombie(), "{wish:?}");
        assert!(!listed.command.as_ref().unwrap().is_empty());
    }
}

#[test]
fn a_kernel_thread_is_shown_without_memory() {
    let root = ProcRoot::live();
    let is_kernels = |pid: &Pid| {
        root.read(*pid, "stat").is_ok_and(|text| stat::parse(&text).unwrap().is_kernel_thread())
    };
    let Some(pid) = root.pids().unwrap().into_iter().find(is_kernels) else {
        return skip(&Lack::Machine("this PID namespace has no kernel threads"));
    };
    let snapshot = read(pid, Wish::Auto).unwrap();
    assert!(snapshot.process.kernel_thread);
    assert_eq!(snapshot.mappings, Ok(vec![]));
}

#[test]
fn names_of_threads_and_files_may_hold_anything() {
    let folder = tempfile::tempdir().unwrap();
    let name = "x \x1b[2J\n(deleted)";
    let path = folder.path().join(name);
    copy_program("/bin/sleep".as_ref(), &path);
    let sleeper = Sleeper::start(&path);
    let snapshot = read(sleeper.pid(), Wish::Full).unwrap();
    // `maps` prints a newline as four characters; `comm` and `exe` contain it unchanged.
    let mapped = path.to_str().unwrap().replace('\n', "\\012");
    let mappings = snapshot.mappings.as_ref().unwrap();
    assert!(mappings.iter().any(|m| m.name.as_bytes() == mapped.as_bytes()), "{mappings:?}");
    assert_eq!(snapshot.process.exe, Ok(Name::new(path.as_os_str().as_encoded_bytes())));
    let comm = Name::new(&name.as_bytes()[..15]);
    assert_eq!(snapshot.threads.unwrap()[0].name, comm);
    assert_eq!(snapshot.process.name, comm);
}

#[test]
fn a_program_is_distinguished_from_its_replaced_file() {
    let (_folder, path) = own_sleep("pw-program");
    let sleeper = Sleeper::start(&path);
    let seen = |expected: OnDisk| {
        let snapshot = read(sleeper.pid(), Wish::Full).unwrap();
        let object = program(&snapshot, &path);
        assert_eq!(object.on_disk, Ok(expected));
        object.elf.clone()
    };
    let elf = seen(OnDisk::Same).unwrap();
    fs::remove_file(&path).unwrap();
    let deleted = seen(OnDisk::Missing);
    // A FIFO instead of the file does not make the reading wait for a writer.
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    seen(OnDisk::Replaced).ok();
    fs::remove_file(&path).unwrap();
    fs::copy("/bin/true", &path).unwrap();
    let replaced = seen(OnDisk::Replaced);
    if rustix::process::geteuid().is_root() {
        assert_eq!(
            [deleted, replaced],
            [Ok(elf.clone()), Ok(elf)],
            "map_files leads to the mapped file"
        );
    }
}

#[test]
fn a_mapped_file_that_is_not_elf_has_no_headers() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let snapshot = read(sleeper.pid(), Wish::Full).unwrap();
    let elf = snapshot.objects.iter().filter(|object| object.elf.is_ok()).count();
    assert!(elf >= 2, "sleep and its C library: {:?}", snapshot.objects);
    for object in &snapshot.objects {
        let name = object.name.escaped();
        assert_eq!(
            object.elf.is_ok(),
            !name.contains("locale") && !name.contains("gconv"),
            "{name}"
        );
    }
}

#[test]
fn sections_and_segments_are_those_of_readelf() {
    let sleep = fs::canonicalize("/bin/sleep").unwrap();
    let Ok(output) = Command::new("readelf").args(["-SW"]).arg(&sleep).output() else {
        return skip(&Lack::Tool("readelf"));
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    // [Nr] Name Type Address Off Size ES Flg Lk Inf Al
    let expected: Vec<(String, u64, u64, u64)> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_once("] ")?.1.split_whitespace().collect();
            let is_loaded = words.get(6).is_some_and(|flags| flags.contains('A'));
            let numbers = (hex(words.get(2)?)?, hex(words[3])?, hex(words[4])?);
            is_loaded.then(|| (words[0].to_owned(), numbers.0, numbers.1, numbers.2))
        })
        .collect();
    let sleeper = Sleeper::start(&sleep);
    let snapshot = read(sleeper.pid(), Wish::Full).unwrap();
    let elf = program(&snapshot, &sleep).elf.as_ref().unwrap();
    let mut found: Vec<(String, u64, u64, u64)> = elf
        .sections
        .iter()
        .map(|s| (s.name.escaped().into_owned(), s.range.start, s.offset, s.range.len().0))
        .collect();
    found.sort();
    let mut expected = expected;
    expected.sort();
    assert_eq!(found, expected);
    assert!(!elf.is_static && elf.relro.is_some() && elf.allocator.is_none());
    assert!(elf.segments.iter().any(|s| s.exec) && elf.segments.iter().any(|s| s.write));
}

#[test]
fn a_blocked_thread_shows_its_stack_pointer_inside_its_stack() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let snapshot = read(sleeper.pid(), Wish::Full).unwrap();
    let pointer = snapshot.threads.unwrap()[0].stack_pointer.clone().unwrap();
    let mappings = snapshot.mappings.unwrap();
    let stack = mappings.iter().find(|m| m.name.as_bytes() == b"[stack]").unwrap();
    assert!(stack.range.contains(pointer), "{pointer:#x} in {}", stack.range);
}

#[test]
fn we_can_be_read_ourselves() {
    let root = ProcRoot::live();
    let pid = target::find(&root, "self").unwrap();
    assert_eq!(pid, us());
    let snapshot = read(pid, Wish::Auto).unwrap();
    assert_eq!(snapshot.process.ns_pids.first(), Some(&pid));
    assert!(
        snapshot.limits.is_ok() && snapshot.status.is_ok() && snapshot.machine.mem_total.is_ok()
    );
    assert!(snapshot.provenance.took_ns > 0 && snapshot.provenance.longest_hold_ns.unwrap() > 0);
}

#[test]
fn a_name_finds_one_process_and_several_are_listed() {
    let root = ProcRoot::live();
    let name = own_name("pw-find-");
    let (_folder, path) = own_sleep(&name);
    let one = Sleeper::start(&path);
    assert_eq!(target::find(&root, &name).unwrap(), one.pid());
    assert_eq!(target::find(&root, &name[1..]).unwrap(), one.pid());
    assert_eq!(target::find(&root, &one.pid().to_string()).unwrap(), one.pid());
    let two = Sleeper::start(&path);
    match target::find(&root, &name) {
        Err(ProcError::AmbiguousName { candidates, .. }) => {
            let mut pids: Vec<Pid> = candidates.iter().map(|(pid, _)| *pid).collect();
            pids.sort_unstable();
            let mut expected = [one.pid(), two.pid()];
            expected.sort_unstable();
            assert_eq!(pids, expected);
            let commands: Vec<String> =
                candidates.iter().map(|(_, command)| command.escaped().into_owned()).collect();
            assert!(commands.iter().all(|it| it.contains(&format!("{name} "))), "{commands:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exact_name_wins_over_longer_ones() {
    let root = ProcRoot::live();
    let name = own_name("pw-ex-");
    let (_short, short) = own_sleep(&name);
    let (_long, long) = own_sleep(&format!("{name}ly"));
    let (exact, _longer) = (Sleeper::start(&short), Sleeper::start(&long));
    assert_eq!(target::find(&root, &name).unwrap(), exact.pid());
}

#[test]
fn we_are_never_found_by_name() {
    // Run this test in a copy of this program with another name. Children of the other tests have
    // the name of this program between `fork` and `exec`.
    const ALONE: &str = "PAGEWISE_TEST_ALONE";
    let exe = std::env::current_exe().unwrap();
    if std::env::var_os(ALONE).is_none() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join(own_name("pw-self-"));
        copy_program(&exe, &copy);
        let mut alone = Command::new(copy);
        let output = alone.args(["--exact", "we_are_never_found_by_name"]).env(ALONE, "1").output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let name = exe.file_name().unwrap().to_str().unwrap();
    assert!(matches!(target::find(&ProcRoot::live(), name), Err(ProcError::NotFound { .. })));
    assert!(matches!(
        target::find(&ProcRoot::live(), "pw no such\x1b"),
        Err(ProcError::NotFound { .. })
    ));
}

/// A copied tree of one process with these of its files.
fn copied(sleeper: &Sleeper, files: &[&str]) -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    let folder = tree.path().join(sleeper.pid().to_string());
    fs::create_dir(&folder).unwrap();
    for file in files {
        fs::write(folder.join(file), sleeper.file(file)).unwrap();
    }
    tree
}

#[test]
fn a_copied_tree_gives_what_was_copied_and_says_what_was_not() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let live = read(sleeper.pid(), Wish::Full).unwrap();
    let from = |files: &[&str]| {
        let tree = copied(&sleeper, files);
        capture(&ProcRoot::at(tree.path()), sleeper.pid(), &CaptureRequest::default()).unwrap()
    };
    let whole = from(&["stat", "smaps", "maps", "statm", "mountinfo"]);
    let same = |s: &Snapshot| -> Vec<_> {
        let mappings = s.mappings.as_ref().unwrap();
        // The PSS is not compared, because other programs start and end meanwhile.
        let anonymous = |m: &Mapping| m.counter(SmapsCounter::Anonymous).unwrap();
        mappings.iter().map(|m| (m.range, m.name.clone(), m.rss().unwrap(), anonymous(m))).collect()
    };
    assert!(same(&whole) == same(&live));
    assert_eq!(whole.statm, live.statm);
    assert!(whole.mappings.unwrap().iter().all(|m| m.pages.is_err()));
    assert!(whole.rollup.is_err() && whole.provenance.longest_hold_ns.is_err());

    let maps_only = from(&["stat", "maps"]).mappings.unwrap();
    assert!(!maps_only.is_empty() && maps_only.iter().all(|m| m.rss().is_err()));

    let neither = from(&["stat"]);
    assert!(matches!(neither.mappings, Err(Absent::NotCollected(_))), "{:?}", neither.mappings);
}

#[test]
fn a_copied_tree_has_an_age_where_it_has_the_uptime() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let tree = copied(&sleeper, &["stat"]);
    let age = || {
        let request = CaptureRequest::default();
        capture(&ProcRoot::at(tree.path()), sleeper.pid(), &request).unwrap().process.age_ns
    };
    assert!(age().is_err());
    let start_ticks = stat::parse(sleeper.file("stat").as_bytes()).unwrap().start_ticks;
    fs::write(tree.path().join("uptime"), format!("{}.50 7.00\n", start_ticks / 100 + 9)).unwrap();
    let seconds = age().unwrap() as f64 / 1e9;
    assert!((8.5..=9.5).contains(&seconds), "{seconds}");
    for wrong in ["", "x", "-4", "nan 1", "1e300"] {
        fs::write(tree.path().join("uptime"), wrong).unwrap();
        assert!(age().is_err(), "{wrong}");
    }
}

#[test]
fn a_copied_smaps_that_is_cut_off_leaves_a_gap() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let tree = copied(&sleeper, &["stat", "smaps"]);
    let path = tree.path().join(format!("{}/smaps", sleeper.pid()));
    let text = fs::read(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    let snapshot =
        capture(&ProcRoot::at(tree.path()), sleeper.pid(), &CaptureRequest::default()).unwrap();
    assert!(!snapshot.mappings.unwrap().is_empty());
    let gaps = &snapshot.provenance.gaps;
    assert!(gaps.iter().any(|gap| gap.why.to_string().contains("expected")), "{gaps:?}");
}

#[test]
fn a_copied_tree_with_hostile_files_is_read_safely() {
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let tree = copied(&sleeper, &["stat", "smaps"]);
    let file = |name: &str| tree.path().join(format!("{}/{name}", sleeper.pid()));
    symlink("/dev/zero", file("status")).unwrap();
    mknodat(CWD, file("smaps_rollup"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    fs::create_dir(file("statm")).unwrap();
    // A FIFO in place of a file is an ordinary error: the reading neither blocks nor returns an
    // empty file.
    let result = capture(&ProcRoot::at(tree.path()), sleeper.pid(), &CaptureRequest::default());
    let error = result.unwrap_err().to_string();
    assert!(error.contains("smaps_rollup"), "{error}");
    fs::remove_file(file("smaps_rollup")).unwrap();
    let snapshot =
        capture(&ProcRoot::at(tree.path()), sleeper.pid(), &CaptureRequest::default()).unwrap();
    assert!(snapshot.status.is_err() && snapshot.statm.is_err() && snapshot.mappings.is_ok());
}

#[test]
fn a_stranger_learns_who_it_is_and_why_not_more() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("stranger");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let sleeper = Sleeper::start(Path::new("/bin/sleep"));
    let mut stranger = Command::new(program)
        .args(["--exact", "as_a_stranger", "--ignored", "--nocapture"])
        .env("PAGEWISE_TEST_PID", sleeper.pid().to_string())
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    stranger.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(stranger.wait().unwrap().success(), "{said}");
}

#[test]
#[ignore = "run by another test, as another user"]
fn as_a_stranger() {
    let pid = std::env::var("PAGEWISE_TEST_PID").unwrap().parse().unwrap();
    for wish in [Wish::Full, Wish::Polite] {
        let snapshot = read(Pid(pid), wish).unwrap();
        assert!(
            matches!(snapshot.mappings, Err(Absent::NotPermitted(_))),
            "{:?}",
            snapshot.mappings
        );
        assert!(matches!(snapshot.process.exe, Err(Absent::NotPermitted(_))));
        assert!(snapshot.statm.is_ok() && snapshot.status.is_ok());
        assert_eq!(snapshot.process.name, "sleep".into());
    }
}

mod saved {
    use super::*;
    use pagewise_proc::saved::{open, parse, save};

    fn why(result: Result<Snapshot, ProcError>) -> String {
        match result {
            Err(ProcError::NotASnapshot { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_snapshot_survives_being_saved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("us.json");
        for wish in [Wish::Full, Wish::Fast] {
            let snapshot = read(us(), wish).unwrap();
            save(&snapshot, &path).unwrap();
            assert_eq!(open(&path).unwrap(), snapshot);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn an_invalid_file_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("us.json");
        save(&read(us(), Wish::Full).unwrap(), &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let reopened = |text: &str| {
            fs::write(&path, text).unwrap();
            why(open(&path))
        };
        for cut in [1, text.len() / 3, text.len() / 2, text.len() - 3] {
            assert_eq!(reopened(&text[..cut]), "it is cut off", "after {cut} bytes");
        }
        assert_eq!(reopened(""), "it is empty");
        assert_eq!(reopened("17"), "it is of another kind");
        assert_eq!(reopened("{\"pid\": 1}"), "it is of another kind");
        let newer = text.replacen("\"pagewise_snapshot\":1", "\"pagewise_snapshot\":99", 1);
        assert!(reopened(&newer).starts_with("it has version 99"));
        assert!(reopened("{\"pagewise_snapshot\":99}").starts_with("it has version 99"));
        assert!(reopened("\x7fELF").contains("line 1"));
    }

    #[test]
    fn text_of_a_foreign_file_reaches_no_terminal() {
        let text = b"{\"pagewise_snapshot\":1,\"provenance\":{\"moment\":\"\\u001b[2J\"}}";
        assert!(!parse(text).unwrap_err().contains('\x1b'));
    }

    #[test]
    fn a_device_is_written_into_and_not_replaced() {
        let snapshot = read(us(), Wish::Fast).unwrap();
        save(&snapshot, Path::new("/dev/null")).unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    #[test]
    fn a_link_stays_one_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        save(&read(us(), Wish::Fast).unwrap(), &link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(open(&file).is_ok());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error_that_names_the_file() {
        let error = save(&read(us(), Wish::Fast).unwrap(), Path::new("/nowhere/x")).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /nowhere/x");
    }
}
