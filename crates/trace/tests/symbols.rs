//! Functions and lines of code whose path denotes another file or no file, and of code in no file.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
#![cfg(target_arch = "x86_64")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use common::{LineProgram, build, faults, functions, tool};
use pagewise_proc::ProcRoot;
use pagewise_skip::{Lack, skip};
use pagewise_trace::{
    CodePlace, MmapRecord, PerfRecord, RecordedStacks, Spaces, StackId, Symbols, Unwinder,
};

const CHAIN: [&str; 7] = ["sixth", "fifth", "fourth", "third", "second", "first", "main"];
const PAGES: usize = 50;

/// Returns the call stack of most faults of a program, while `symbols` keeps the files of all
/// stacks.
fn stack(running: &mut LineProgram, symbols: &mut Symbols) -> Option<Vec<Rc<CodePlace>>> {
    stacks(running, symbols).map(|(places, _)| places)
}

/// Like [`stack`], but also returns the recorded stacks, which keep the files open too.
fn stacks(
    running: &mut LineProgram,
    symbols: &mut Symbols,
) -> Option<(Vec<Rc<CodePlace>>, RecordedStacks)> {
    let (mut stacks, mut unwinder) = (RecordedStacks::default(), Unwinder::default());
    let mut counts: BTreeMap<StackId, usize> = BTreeMap::new();
    let done = faults(running, Unwinder::carries(4096), &mut |spaces, sample| {
        let addresses = unwinder.unwind(spaces, sample).iter().copied();
        let stack = stacks.number(spaces, sample.pid, addresses);
        symbols.keep(&stacks.places()[stack.index()]);
        *counts.entry(stack).or_default() += 1;
    });
    let (stack, count) = counts.iter().max_by_key(|(_, count)| **count)?;
    assert!(*count >= PAGES - 1, "{counts:?}");
    done.then(|| (stacks.places()[stack.index()].to_vec(), stacks))
}

fn chain(command: &mut Command, symbols: &mut Symbols) -> Option<Vec<Rc<CodePlace>>> {
    stack(&mut LineProgram::start(command.arg(PAGES.to_string())), symbols)
}

/// Returns the build ID, as another program prints it.
fn build_id(program: &Path) -> Option<String> {
    let Ok(output) = Command::new("readelf").arg("-n").arg(program).output() else {
        skip(&Lack::Tool("readelf"));
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    Some(line.unwrap_or_else(|| panic!("{text}")).to_owned())
}

fn lines(symbols: &mut Symbols, places: &[Rc<CodePlace>]) -> Vec<Option<u32>> {
    let frames = places.iter().flat_map(|place| symbols.frames(place).to_vec());
    frames.map(|frame| frame.line.map(|line| line.number)).collect()
}

#[test]
fn a_stripped_program_has_the_functions_of_its_debugging_information_by_build_id() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-Wl,--build-id"]) else { return };
    let Some(id) = build_id(&program) else { return };
    let debug = folder.path().join(format!(".build-id/{}", &id[..2]));
    fs::create_dir_all(&debug).unwrap();
    let debug = debug.join(format!("{}.debug", &id[2..]));
    let Some(()) = tool("objcopy", &["--only-keep-debug"], &[&program, &debug]) else { return };
    let Some(()) = tool("strip", &[], &[&program]) else { return };
    let mut with = Symbols::with_debug_folders(&[folder.path().to_owned()]);
    let Some(places) = chain(&mut Command::new(&program), &mut with) else { return };
    assert_eq!(functions(&mut with, &places)[..7], CHAIN);
    assert!(lines(&mut with, &places)[..7].iter().all(Option::is_some));
    let mut without = Symbols::with_debug_folders(&[]);
    without.keep(&places);
    assert!(!functions(&mut without, &places).contains(&"fifth".to_owned()));

    // The debugging file of another program lies under this program's build ID.
    let Some(other) = build(folder.path(), "jit.c", &["-Wl,--build-id"]) else { return };
    fs::copy(other, &debug).unwrap();
    let mut wrong = Symbols::with_debug_folders(&[folder.path().to_owned()]);
    let Some(places) = chain(&mut Command::new(&program), &mut wrong) else { return };
    assert!(functions(&mut wrong, &places)[..7].iter().all(|name| name == "?"));
}

#[test]
fn a_stripped_program_has_the_functions_of_the_file_that_it_links_to() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-Wl,--build-id=none"]) else { return };
    let debug = folder.path().join("elsewhere");
    fs::create_dir(&debug).unwrap();
    let debug = debug.join("chain.debug");
    let Some(()) = tool("objcopy", &["--only-keep-debug"], &[&program, &debug]) else { return };
    let Some(()) = tool("strip", &[], &[&program]) else { return };
    let link = format!("--add-gnu-debuglink={}", debug.display());
    let Some(()) = tool("objcopy", &[&link], &[&program]) else { return };
    let mut symbols = Symbols::with_debug_folders(&[folder.path().join("elsewhere")]);
    let Some(places) = chain(&mut Command::new(&program), &mut symbols) else { return };
    assert_eq!(functions(&mut symbols, &places)[..7], CHAIN);

    // The file has been replaced since it was linked: its symbols are not used, and no look-up
    // fails.
    fs::write(&debug, b"something else").unwrap();
    let mut symbols = Symbols::with_debug_folders(&[folder.path().join("elsewhere")]);
    let Some(places) = chain(&mut Command::new(&program), &mut symbols) else { return };
    assert!(functions(&mut symbols, &places)[..7].iter().all(|name| name == "?"));
}

#[test]
fn a_program_that_was_deleted_has_its_functions_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &[]) else { return };
    let mut running = LineProgram::start(Command::new(&program).arg(PAGES.to_string()));
    // The program has started; now its path denotes another file.
    fs::remove_file(&program).unwrap();
    fs::write(&program, b"another").unwrap();
    let mut symbols = Symbols::default();
    let Some((places, stacks)) = stacks(&mut running, &mut symbols) else { return };
    let mut later = Symbols::default();
    assert_eq!(functions(&mut later, &places)[..7], CHAIN);
    drop(running);
    assert_eq!(functions(&mut stacks.symbols(), &places)[..7], CHAIN, "they were kept");
    assert!(functions(&mut Symbols::default(), &places)[..7].iter().all(|name| name == "?"));
    assert_eq!(functions(&mut symbols, &places)[..7], CHAIN, "it was kept");
}

#[test]
fn a_library_that_was_deleted_has_its_functions_while_it_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let shared = &["-shared", "-fPIC", "-Dmain=chain_main"];
    let Some(built) = build(folder.path(), "chain.c", shared) else { return };
    let library = folder.path().join("libchain.so");
    fs::rename(built, &library).unwrap();
    let Some(program) = build(folder.path(), "calls.c", &["-ldl"]) else { return };
    let mut running =
        LineProgram::start(Command::new(program).arg(&library).arg(PAGES.to_string()));
    running.hear();
    fs::remove_file(&library).unwrap();
    let mut symbols = Symbols::default();
    let Some(places) = stack(&mut running, &mut symbols) else { return };
    let names = functions(&mut Symbols::default(), &places);
    if names[0] == "?" {
        // `map_files` requires CAP_CHECKPOINT_RESTORE.
        assert!(!rustix::process::geteuid().is_root(), "{names:?}");
        return skip(&Lack::Root);
    }
    assert_eq!(names[..6], CHAIN[..6]);
}

/// The functions of the program have other names than those of the program with the same path
/// outside.
#[test]
fn a_program_in_another_mount_namespace_has_its_own_functions() {
    let folder = tempfile::tempdir().unwrap();
    let other = ["-Dfifth=inside_fifth", "-Dsixth=inside_sixth"];
    let Some(inside) = build(folder.path(), "chain.c", &other) else { return };
    let hidden = folder.path().join("hidden");
    fs::rename(inside, &hidden).unwrap();
    let Some(program) = build(folder.path(), "chain.c", &[]) else { return };
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", "mount --bind \"$1\" \"$2\" && exec \"$2\" \"$3\"", "sh"]);
    let probe = Command::new("unshare").args(["--mount", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip(&Lack::Machine("the user may not make namespaces"));
    }
    let mut running = LineProgram::start(unshare.arg(&hidden).arg(&program).arg(PAGES.to_string()));
    // Record nothing of the shell.
    running.tell();
    running.hear();
    let mut symbols = Symbols::default();
    let Some(places) = stack(&mut running, &mut symbols) else { return };
    let names = functions(&mut Symbols::default(), &places);
    assert_eq!(names[..4], ["inside_sixth", "inside_fifth", "fourth", "third"]);
    drop(running);
    // The path denotes another file: a missing name is better than a wrong one.
    assert!(functions(&mut Symbols::default(), &places)[..7].iter().all(|name| name == "?"));
    assert_eq!(functions(&mut symbols, &places)[..2], ["inside_sixth", "inside_fifth"]);
}

#[test]
fn code_made_at_run_time_has_the_names_that_its_compiler_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "jit.c", &[]) else { return };
    let mut running = LineProgram::start(Command::new(program).arg(PAGES.to_string()));
    running.tell();
    running.hear();
    let map = PathBuf::from(format!("/tmp/perf-{}.map", running.pid));
    let mut symbols = Symbols::default();
    let places = stack(&mut running, &mut symbols);
    let names = places.map(|places| functions(&mut symbols, &places));
    fs::remove_file(map).unwrap();
    let Some(names) = names else { return };
    assert_eq!(names[..3], ["made by a compiler", "calls", "main"]);
}

#[test]
fn the_kernels_own_code_in_programs_has_its_functions() {
    let pid = std::process::id();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return skip(&Lack::Machine("this process has no vDSO"));
    };
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
    let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
    fs::File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, start).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("vdso.so");
    fs::write(&copy, bytes).unwrap();
    let Ok(output) = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(&copy).output() else {
        return skip(&Lack::Tool("readelf"));
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut spaces, mut stacks, mut symbols) =
        (Spaces::default(), RecordedStacks::default(), Symbols::default());
    spaces.read(&ProcRoot::live(), pid);
    let mut of_address: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(" FUNC ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words[7].split('@').next().unwrap().to_owned();
        of_address.entry(u64::from_str_radix(words[1], 16).unwrap()).or_default().push(name);
    }
    assert!(!of_address.is_empty(), "{text}");
    for (address, names) in of_address {
        let stack = stacks.number(&spaces, pid, [start + address].into_iter());
        let found = functions(&mut symbols, &stacks.places()[stack.index()]);
        assert!(names.contains(&found[0]), "{found:?} {names:?}");
    }
}

/// The device of a file, as records of mappings have it.
fn device(path: &Path) -> (u32, u32) {
    let device = fs::metadata(path).unwrap().dev();
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// Programs choose what they map: a file with damage has other functions, or none, and does no
/// harm.
#[test]
fn damaged_files_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = build(folder.path(), "chain.c", &["-g1"]) else { return };
    let whole = fs::read(program).unwrap();
    let path = folder.path().join("damaged");
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = |below: usize| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(chance >> 33).unwrap() % below
    };
    for round in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..=number(30) {
            // Headers are damaged more often: they have the largest effect.
            let at = if number(3) == 0 { number(1024) } else { number(bytes.len()) };
            bytes[at] = u8::try_from(number(256)).unwrap();
        }
        if number(4) == 0 {
            bytes.truncate(number(bytes.len()));
        }
        let path = path.with_extension(round.to_string());
        fs::write(&path, &bytes).unwrap();
        let (mut spaces, mut stacks) = (Spaces::default(), RecordedStacks::default());
        let mapped = MmapRecord {
            pid: std::process::id(),
            start: 0x10000,
            length: whole.len() as u64,
            inode: fs::metadata(&path).unwrap().ino(),
            device: device(&path),
            name: path.to_str().unwrap().as_bytes(),
            ..MmapRecord::default()
        };
        spaces.note(&PerfRecord::Mapped(mapped));
        let addresses = (0..whole.len() as u64).step_by(97).map(|at| 0x10000 + at);
        let stack = stacks.number(&spaces, mapped.pid, addresses);
        let mut symbols = Symbols::default();
        let frames = functions(&mut symbols, &stacks.places()[stack.index()]);
        assert!(frames.len() >= whole.len() / 97);
    }
}
