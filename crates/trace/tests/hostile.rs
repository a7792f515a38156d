//! Hostile file names in a program whose functions are looked up: only regular files of the program
//! are opened, and no open blocks.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![cfg(target_arch = "x86_64")]

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::{LineProgram, build, functions, tool};
use pagewise_skip::{Lack, skip, skip_part};
use pagewise_trace::{
    CodePlace, MmapAccess, MmapRecord, PerfRecord, RecordedStacks, Spaces, Symbols,
};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode};

/// Maximum duration of an open that was not blocked.
const SOON: Duration = Duration::from_secs(20);

/// Detects opens of a path; an open with `O_PATH` does not count.
struct HostileOpens(OwnedFd);

impl HostileOpens {
    fn watch(path: &Path) -> HostileOpens {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, path, WatchFlags::OPEN).unwrap();
        HostileOpens(watch)
    }

    fn any(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 4096]).is_ok_and(|read| read > 0)
    }
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(fs::metadata(path).unwrap().file_type().is_fifo());
}

/// Returns the code location of an offset in a file, from a mapping record of the whole file.
fn place_at(program: &Path, device: (u32, u32), at: u64) -> (Vec<Rc<CodePlace>>, RecordedStacks) {
    const START: u64 = 0x5555_0000_0000;
    let file = fs::metadata(program).unwrap();
    let mapped = MmapRecord {
        pid: std::process::id(),
        start: START,
        length: 1 << 30,
        inode: file.ino(),
        device,
        name: program.to_str().unwrap().as_bytes(),
        access: MmapAccess { execute: true, ..MmapAccess::default() },
        ..MmapRecord::default()
    };
    let (mut spaces, mut stacks) = (Spaces::default(), RecordedStacks::default());
    spaces.note(&PerfRecord::Mapped(mapped));
    let number = stacks.number(&spaces, mapped.pid, [START + at].into_iter());
    (stacks.places()[number.index()].to_vec(), stacks)
}

fn device(path: &Path) -> (u32, u32) {
    let device = fs::metadata(path).unwrap().dev();
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// Offset of a function in a program built without `-pie`. Without readelf, prints a message and
/// returns `None`.
fn offset_of(program: &Path, function: &str) -> Option<u64> {
    let Ok(output) = Command::new("readelf").args(["-W", "-s"]).arg(program).output() else {
        skip(&Lack::Tool("readelf"));
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.ends_with(&format!(" {function}"))).unwrap();
    let address = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    // Programs without `-pie` begin at the address 4 MiB.
    Some(address - 0x40_0000)
}

/// A stripped program with a link to debugging information, the offset of its function `fifth`, and
/// the debug file.
fn linked(folder: &Path) -> Option<(PathBuf, u64, PathBuf)> {
    let program = build(folder, "chain.c", &["-no-pie", "-Wl,--build-id=none"])?;
    let debug = folder.join("chain.debug");
    tool("objcopy", &["--only-keep-debug"], &[&program, &debug])?;
    let at = offset_of(&program, "fifth")?;
    tool("strip", &[], &[&program])?;
    tool("objcopy", &[&format!("--add-gnu-debuglink={}", debug.display())], &[&program])?;
    Some((program, at, debug))
}

fn name_of(places: &[Rc<CodePlace>]) -> String {
    let began = Instant::now();
    let found = functions(&mut Symbols::with_debug_folders(&[]), places).remove(0);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    found
}

#[test]
fn a_debug_link_leads_to_the_debug_file_and_to_nothing_that_is_not_a_regular_file_of_its_build() {
    let folder = tempfile::tempdir().unwrap();
    let Some((program, at, debug)) = linked(folder.path()) else { return };
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "fifth");
    let kept = folder.path().join("kept");
    fs::rename(&debug, &kept).unwrap();

    fifo(&debug);
    let opened = HostileOpens::watch(&debug);
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "?");
    assert!(!opened.any(), "a FIFO was opened");
    fs::remove_file(&debug).unwrap();

    symlink("/dev/zero", &debug).unwrap();
    let opens_device = || {
        let opened = HostileOpens::watch(Path::new("/dev/zero"));
        let (places, _stacks) = place_at(&program, device(&program), at);
        assert_eq!(name_of(&places), "?");
        opened.any()
    };
    // Other programs open the device too, but not in each of many rounds.
    assert!((0..100).any(|_| !opens_device()), "a device was opened");
    fs::remove_file(&debug).unwrap();

    File::create(&debug).unwrap().set_len(300 << 30).unwrap();
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "?");
    // A file within the limit that is not a debug file, and has another CRC.
    File::create(&debug).unwrap().set_len(400 << 20).unwrap();
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "?");
    fs::remove_file(&debug).unwrap();

    fs::rename(&kept, &debug).unwrap();
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "fifth");
}

#[test]
fn a_debug_link_has_no_folders_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some((program, at, debug)) = linked(folder.path()) else { return };
    // The contents of the section: the name, its terminating zero byte, and the CRC.
    let section = folder.path().join("section");
    let Some(()) = tool(
        "objcopy",
        &[
            "-O",
            "binary",
            "--only-section=.gnu_debuglink",
            "--set-section-flags=.gnu_debuglink=alloc",
        ],
        &[&program, &section],
    ) else {
        return;
    };
    let old = fs::read(&section).unwrap();
    let crc = old[old.len() - 4..].to_vec();
    fs::create_dir(folder.path().join("within")).unwrap();
    let inside = folder.path().join("within/chain");
    fs::copy(&program, &inside).unwrap();
    let mut name = b"../chain.debug\0".to_vec();
    name.resize(name.len().next_multiple_of(4), 0);
    fs::write(&section, [name, crc].concat()).unwrap();
    let update = format!("--update-section=.gnu_debuglink={}", section.display());
    let Some(()) = tool("objcopy", &[&update], &[&inside]) else { return };
    let opened = HostileOpens::watch(&debug);
    let (places, _stacks) = place_at(&inside, device(&inside), at);
    assert_eq!(name_of(&places), "?");
    assert!(!opened.any());
}

#[test]
fn a_link_to_what_is_shared_is_opened_only_where_it_is_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-no-pie"]) else { return };
    let target = folder.path().join("shared");
    fifo(&target);
    let section = folder.path().join("section");
    let id = [7_u8; 20];
    fs::write(&section, [target.to_str().unwrap().as_bytes(), b"\0", &id].concat()).unwrap();
    let add = format!("--add-section=.gnu_debugaltlink={}", section.display());
    let Some(()) = tool("objcopy", &[&add], &[&program]) else { return };
    let opened = HostileOpens::watch(&target);
    let Some(at) = offset_of(&program, "fifth") else { return };
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "fifth", "what is in the file itself is known");
    assert!(!opened.any(), "a FIFO was opened");
}

#[test]
fn a_file_with_the_inode_of_another_device_is_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let Some((program, at, _)) = linked(folder.path()) else { return };
    let (places, _stacks) = place_at(&program, device(&program), at);
    assert_eq!(name_of(&places), "fifth");
    let statfs = rustix::fs::statfs(&program).unwrap();
    if statfs.f_type == 0x794c_7630 {
        return skip_part(&Lack::Machine(
            "on an overlay the device of a mapping is not that of its file",
        ));
    }
    let (places, _stacks) = place_at(&program, (0, 0xf_ffff), at);
    assert_eq!(name_of(&places), "?");
}

/// An ordinary `cp` over a file truncates it.
#[test]
fn a_file_that_is_truncated_while_it_is_read_has_unknown_functions_and_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-no-pie"]) else { return };
    let Some(at) = offset_of(&program, "fifth") else { return };
    let (whole, kept) = place_at(&program, device(&program), at);
    let mut symbols = kept.symbols();
    assert_eq!(functions(&mut symbols, &whole), ["fifth"]);
    assert!(symbols.lacks().is_empty());
    let (places, kept) = place_at(&program, device(&program), at);
    File::options().write(true).open(&program).unwrap().set_len(100).unwrap();
    assert_eq!(functions(&mut symbols, &whole), ["fifth"], "what was read stays known");
    let mut symbols = kept.symbols();
    assert_eq!(functions(&mut symbols, &places), ["?"]);
    let lacks: Vec<String> = symbols.lacks().iter().map(ToString::to_string).collect();
    assert!(lacks.len() == 1 && lacks[0].contains("chain"), "{lacks:?}");
}

/// The name that the map of a process's just-in-time compiler has for an address, while the process
/// is there.
fn jit_name(pid: u32) -> String {
    let mapped = MmapRecord {
        pid,
        start: 0x1000,
        length: 0x1000,
        name: b"//anon",
        access: MmapAccess { execute: true, ..MmapAccess::default() },
        ..MmapRecord::default()
    };
    let (mut spaces, mut stacks) = (Spaces::default(), RecordedStacks::default());
    spaces.note(&PerfRecord::Mapped(mapped));
    let number = stacks.number(&spaces, pid, [0x1800].into_iter());
    name_of(&stacks.places()[number.index()])
}

#[test]
fn a_map_of_a_just_in_time_compiler_is_a_regular_file_of_its_user() {
    let sleeper = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let mut sleeper = HostileProgram(sleeper);
    let map = PathBuf::from(format!("/tmp/perf-{}.map", sleeper.0.id()));
    let check = |what: &str| (what.to_owned(), jit_name(sleeper.0.id()));
    let mut seen = Vec::new();
    let remove = || drop(fs::remove_file(&map));
    remove();
    fs::write(&map, "1000 1000 its own\n").unwrap();
    seen.push(check("a file"));
    remove();
    fifo(&map);
    let opened = HostileOpens::watch(&map);
    seen.push(check("a FIFO"));
    let fifo_opened = opened.any();
    remove();
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), "1000 1000 of a link\n").unwrap();
    symlink(other.path(), &map).unwrap();
    let opened = HostileOpens::watch(other.path());
    seen.push(check("a link"));
    let link_opened = opened.any();
    remove();
    symlink("/dev/zero", &map).unwrap();
    seen.push(check("a link to a device"));
    remove();
    fs::write(&map, "1000 1000 too large\n").unwrap();
    File::options().write(true).open(&map).unwrap().set_len(300 << 30).unwrap();
    seen.push(check("a file that is too large"));
    remove();
    if rustix::process::geteuid().is_root() {
        fs::write(&map, "1000 1000 of another user\n").unwrap();
        std::os::unix::fs::chown(&map, Some(12345), None).unwrap();
        seen.push(check("a file of another user"));
        remove();
    }
    let _ = sleeper.0.kill();
    assert_eq!(seen.remove(0).1, "its own");
    assert!(seen.iter().all(|(_, name)| name == "?"), "{seen:?}");
    assert!(!fifo_opened && !link_opened);
}

/// A process that is killed at the end of the test.
struct HostileProgram(std::process::Child);

impl Drop for HostileProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In a container a process has another PID, and another `/tmp`.
#[test]
fn a_process_in_a_container_has_its_own_map_and_never_the_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("tmp");
    fs::create_dir(&inside).unwrap();
    let script = "mount --bind \"$1\" /tmp && echo \"1000 1000 of the container\" > /tmp/perf-$$.map && \
                  echo $$ && read line; rm /tmp/perf-$$.map; echo gone; read line";
    let probe = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip(&Lack::Machine("the user may not make namespaces"));
    }
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "sh",
        "-c",
        script,
        "sh",
    ]);
    let mut running = LineProgram::start(command.arg(&inside));
    let inner: u32 = running.hear().trim().parse().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", running.pid);
    let children = fs::read_to_string(children).unwrap();
    let outer: u32 = children.trim().parse().unwrap();
    assert_ne!(inner, outer);
    let host = PathBuf::from(format!("/tmp/perf-{inner}.map"));
    let is_free = !host.exists();
    if is_free {
        fs::write(&host, "1000 1000 of the host\n").unwrap();
    }
    let with = jit_name(outer);
    running.tell();
    running.hear();
    let without = jit_name(outer);
    if is_free {
        fs::remove_file(&host).unwrap();
    }
    assert_eq!((with.as_str(), without.as_str()), ("of the container", "?"));
}
