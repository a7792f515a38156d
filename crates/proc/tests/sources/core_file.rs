//! Core files of the kernel and of gdb, compared with earlier `/proc/PID/maps`, with `readelf`,
//! with `gdb`, and with the facts that the program prints about its own memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use pagewise_model::core_dump::{CoreCompression, CoreWriter, SignalCause};
use pagewise_model::object::OnDisk;
use pagewise_model::{Absent, AddrRange, Mapping, Prot, Snapshot};
use pagewise_proc::core_file::{self, CoreFile, DecompressBounds, ImageFiles};
use pagewise_proc::{ProcError, maps};
use pagewise_skip::{Lack, skip, skip_part};
use tempfile::TempDir;

/// The built program `crashing`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/programs/crashing.c");
        let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crashing");
        let build = ["-O1", "-pthread", "-Wl,--build-id", "-o"];
        let status = Command::new("cc").args(build).arg(&built).arg(source).status().unwrap();
        assert!(status.success());
        built
    })
}

/// The running program in a folder of its own, after it has printed its facts.
struct Crashing {
    child: Child,
    facts: BTreeMap<String, u64>,
    maps: Vec<Mapping>,
    folder: TempDir,
}

impl Crashing {
    fn start(mode: &str) -> Crashing {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // The limit applies to the child only: the shell sets the limit and executes the program.
        let script = "ulimit -c unlimited; ulimit -s 1024; exec \"$0\" \"$1\"";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(program())
            .arg(mode)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut facts = BTreeMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            match line.split_once(" = ") {
                Some((key, value)) => _ = facts.insert(key.to_owned(), value.parse().unwrap()),
                None => break,
            }
        }
        let text = fs::read(format!("/proc/{}/maps", child.id())).unwrap();
        let maps = maps::parse(&text).mappings;
        Crashing { child, facts, maps, folder }
    }

    fn fact(&self, key: &str) -> u64 {
        self.facts[key]
    }

    /// Lets the program end, and returns the core file of the kernel; `None` if the machine does
    /// not write core files to the program's folder.
    fn dumped(&mut self) -> Option<PathBuf> {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
        if pattern.starts_with('|') || pattern.starts_with('/') || pattern.trim().is_empty() {
            skip(&Lack::Machine("kernel.core_pattern writes no core file into the current folder"));
            return None;
        }
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let others = ["mapped"];
        let core = entries.map(|entry| entry.unwrap()).find(|entry| {
            let name = entry.file_name();
            !others.contains(&name.to_str().unwrap_or_default())
        });
        Some(core.unwrap_or_else(|| panic!("no core file: {status}, {pattern}")).path())
    }

    /// A core file of gdb, of the living process.
    fn gcore(&self) -> Option<PathBuf> {
        let prefix = self.folder.path().join("gcore");
        let pid = self.child.id().to_string();
        let Ok(output) = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output() else {
            skip(&Lack::Tool("gcore"));
            return None;
        };
        let path = self.folder.path().join(format!("gcore.{pid}"));
        assert!(path.exists(), "{output:?}");
        Some(path)
    }
}

impl Drop for Crashing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(path: &Path) -> (CoreFile, ImageFiles, Snapshot) {
    let bounds = DecompressBounds { folder: path.parent().unwrap().into(), ..Default::default() };
    let core = CoreFile::open(path, &bounds).unwrap();
    let images = ImageFiles::find(&core, None).unwrap();
    let snapshot = core_file::snapshot(&core, &images);
    (core, images, snapshot)
}

fn has_pattern(core: &CoreFile, start: u64, size: u64) -> bool {
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    core.read(start, &mut bytes)
        && bytes.iter().enumerate().all(|(i, byte)| *byte == (7 * i).to_le_bytes()[0])
}

type MapsLine = (u64, u64, Prot, Vec<u8>, u64);

/// Values that both a core of the kernel and `maps` contain for each mapping. The main stack may
/// have grown.
fn lines(mappings: &[Mapping]) -> Vec<MapsLine> {
    let line = |mapping: &Mapping| {
        let is_stack = mapping.name.as_bytes() == b"[stack]";
        let start = if is_stack { mapping.range.end } else { mapping.range.start };
        // The kernel has several names for its data pages, which a core does not show.
        let name = match mapping.name.as_bytes() {
            name if name.starts_with(b"[vvar") => b"[vvar]".to_vec(),
            name => name.to_vec(),
        };
        let offset = if name.starts_with(b"/") { mapping.offset } else { 0 };
        (start, mapping.range.end, mapping.prot, name, offset)
    };
    mappings.iter().map(line).collect()
}

#[test]
fn a_core_of_the_kernel_has_the_mappings_of_maps() {
    let mut process = Crashing::start("null");
    let Some(path) = process.dumped() else { return };
    let (core, _, snapshot) = open(&path);
    assert_eq!(lines(snapshot.mappings.as_ref().unwrap()), lines(&process.maps));
    let dump = snapshot.core.as_ref().unwrap();
    assert_eq!(dump.writer, CoreWriter::Kernel);
    assert_eq!(snapshot.process.pid.0, process.child.id());
    assert_eq!(snapshot.process.name.as_bytes(), b"crashing");
    assert_eq!(snapshot.provenance.page_size.bytes(), process.fact("process.page_size"));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let kernel = snapshot.provenance.kernel.escaped().into_owned();
    assert!(!kernel.is_empty() && release.starts_with(&kernel), "{kernel} {release}");

    let signal = dump.signal.unwrap();
    assert_eq!((signal.number, signal.code), (11, Some(1)));
    assert_eq!(signal.cause, SignalCause::Address(16));
    assert_eq!(signal.tid.0, process.child.id());
    for name in ["pattern", "bss", "brk_block", "shared_anonymous"] {
        let [start, size] = ["start", "size"].map(|key| process.fact(&format!("{name}.{key}")));
        assert!(has_pattern(&core, start, size), "{name}");
    }
    // Memory that was not dumped cannot be read: it must not look zero-filled.
    let secret = process.fact("undumped.start");
    assert!(!core.read(secret, &mut [0]));
    assert!(!core.read(process.fact("private_file.start"), &mut [0]));
    let mappings = snapshot.mappings.unwrap();
    assert!(mappings.iter().all(|m| matches!(m.pss(), Err(Absent::NotRecorded(_)))));
    assert!(snapshot.statm.is_err() && snapshot.limits.is_err() && snapshot.rollup.is_err());
}

#[test]
fn threads_have_the_ids_registers_and_stacks_that_the_program_prints() {
    let mut process = Crashing::start("abort");
    let Some(path) = process.dumped() else { return };
    let (_, _, snapshot) = open(&path);
    let dump = snapshot.core.unwrap();
    let mappings = snapshot.mappings.unwrap();
    let mapping_of = |address| mappings.iter().find(|m| m.range.contains(address)).unwrap().range;
    let waiting = process.fact("waiting.tid");
    let thread = dump.threads.iter().find(|thread| u64::from(thread.tid.0) == waiting).unwrap();
    let address = process.fact("waiting.stack_address");
    assert_eq!(mapping_of(thread.stack_pointer), mapping_of(address));
    assert!(thread.stack_pointer <= address && address - thread.stack_pointer < 1000);
    // glibc keeps the descriptor of a thread at the end of its stack.
    assert!(mapping_of(address).contains(thread.thread_pointer));
    assert_eq!(dump.threads.len(), 2);
    assert_eq!(
        mapping_of(dump.threads[0].stack_pointer),
        mapping_of(process.fact("main_stack.address"))
    );
    let signal = dump.signal.unwrap();
    assert_eq!((signal.number, signal.tid), (6, dump.threads[0].tid));
    assert!(matches!(signal.cause, SignalCause::Sender { pid, .. } if pid == signal.tid));
}

#[test]
fn gdb_reads_the_same_registers_and_files_from_a_core() {
    let mut process = Crashing::start("null");
    let Some(path) = process.dumped() else { return };
    let (core, _, snapshot) = open(&path);
    let commands = ["info proc mappings", "thread apply all -ascending p/x $sp"];
    let commands = commands.iter().flat_map(|command| ["-ex", command]);
    let arguments = [program().as_os_str(), path.as_os_str()];
    let Ok(output) =
        Command::new("gdb").args(["-nx", "-batch"]).args(commands).args(arguments).output()
    else {
        return skip(&Lack::Tool("gdb"));
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let pointers: Vec<u64> =
        text.lines().filter_map(|line| hex(line.rsplit_once(" = ")?.1)).collect();
    let threads = &snapshot.core.as_ref().unwrap().threads;
    let ours: Vec<u64> = threads.iter().map(|thread| thread.stack_pointer).collect();
    assert_eq!(pointers, ours, "{text}");
    let rows: Vec<(u64, u64, String)> = text.lines().filter_map(gdb_row).collect();
    let files = core.notes().files.as_ref().unwrap();
    let ours: Vec<(u64, u64, String)> = files
        .iter()
        .map(|file| (file.range.start, file.range.end, file.name.escaped().into_owned()))
        .collect();
    assert!(ours.len() > 8 && rows == ours, "{text}\n{ours:?}");
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// `start end size offset file` of `info proc mappings`.
fn gdb_row(line: &str) -> Option<(u64, u64, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let name = line.find(" /").map(|at| line[at + 1..].trim_end().to_owned())?;
    Some((hex(words.first()?)?, hex(words.get(1)?)?, name))
}

#[test]
fn readelf_prints_the_same_segments() {
    let mut process = Crashing::start("null");
    let Some(path) = process.dumped() else { return };
    let (core, ..) = open(&path);
    let Ok(output) = Command::new("readelf").args(["-lW"]).arg(&path).output() else {
        return skip(&Lack::Tool("readelf"));
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<[u64; 4]> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<u64> =
                line.trim().strip_prefix("LOAD ")?.split_whitespace().filter_map(hex).collect();
            let [offset, start, _, dumped, size, ..] = words[..] else { return None };
            Some([start, start.wrapping_add(size), offset, dumped])
        })
        .collect();
    let ours: Vec<[u64; 4]> = core
        .segments()
        .iter()
        .map(|it| [it.range.start, it.range.end, it.offset, it.dumped.0])
        .collect();
    assert!(rows.len() > 20 && rows == ours, "{text}");
}

#[test]
fn a_core_of_gdb_has_the_mappings_but_for_those_of_the_kernel() {
    let process = Crashing::start("wait");
    let Some(path) = process.gcore() else { return };
    let (core, _, snapshot) = open(&path);
    let dump = snapshot.core.as_ref().unwrap();
    assert_eq!((dump.writer, dump.signal), (CoreWriter::Gdb, None));
    // gdb omits [vvar] and memory that must not be dumped.
    let secret = process.fact("undumped.start");
    let expected = process.maps.iter().filter(|mapping| {
        !mapping.name.as_bytes().starts_with(b"[vvar") && mapping.range.start != secret
    });
    let expected: Vec<Mapping> = expected.cloned().collect();
    let simplified = |mappings: &[Mapping]| {
        let mut lines = lines(mappings);
        // gdb records [vsyscall] as readable, and no rights for files other than ELF files.
        lines.retain(|line| line.3 != b"[vsyscall]" && !line.3.ends_with(b"/mapped"));
        lines
    };
    assert_eq!(simplified(snapshot.mappings.as_ref().unwrap()), simplified(&expected));
    for name in ["pattern", "bss", "brk_block"] {
        let [start, size] = ["start", "size"].map(|key| process.fact(&format!("{name}.{key}")));
        assert!(has_pattern(&core, start, size), "{name}");
    }
    let remark = |part: &str| {
        let gaps = &snapshot.provenance.gaps;
        gaps.iter().any(|gap| gap.what.as_bytes() == part.as_bytes())
    };
    assert!(remark("access rights") && remark("guards") && remark("names of special mappings"));
}

/// Options before the name of the input, and options before the name of the output. A decoder
/// withholds the last window of a truncated file, so a small window makes it return more.
const ZSTD: [&[&str]; 2] = [&["-q", "-f", "--zstd=wlog=15"], &["-o"]];
/// Blocks of 64 KiB, as systemd-coredump writes.
const LZ4: [&[&str]; 2] = [&["-q", "-f", "-B4"], &[]];

#[test]
fn compressed_and_truncated_copies_give_what_they_hold() {
    let mut process = Crashing::start("null");
    let Some(path) = process.dumped() else { return };
    let (whole, _, expected) = open(&path);
    for (tool, extension, [options, before_output], compression) in
        [("zstd", "zst", ZSTD, CoreCompression::Zstd), ("lz4", "lz4", LZ4, CoreCompression::Lz4)]
    {
        let packed = path.with_extension(extension);
        let pack =
            Command::new(tool).args(options).arg(&path).args(before_output).arg(&packed).output();
        if !pack.is_ok_and(|output| output.status.success()) {
            skip_part(&Lack::Tool(tool));
            continue;
        }
        let (core, _, found) = open(&packed);
        assert_eq!(
            (found.mappings, found.threads),
            (expected.mappings.clone(), expected.threads.clone())
        );
        let dump = found.core.unwrap();
        assert_eq!((dump.compression, dump.size), (Some(compression), whole.size()));
        let [start, size] = ["start", "size"].map(|key| process.fact(&format!("pattern.{key}")));
        assert!(has_pattern(&core, start, size));

        // The complete blocks of a truncated file contain the first part of the core.
        let cut = packed.with_extension("cut");
        let bytes = fs::read(&packed).unwrap();
        fs::write(&cut, &bytes[..bytes.len() - 64]).unwrap();
        let (core, _, found) = open(&cut);
        assert!(core.size() < whole.size());
        let gaps = found.provenance.gaps.iter().map(|gap| gap.what.escaped().into_owned());
        assert!(gaps.collect::<Vec<_>>().contains(&"compressed data".to_owned()));
        assert!(core.segments().iter().any(|segment| segment.held < segment.dumped));
    }
    let cut = path.with_extension("cut");
    let bytes = fs::read(&path).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let (core, _, found) = open(&cut);
    assert_eq!(found.threads, expected.threads);
    let missing = core.segments().iter().map(|it| it.dumped.0 - it.held.0).sum::<u64>();
    assert!(missing > 0 && missing <= (bytes.len() - bytes.len() / 2) as u64);
}

#[test]
fn files_fill_in_what_a_core_leaves_out_if_their_build_ids_agree() {
    let mut process = Crashing::start("null");
    let Some(path) = process.dumped() else { return };
    let (core, images, snapshot) = open(&path);
    let constant = process.fact("constant.start");
    let mut bytes = [0; 8];
    assert!(!core.read(constant, &mut bytes), "read-only data is dumped nowhere by default");
    assert!(images.read(constant, &mut bytes) && &bytes == b"constant");
    // Memory that the program can write is never read from the file.
    assert!(!images.read(process.fact("bss.start"), &mut bytes));
    let exe = snapshot.process.exe.as_ref().unwrap();
    let object = snapshot.objects.iter().find(|object| object.name == *exe).unwrap();
    assert_eq!(object.on_disk, Ok(OnDisk::Same));
    let text = |range: AddrRange| images.ranges().any(|it| it == range);
    let mapped = snapshot.mappings.as_ref().unwrap();
    assert!(mapped.iter().any(|m| m.name == *exe && m.prot.exec && text(m.range)));

    let named = ImageFiles::find(&core, Some(program())).unwrap();
    assert!(named.read(constant, &mut bytes) && &bytes == b"constant");
    let other = ImageFiles::find(&core, Some(Path::new("/bin/sh"))).unwrap_err();
    assert!(matches!(other, ProcError::OtherProgram { .. }), "{other}");
}
