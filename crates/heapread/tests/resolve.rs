//! Functions and lines of recordings, compared with those that `addr2line` prints for the same
//! addresses.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may do both")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagewise_heaplog::reader::Cut;
use pagewise_heaplog::recording::{
    Begin, LogAddress, LogAmount, LogCallNode, LogCounts, LogEnd, LogEnding, LogKind, LogLiveTree,
    LogModule, LogRecording, LogResident, LogSite, LogSiteCounts, LogSnapshot, ROOT,
};
use pagewise_heapread::resolve;
use pagewise_model::traced::Frame;
use pagewise_model::{Absent, Bytes, heap};
use pagewise_skip::{Lack, skip};
use pagewise_trace::FileSymbols;

/// Output of a tool. `None`, with a message, if the tool is not installed.
fn tool(name: &str, args: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(name).args(args).arg(file).env("LC_ALL", "C").output() else {
        skip(&Lack::Tool(name));
        return None;
    };
    assert!(output.status.success(), "{name} {args:?}: {output:?}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A compiled program and its build ID.
struct MappedProgram {
    path: PathBuf,
    build_id: Vec<u8>,
}

/// Difference between run-time addresses and addresses in the file.
const BIAS: u64 = 0x5555_5555_4000;

impl MappedProgram {
    fn build(folder: &Path, name: &str, flags: &[&str]) -> Option<MappedProgram> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/calls.c");
        let path = folder.join(name);
        let mut command = Command::new("cc");
        command.args(["-O1", "-g", "-Wl,--build-id"]).args(flags).arg("-o").arg(&path).arg(source);
        match command.status() {
            Ok(status) => assert!(status.success(), "it cannot be built"),
            Err(_) => {
                skip(&Lack::Tool("cc"));
                return None;
            }
        }
        let notes = tool("readelf", &["-n"], &path)?;
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        let id = id.unwrap_or_else(|| panic!("{notes}")).as_bytes();
        let hex = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        Some(MappedProgram { path, build_id: id.chunks(2).map(hex).collect() })
    }

    fn module(&self) -> LogModule {
        LogModule {
            path: self.path.as_os_str().as_bytes().to_vec(),
            build_id: self.build_id.clone(),
            start: BIAS,
            end: BIAS + 0x10000,
            bias: BIAS,
        }
    }

    /// Return addresses of the calls in a function, as the file has them: the address after each
    /// call instruction.
    fn returns(&self, function: &str) -> Option<Vec<u64>> {
        let text = tool("objdump", &["-d", "--no-show-raw-insn"], &self.path)?;
        let heading = format!("<{function}>:");
        let mut lines = text.lines().skip_while(|line| !line.ends_with(&heading)).skip(1);
        let mut returns = Vec::new();
        let mut is_behind_call = false;
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            let (address, instruction) = line.split_once(':')?;
            if is_behind_call {
                returns.push(u64::from_str_radix(address.trim(), 16).unwrap());
            }
            is_behind_call = instruction.trim_start().starts_with("call");
        }
        assert!(!returns.is_empty(), "{function}: {text}");
        Some(returns)
    }

    /// Functions and lines of the call before an address, the innermost inlined one first, as
    /// `addr2line` has them.
    fn told(&self, behind: u64) -> Option<Vec<(String, u32)>> {
        let address = format!("{:#x}", behind - 1);
        let mut command = Command::new("addr2line");
        let output = command.args(["-f", "-i", "-e"]).arg(&self.path).arg(address).output();
        let Ok(output) = output else {
            skip(&Lack::Tool("addr2line"));
            return None;
        };
        let output = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        let number = |place: &str| {
            let number = place.rsplit(':').next().unwrap();
            number.split_whitespace().next().unwrap().parse().unwrap()
        };
        Some(lines.chunks(2).map(|pair| (pair[0].to_owned(), number(pair[1]))).collect())
    }
}

fn amount(bytes: u64, blocks: u64) -> LogAmount {
    LogAmount { bytes, blocks }
}

fn counted(bytes: u64, freed: u64) -> LogSiteCounts {
    LogSiteCounts {
        allocated: amount(bytes, 2),
        freed: amount(freed, 1),
        temporary: 1,
        at_peak: amount(bytes / 2, 1),
        errors: (0.0, 0.0),
    }
}

/// A recording of calls with these return addresses in a file, each without a caller.
fn recording(module: LogModule, returns: &[u64]) -> LogRecording {
    let places =
        returns.iter().map(|at| LogAddress { address: BIAS + at, exact: false, module: Some(0) });
    let count = u32::try_from(returns.len()).unwrap();
    LogRecording {
        begin: Begin { pid: 7, page_size: 4096, began_ns: u64::MAX, ..Begin::default() },
        modules: vec![module],
        places: places.collect(),
        nodes: (0..count).map(|place| LogCallNode { parent: ROOT, place }).collect(),
        sites: (0..count).map(|node| LogSite { node, kind: LogKind::Heap }).collect(),
        counts: LogCounts {
            sites: (0..u64::from(count)).map(|at| counted(100 + at, at)).collect(),
            ..LogCounts::default()
        },
        end: Some(LogEnd { time_ns: 5, how: LogEnding::Exited(0) }),
        ..LogRecording::default()
    }
}

fn resolved(recording: &LogRecording) -> heap::HeapRecording {
    resolve(recording, None, &mut FileSymbols::with_debug_folders(&[]))
}

fn frames<'a>(recording: &'a heap::HeapRecording, site: &heap::AllocationSite) -> Vec<&'a Frame> {
    let stack = &recording.stacks[site.stack as usize];
    stack.iter().map(|frame| &recording.frames[*frame as usize]).collect()
}

fn functions(recording: &heap::HeapRecording, site: usize) -> Vec<String> {
    let frames = frames(recording, &recording.sites[site]);
    frames.iter().map(|frame| frame.function.clone().unwrap_or_else(|| "?".into())).collect()
}

#[test]
fn functions_inlined_calls_and_lines_are_those_that_addr2line_prints() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie"]] {
        let Some(program) = MappedProgram::build(folder.path(), "calls", flags) else { return };
        let mut returns = Vec::new();
        for function in ["innermost", "outer", "main"] {
            let Some(found) = program.returns(function) else { return };
            returns.extend(found);
        }
        let recording = resolved(&recording(program.module(), &returns));
        assert_eq!(recording.lacks, []);
        let mut inlined = 0;
        for (behind, site) in returns.iter().zip(&recording.sites) {
            let Some(told) = program.told(*behind) else { return };
            let found: Vec<(String, u32)> = frames(&recording, site)
                .iter()
                .map(|it| (it.function.clone().unwrap(), it.line.as_ref().unwrap().number))
                .collect();
            assert_eq!(found, told, "{behind:#x} {flags:?}");
            inlined += usize::from(found.len() > 1);
        }
        assert!(inlined > 0, "nothing was inlined");
    }
}

#[test]
fn another_build_at_the_same_path_is_not_used_and_the_reason_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = MappedProgram::build(folder.path(), "calls", &[]) else { return };
    let Some(returns) = program.returns("outer") else { return };
    let Some(other) = MappedProgram::build(folder.path(), "other", &["-O3", "-DNDEBUG"]) else {
        return;
    };
    assert_ne!(program.build_id, other.build_id);
    fs::rename(&other.path, &program.path).unwrap();
    let found = resolved(&recording(program.module(), &returns));
    assert_eq!(functions(&found, 0), ["?"]);
    let frame = frames(&found, &found.sites[0])[0];
    // The address of a frame is that of the call, in the file's own addresses.
    assert_eq!((frame.offset, frame.module.is_some()), (returns[0] - 1, true));
    let [Absent::NotCollected(what)] = &found.lacks[..] else { panic!("{:?}", found.lacks) };
    assert!(what.contains("another build"), "{what}");

    fs::remove_file(&program.path).unwrap();
    let gone = resolved(&recording(program.module(), &returns));
    let [Absent::NotCollected(what)] = &gone.lacks[..] else { panic!("{:?}", gone.lacks) };
    assert!(what.contains("cannot be read"), "{what}");
}

#[test]
fn a_file_without_a_build_id_is_used_unless_it_was_changed_since() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = MappedProgram::build(folder.path(), "calls", &[]) else { return };
    let Some(()) =
        tool("objcopy", &["--remove-section", ".note.gnu.build-id"], &program.path).map(|_| ())
    else {
        return;
    };
    let Some(returns) = program.returns("outer") else { return };
    let module = LogModule { build_id: Vec::new(), ..program.module() };
    let mut raw = recording(module, &returns);
    assert_eq!(functions(&resolved(&raw), 0).last().unwrap(), "outer");
    raw.begin.began_ns = 1_000_000_000;
    let found = resolved(&raw);
    assert_eq!(functions(&found, 0), ["?"]);
    assert!(matches!(&found.lacks[..], [Absent::NotCollected(what)] if what.contains("changed")));
}

#[test]
fn debugging_information_is_found_by_build_id_after_the_program_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = MappedProgram::build(folder.path(), "calls", &[]) else { return };
    let Some(returns) = program.returns("outer") else { return };
    let hex: String = program.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let debug = folder.path().join(".build-id").join(&hex[..2]);
    fs::create_dir_all(&debug).unwrap();
    let debug = debug.join(format!("{}.debug", &hex[2..]));
    let mut copy = Command::new("objcopy");
    copy.arg("--only-keep-debug").arg(&program.path).arg(&debug);
    if !copy.status().is_ok_and(|status| status.success()) {
        return skip(&Lack::Tool("objcopy"));
    }
    let Some(told) = program.told(returns[0]) else { return };
    fs::remove_file(&program.path).unwrap();
    let mut symbols = FileSymbols::with_debug_folders(&[folder.path().to_owned()]);
    let found = resolve(&recording(program.module(), &returns), None, &mut symbols);
    let names: Vec<String> = told.into_iter().map(|(name, _)| name).collect();
    assert_eq!(functions(&found, 0), names);
    assert_eq!(found.lacks, []);
}

/// Calls outside of any file: each frame has only an address.
fn bare(parents: &[(u32, u64)]) -> LogRecording {
    let place =
        |(_, address): &(u32, u64)| LogAddress { address: *address, exact: false, module: None };
    let number = |at: usize| u32::try_from(at).unwrap();
    let node = |(at, (parent, _)): (usize, &(u32, u64))| LogCallNode {
        parent: *parent,
        place: number(at),
    };
    LogRecording {
        begin: Begin { page_size: 4096, ..Begin::default() },
        places: parents.iter().map(place).collect(),
        nodes: parents.iter().enumerate().map(node).collect(),
        ..LogRecording::default()
    }
}

fn addresses(recording: &heap::HeapRecording, site: usize) -> Vec<u64> {
    frames(recording, &recording.sites[site]).iter().map(|frame| frame.offset).collect()
}

#[test]
fn sites_whose_stacks_look_alike_become_one() {
    // Two equal call stacks of different nodes, and one of them with the kind `Mapping`.
    let mut raw = bare(&[(ROOT, 10), (0, 20), (ROOT, 10), (2, 20)]);
    let site = |node, kind| LogSite { node, kind };
    raw.sites = vec![
        site(1, LogKind::Heap),
        site(3, LogKind::Heap),
        site(1, LogKind::Mapping),
        site(ROOT, LogKind::Heap),
    ];
    raw.counts.sites = vec![counted(100, 10), counted(50, 5), counted(7, 7), counted(1, 0)];
    let tree = LogLiveTree {
        sites: vec![(0, amount(30, 3)), (2, amount(25, 1)), (1, amount(20, 2))],
        others: amount(5, 1),
    };
    raw.moments = vec![LogSnapshot { tree: Some(tree), ..LogSnapshot::default() }];
    let found = resolved(&raw);
    assert_eq!(found.sites.len(), 3);
    assert_eq!(addresses(&found, 0), [20, 10]);
    let sums = heap::HeapAmount { bytes: 150, blocks: 4 };
    assert_eq!(found.sites[0].allocated, sums);
    assert_eq!(found.sites[0].leaked().bytes, 135);
    assert_eq!((found.sites[0].temporary, found.sites[0].at_peak.bytes), (2, 75));
    assert_eq!(addresses(&found, 2), [0_u64; 0]);
    assert_eq!(found.totals.allocated.bytes, 158);
    assert_eq!(found.totals.leaked.bytes, 136);
    let tree = found.moments[0].tree.as_ref().unwrap();
    let amounts: Vec<(u32, u64)> = tree.sites.iter().map(|(site, it)| (*site, it.bytes)).collect();
    assert_eq!((amounts, tree.others.bytes), (vec![(0, 50), (1, 25)], 5));
}

#[test]
fn the_recorder_is_left_out_where_it_is_innermost() {
    let mut raw = bare(&[(ROOT, 10), (0, 20), (1, 30)]);
    let path = b"/usr/lib/libpagewise_preload.so".to_vec();
    raw.modules = vec![LogModule { path, ..LogModule::default() }];
    raw.places[2].module = Some(0);
    raw.sites = vec![LogSite { node: 2, kind: LogKind::Heap }];
    let found = resolved(&raw);
    assert_eq!(addresses(&found, 0), [20, 10]);
    assert_eq!(found.lacks, [], "nobody asks for its functions");
}

#[test]
fn errors_of_samples_add_up_as_squares() {
    let mut raw = bare(&[(ROOT, 10)]);
    raw.begin.every_bytes = 1000;
    raw.sites = vec![LogSite { node: 0, kind: LogKind::Heap }; 2];
    raw.counts.sites = vec![
        LogSiteCounts { errors: (3.0, 0.0), ..counted(10, 0) },
        LogSiteCounts { errors: (4.0, 1.0), ..counted(10, 0) },
    ];
    let found = resolved(&raw);
    assert_eq!(found.every_bytes, Some(1000));
    assert_eq!(found.sites[0].errors, Some((5.0, 1.0)));
    assert_eq!(found.totals.errors, Some((5.0, 1.0)));
}

#[test]
fn memory_of_the_recorder_is_not_the_programs() {
    let mut raw = bare(&[]);
    let resident =
        |recorder| LogResident { anonymous: 1000, file: 10, shmem: 5, swap: 1, recorder };
    let moment = |resident| LogSnapshot { resident, held: None, ..LogSnapshot::default() };
    raw.moments =
        vec![moment(Some(resident(Some(400)))), moment(Some(resident(None))), moment(None)];
    raw.moments[0].held = Some(7);
    let found = resolved(&raw);
    let rss: Vec<Option<u64>> = found
        .moments
        .iter()
        .map(|it| it.resident.as_ref().ok().map(heap::ResidentBytes::rss))
        .collect();
    assert_eq!(rss, [Some(615), Some(1015), None]);
    assert_eq!(found.moments[0].held, Ok(Bytes(7)));
    assert!(found.moments[1].held.is_err());
}

#[test]
fn a_reading_of_an_exited_process_is_discarded() {
    let mut raw = bare(&[]);
    let resident = Some(LogResident { anonymous: 1000, ..LogResident::default() });
    let moment = |held, resident| LogSnapshot {
        live: amount(500, 1),
        held: Some(held),
        resident,
        ..LogSnapshot::default()
    };
    // Earlier recorders wrote, at exit, a footprint without the mappings.
    raw.moments =
        vec![moment(700, resident), moment(0, None), moment(400, None), moment(600, None)];
    let found = resolved(&raw);
    let held: Vec<Option<u64>> =
        found.moments.iter().map(|it| it.held.as_ref().ok().map(|held| held.0)).collect();
    assert_eq!(held, [Some(700), None, None, Some(600)]);
    let Err(why) = &found.moments[1].held else { panic!("{:?}", found.moments[1]) };
    assert!(why.to_string().contains("had ended"), "{why}");
}

#[test]
fn moments_after_the_last_counts_say_what_happened_in_all() {
    let mut raw = bare(&[(ROOT, 10), (ROOT, 20)]);
    raw.sites =
        vec![LogSite { node: 0, kind: LogKind::Heap }, LogSite { node: 1, kind: LogKind::Heap }];
    raw.counts.time_ns = 1_000;
    raw.counts.sites = vec![counted(100, 0)];
    raw.counts.peak = amount(60, 1);
    let tree = LogLiveTree { sites: vec![(1, amount(400, 4))], others: amount(100, 1) };
    let moment = |time_ns, bytes, tree| LogSnapshot {
        time_ns,
        live: amount(bytes, 5),
        allocated: amount(900, 9),
        tree,
        ..LogSnapshot::default()
    };
    raw.moments = vec![moment(2_000, 500, Some(tree)), moment(3_000, 300, None)];
    let cut = Cut { offset: 77, why: "it is cut off" };
    let found = resolve(&raw, Some(&cut), &mut FileSymbols::default());
    assert_eq!(found.ending, heap::HeapEnding::CutOff);
    assert_eq!((found.totals.allocated.bytes, found.totals.leaked.bytes), (900, 300));
    assert_eq!((found.totals.peak.bytes, found.peak_at_ns), (500, Ok(2_000)));
    let at_peak: Vec<u64> = found.sites.iter().map(|site| site.at_peak.bytes).collect();
    assert_eq!(at_peak, [0, 400]);
    let lacks: Vec<String> = found.lacks.iter().map(ToString::to_string).collect();
    assert!(lacks.iter().any(|lack| lack.contains("after byte 77: it is cut off")), "{lacks:?}");
}

#[test]
fn invalid_entries_are_ignored() {
    // A reader rejects all of these. A recording from another source must not cause a panic.
    let mut raw = bare(&[(0, 10), (5, 20), (1, 30)]);
    raw.nodes[2].place = 99;
    raw.places[0].module = Some(4);
    raw.begin.page_size = 0;
    raw.sites = (0..9).map(|node| LogSite { node, kind: LogKind::Pool }).collect();
    raw.counts.sites = vec![counted(u64::MAX, 1); 9];
    let tree = LogLiveTree { sites: vec![(77, amount(1, 1))], others: amount(0, 0) };
    raw.moments = vec![LogSnapshot { tree: Some(tree), ..LogSnapshot::default() }];
    let found = resolved(&raw);
    assert_eq!(found.totals.allocated.bytes, u64::MAX);
    let known: BTreeMap<u32, usize> = found.sites.iter().map(|site| (site.stack, 1)).collect();
    assert!(known.len() <= found.stacks.len());
}

#[test]
fn endless_recursion_is_kept_to_its_innermost_calls() {
    let parents: Vec<(u32, u64)> =
        (0..5_000_u32).map(|at| (at.checked_sub(1).unwrap_or(ROOT), u64::from(at))).collect();
    let mut raw = bare(&parents);
    raw.sites = vec![LogSite { node: 4_999, kind: LogKind::Heap }];
    let found = resolved(&raw);
    let calls = addresses(&found, 0);
    assert_eq!((calls.len(), calls[0], calls[1023]), (1024, 4_999, 3_976));
}
