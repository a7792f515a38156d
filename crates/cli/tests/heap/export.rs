//! `heap export` and the page of `heap report`: exports of a recording with known counts, read by
//! other tools and a browser. The crate of the formats tests the numbers in each format.

use crate::fixture;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagewise_heaplog::LogWriter;
use pagewise_heaplog::recording::{
    Begin, LogAddress, LogAmount, LogCallNode, LogCounts, LogEnd, LogEnding, LogKind, LogLiveTree,
    LogModule, LogResident, LogSite, LogSiteCounts, LogSnapshot, LogThread, ROOT,
};
use tempfile::TempDir;

use pagewise_skip::{Lack, skip};

use fixture::{disk, pagewise, program, tool};

const MIB: u64 = 1 << 20;

fn amount(bytes: u64, blocks: u64) -> LogAmount {
    LogAmount { bytes, blocks }
}

/// Returns the addresses of a program's functions, by `nm`.
fn functions(path: &Path) -> Option<BTreeMap<String, u64>> {
    let listed = tool("nm", &[path.to_str().unwrap()])?;
    let function = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        matches!(words.next()?, "t" | "T").then_some(())?;
        Some((words.next()?.to_owned(), address))
    };
    Some(listed.lines().filter_map(function).collect())
}

/// Writes a recording of 8 seconds of a program in which these functions allocate:
/// - `touch_three`: 3 blocks of 1 MiB each second. In the fourth second, 8 of its blocks are freed,
///   and in each later second 2 blocks.
/// - `touch_one`: 100 temporary blocks of 1000 bytes each second.
/// - `main`: 1 MiB once, which is never freed.
fn recorded() -> Option<(TempDir, String)> {
    let path = program("faults");
    let known = functions(&path)?;
    let begin = Begin {
        pid: 4242,
        parent: 1,
        // The recording begins after the program was built: a file that is newer than a recording
        // counts as another file.
        began_ns: 4_000_000_000_000_000_000,
        page_size: 4096,
        command: vec![b"./faults".to_vec(), b"ratio".to_vec()],
        program: path.as_os_str().as_bytes().to_vec(),
        allocator: b"glibc 2.36".to_vec(),
        ..Begin::default()
    };
    let file = path.as_os_str().as_bytes().to_vec();
    let module = LogModule { path: file, build_id: Vec::new(), start: 0, end: 1 << 40, bias: 0 };
    let mut writer = LogWriter::create(Vec::new(), &begin).unwrap();
    writer.modules(&[module]).unwrap();
    let place = |name: &str| LogAddress { address: known[name] + 5, exact: false, module: Some(0) };
    writer.places(&["main", "touch_three", "touch_one"].map(place)).unwrap();
    let node = |parent, place| LogCallNode { parent, place };
    writer.nodes(&[node(ROOT, 0), node(0, 1), node(0, 2)]).unwrap();
    let site = |node| LogSite { node, kind: LogKind::Heap };
    writer.sites(&[site(1), site(2), site(0)]).unwrap();
    let mut counts =
        LogCounts { sizes: vec![0; 65], lifetimes: vec![0; 65], ..LogCounts::default() };
    counts.sites = vec![LogSiteCounts::default(); 3];
    let add = |to: &mut LogAmount, bytes: u64, blocks: u64| {
        *to = amount(to.bytes + bytes, to.blocks + blocks);
    };
    for second in 1..=8 {
        let [three, one, main] = &mut counts.sites[..] else { unreachable!() };
        if second == 1 {
            add(&mut main.allocated, MIB, 1);
        }
        add(&mut three.allocated, 3 * MIB, 3);
        add(&mut one.allocated, 100_000, 100);
        add(&mut one.freed, 100_000, 100);
        one.temporary += 100;
        if second == 4 {
            three.at_peak = three.allocated;
            main.at_peak = main.allocated;
            counts.peak = amount(13 * MIB, 13);
            counts.peak_at_ns = Some(4_000_000_000);
            add(&mut three.freed, 8 * MIB, 8);
        } else if second > 4 {
            add(&mut three.freed, 2 * MIB, 2);
        }
        let live = amount(
            three.allocated.bytes - three.freed.bytes + MIB,
            three.allocated.blocks - three.freed.blocks + 1,
        );
        let tree = vec![(0, amount(live.bytes - MIB, live.blocks - 1)), (2, amount(MIB, 1))];
        let moment = LogSnapshot {
            time_ns: second * 1_000_000_000,
            live,
            allocated: amount(
                three.allocated.bytes + one.allocated.bytes + MIB,
                three.allocated.blocks + one.allocated.blocks + 1,
            ),
            held: Some(live.bytes.max(13 * MIB * u64::from(second > 3)) + MIB),
            resident: Some(LogResident {
                anonymous: live.bytes + 2 * MIB,
                file: 3 * MIB,
                ..LogResident::default()
            }),
            tree: Some(LogLiveTree { sites: tree, others: LogAmount::default() }),
            older_freed: None,
        };
        writer.moment(&moment).unwrap();
        counts.time_ns = moment.time_ns;
    }
    (counts.sizes[21], counts.sizes[10]) = (25, 800);
    let [three, one, main] = &counts.sites[..] else { unreachable!() };
    let all = |of: fn(&LogSiteCounts) -> LogAmount| {
        let all = [three, one, main].map(of);
        all.iter().fold(LogAmount::default(), |a, b| amount(a.bytes + b.bytes, a.blocks + b.blocks))
    };
    let (allocated, freed) = (all(|it| it.allocated), all(|it| it.freed));
    counts.threads = vec![LogThread { tid: 4242, name: b"faults".to_vec(), allocated, freed }];
    writer.counts(&counts).unwrap();
    let bytes = writer.end(&LogEnd { time_ns: 8_500_000_000, how: LogEnding::Exited(0) }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heap.pwh");
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    Some((folder, path))
}

#[test]
fn every_format_is_written_at_once() {
    let Some((folder, heap)) = recorded() else { return };
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let names = ["massif", "heaptrack", "perfetto", "pprof", "collapsed", "flamegraph"];
    let options = names.map(|name| [format!("--{name}"), at(name)]).concat();
    let args = [&["heap".to_owned(), "export".to_owned(), heap][..], &options].concat();
    let output = pagewise(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0));
    let read = |name: &str| fs::read_to_string(at(name)).unwrap();
    assert_eq!(read("collapsed"), format!("main {MIB}\nmain;touch_three {}\n", 12 * MIB));
    assert!(read("flamegraph").contains("Heap of ./faults ratio: bytes at the peak"));
    assert!(read("perfetto").contains("\"held bytes\""));
    if let Some(massif) = tool("ms_print", &[&at("massif")]) {
        assert!(massif.contains("12,582,912B) 0x") && massif.contains(": touch_three (faults.c:"));
        assert!(massif.contains("(peak)"), "{massif}");
    }
    if let Some(heaptrack) = tool("heaptrack_print", &[&at("heaptrack")]) {
        assert!(heaptrack.contains("calls to allocation functions: 825 "), "{heaptrack}");
        assert!(heaptrack.contains("temporary memory allocations: 800 "), "{heaptrack}");
        assert!(heaptrack.contains("peak heap memory consumption: 13.63M"), "{heaptrack}");
        assert!(heaptrack.contains("total memory leaked: 9.44M"), "{heaptrack}");
        assert!(heaptrack.contains("peak RSS (including heaptrack overhead): 15.73M"));
    }
    let args = ["tool", "pprof", "-symbolize=none", "-sample_index=peak_space", "-unit=B", "-top"];
    if let Some(top) = tool("go", &[&args[..], &[&at("pprof")]].concat()) {
        assert!(top.contains("12582912B 92.31% 92.31%  12582912B 92.31%  touch_three"), "{top}");
    }
}

#[test]
fn one_format_goes_to_standard_output_and_only_one() {
    let Some((folder, heap)) = recorded() else { return };
    let output = pagewise(&["heap", "export", &heap, "--collapsed", "--of", "temporary"]);
    assert_eq!(output.stdout, b"main;touch_one 800\n");
    let path = folder.path().join("heap.gz");
    let path = path.to_str().unwrap();
    assert!(pagewise(&["heap", "export", &heap, "--heaptrack", "-o", path]).status.success());
    assert_eq!(fs::read(path).unwrap()[..2], [0x1f, 0x8b]);
    let two = pagewise(&["heap", "export", &heap, "--collapsed", "--massif"]);
    assert_eq!(two.status.code(), Some(1));
    let none = pagewise(&["heap", "export", &heap]);
    assert_eq!(none.status.code(), Some(2));
    let missing = pagewise(&["heap", "export", "/no/such/file", "--massif"]);
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn the_page_of_a_report_has_what_can_be_looked_into() {
    let Some((folder, heap)) = recorded() else { return };
    let path = folder.path().join("heap.html");
    let output = pagewise(&["heap", "report", &heap, "--html", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(&path).unwrap();
    assert_eq!(page.matches("id=\"heap-data\"").count(), 1);
    assert!(page.contains("touch_three") && page.contains("<noscript>"));
    // A browser fetches nothing: the page is self-contained.
    assert!(!page.contains("src=") && !page.contains("<link"), "something is loaded");
}

/// Opens a file in a viewer without a screen, until a time limit ends the viewer. Tries again with
/// a longer limit if the viewer did not print an expected text. Returns the messages of the viewer;
/// `None`, after recording a skip, if it cannot run.
fn viewed(name: &str, file: &Path, expected: &str) -> Option<String> {
    let window = |seconds: &str, words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([seconds, name]).args(words).env("QT_QPA_PLATFORM", "offscreen");
        let folder = file.parent().unwrap();
        command.env("HOME", folder).env("XDG_RUNTIME_DIR", folder).output().unwrap()
    };
    let version = window("120", &["--version"]);
    if version.status.code() == Some(127) {
        skip(&Lack::Tool(name));
        return None;
    }
    if !version.status.success() {
        skip(&Lack::Ability { of: name, what: "cannot do without a screen" });
        return None;
    }
    let mut printed = String::new();
    // On a busy machine, the viewer starts slowly.
    for seconds in ["10", "40", "120"] {
        let shown = window(seconds, &[file.to_str().unwrap()]);
        printed = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert_eq!(shown.status.code(), Some(124), "{printed}");
        if printed.contains(expected) {
            break;
        }
    }
    Some(printed)
}

/// Records `course` and exports the heap in a format.
fn exported(folder: &Path, format: &str, name: &str) -> PathBuf {
    let (heap, file) = (folder.join("heap.pwh"), folder.join(name));
    run(&heap, &program("course"));
    let to = file.to_str().unwrap();
    let output = pagewise(&["heap", "export", heap.to_str().unwrap(), format, to]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

/// heaptrack_gui crashes on files whose kinds of allocations are not numbered in the order of their
/// first use.
#[test]
fn heaptracks_own_window_opens_an_export() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let file = exported(folder.path(), "--heaptrack", "ours.heaptrack");
    viewed("heaptrack_gui", &file, "");
}

#[test]
fn massif_visualizer_reads_an_export() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let file = exported(folder.path(), "--massif", "massif.out");
    let Some(printed) = viewed("massif-visualizer", &file, "peak cost:") else { return };
    // The viewer prints the number of snapshots and the peak that it has read.
    let massif = fs::read_to_string(&file).unwrap();
    let moments = massif.lines().filter(|line| line.starts_with("snapshot=")).count();
    let line =
        |begin: &str| printed.lines().find_map(|line| line.strip_prefix(begin)).map(str::trim);
    assert_eq!(line("snapshots:"), Some(moments.to_string().as_str()), "{printed}");
    assert!(line("loaded massif file:").is_some(), "{printed}");
    let peak = massif.split("heap_tree=peak").next().unwrap();
    let peak = peak.rsplit("mem_heap_B=").next().unwrap().lines().next().unwrap();
    let kib = peak.parse::<f64>().unwrap() / 1024.0;
    let cost = match kib < 1024.0 {
        true => format!("\"{kib:.1} KiB\" heap"),
        false => format!("\"{:.1} MiB\" heap", kib / 1024.0),
    };
    assert!(line("peak cost:").is_some_and(|it| it.starts_with(&cost)), "{cost}: {printed}");
}

/// Returns the page of the installed speedscope; `None`, after recording a skip, if it is not
/// installed.
fn speedscope() -> Option<PathBuf> {
    let found =
        Command::new("sh").args(["-c", "readlink -f \"$(command -v speedscope)\""]).output();
    let command = PathBuf::from(String::from_utf8(found.unwrap().stdout).unwrap().trim_end());
    let page = command.ancestors().nth(2).map(|it| it.join("dist/release/index.html"));
    let page = page.filter(|page| page.exists());
    if page.is_none() {
        skip(&Lack::Machine("speedscope is not installed: `npm install --global speedscope`"));
    }
    page
}

/// The page loads files as the command speedscope does: from a script that has the bytes in base64.
#[test]
fn speedscope_imports_collapsed_stacks_and_pprof() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let Some(page) = speedscope() else { return };
    for (format, name) in [("--collapsed", "ours.folded"), ("--pprof", "ours.pb.gz")] {
        let file = exported(folder.path(), format, name);
        let Some(bytes) = tool("base64", &["--wrap=0", file.to_str().unwrap()]) else { return };
        let script = folder.path().join("load.js");
        fs::write(&script, format!("speedscope.loadFileFromBase64('{name}', '{bytes}')")).unwrap();
        let address = format!("file://{}#localProfilePath={}", page.display(), script.display());
        let args = [
            "--headless",
            "--no-sandbox",
            "--enable-unsafe-swiftshader",
            "--allow-file-access-from-files",
            "--virtual-time-budget=20000",
            "--dump-dom",
            &address,
        ];
        let Some(shown) = tool("chromium", &args) else { return };
        // The title has the name of the file once the file is imported.
        assert!(shown.contains(&format!("<title>{name} - speedscope")), "{name}: {shown}");
    }
}

/// Returns the numbers by call stack from `main` on that `heaptrack_print` prints for a file.
fn by_stack(file: &Path, of: &str) -> Option<BTreeMap<String, u64>> {
    let stacks = file.with_extension(of);
    let told = stacks.to_str().unwrap();
    let file = file.to_str().unwrap();
    tool("heaptrack_print", &["-f", file, "--flamegraph-cost-type", of, "-F", told])?;
    let mut by_stack = BTreeMap::new();
    for line in fs::read_to_string(&stacks).unwrap().lines() {
        let (stack, number) = line.rsplit_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        // Allocations of heaptrack's own library are not below `main`.
        if let Some((_, below)) = stack.split_once("main (course.c)").filter(|_| number > 0) {
            let names = below.split(';').filter_map(|frame| frame.split(' ').next());
            let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
            *by_stack.entry(names.join(";")).or_default() += number;
        }
    }
    Some(by_stack)
}

/// Compares two recorders on the same program. The comparison includes the recorder, the file, the
/// functions and the events that the export adds.
#[test]
fn heaptracks_own_record_of_a_program_says_the_same_by_call_stack() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let course = program("course");
    let theirs = folder.path().join("theirs");
    let words = ["-o", theirs.to_str().unwrap(), course.to_str().unwrap()];
    if tool("heaptrack", &words).is_none() {
        return;
    }
    let packed = ["zst", "gz"].map(|end| theirs.with_extension(end));
    let theirs = packed.into_iter().find(|path| path.exists()).expect("heaptrack wrote a file");
    let heap = folder.path().join("heap.pwh");
    let ours = folder.path().join("ours.heaptrack");
    run(&heap, &course);
    let to = ours.to_str().unwrap();
    let output = pagewise(&["heap", "export", heap.to_str().unwrap(), "--heaptrack", to]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for of in ["allocations", "temporary", "leaked", "peak"] {
        let [theirs, ours] = [&theirs, &ours].map(|path| by_stack(path, of).unwrap());
        assert!(!theirs.is_empty(), "{of}");
        assert_eq!(theirs, ours, "{of}");
    }
}

/// Returns the bytes at the peak of a massif file: of the root, and of each branch that ends in
/// `main`, by the names of its functions from the allocating function on.
fn at_peak(massif: &str) -> BTreeMap<String, u64> {
    let tree = massif.split("heap_tree=peak\n").nth(1).expect("there is a peak");
    let mut path: Vec<&str> = Vec::new();
    let mut branches = BTreeMap::new();
    for line in tree.lines().take_while(|line| line.trim_start().starts_with('n')) {
        let depth = line.len() - line.trim_start().len();
        let (_, rest) = line.split_once(": ").unwrap();
        let (bytes, label) = rest.split_once(' ').unwrap();
        let function =
            label.split_once(": ").map_or("", |(_, name)| name.split(' ').next().unwrap());
        path.truncate(depth);
        path.push(function);
        let bytes: u64 = bytes.parse().unwrap();
        if bytes > 0 && (depth == 0 || function == "main") {
            branches.insert(path.join(";"), bytes);
        }
    }
    branches
}

#[test]
fn massifs_own_peak_of_a_program_is_the_same_by_call_stack() {
    let folder = tempfile::tempdir_in(disk()).unwrap();
    let course = program("course");
    let [theirs, heap] = ["massif.out", "heap.pwh"].map(|name| folder.path().join(name));
    let out = format!("--massif-out-file={}", theirs.display());
    let exact = ["--tool=massif", "--peak-inaccuracy=0.0", "--threshold=0.0", &out];
    if tool("valgrind", &[&exact[..], &[course.to_str().unwrap()]].concat()).is_none() {
        return;
    }
    run(&heap, &course);
    let args = ["heap", "export", heap.to_str().unwrap(), "--massif", "--threshold", "0"];
    let ours = String::from_utf8(pagewise(&args).stdout).unwrap();
    let theirs = fs::read_to_string(theirs).unwrap();
    assert_eq!(at_peak(&ours), at_peak(&theirs));
    assert_eq!(at_peak(&ours).len(), 4, "{ours}");
}

/// Records a program into a file.
fn run(heap: &Path, program: &Path) {
    let words = ["run", "-o", heap.to_str().unwrap(), "--", program.to_str().unwrap()];
    let output = fixture::recorder::heap(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
