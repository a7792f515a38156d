//! Memory and heap of a core file, compared with the numbers that its program printed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic anywhere")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pagewise_model::AddrRange;
use pagewise_proc::core_file::{CoreFile, DecompressBounds, ImageFiles};
use pagewise_scan::core_image::CoreImage;
use pagewise_scan::glibc;
use pagewise_scan::memory::Memory;
use pagewise_skip::{Lack, skip};
use tempfile::TempDir;

/// The core file of a fixture program, and the numbers that it printed.
struct Dumped {
    core: PathBuf,
    numbers: BTreeMap<String, u64>,
    folder: TempDir,
}

/// Runs a program until it dumps core. `None` if the machine writes no core files there.
fn dumped(program: &str, mode: &str) -> Option<Dumped> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with('|') || pattern.starts_with('/') || pattern.trim().is_empty() {
        skip(&Lack::Machine("kernel.core_pattern writes no core file into the current folder"));
        return None;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let built = folder.path().join(program);
    let source = format!("{}/../../fixtures/programs/{program}.c", env!("CARGO_MANIFEST_DIR"));
    let flags = ["-O1", "-pthread", "-Wl,--build-id", "-o"];
    let status = Command::new("cc").args(flags).arg(&built).arg(source).status().unwrap();
    assert!(status.success());
    let current = folder.path().join("run");
    fs::create_dir(&current).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -c unlimited; exec \"$0\" \"$1\""])
        .arg(&built)
        .arg(mode)
        .current_dir(&current)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let number = |line: String| {
        let (key, value) = line.split_once(" = ")?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    let numbers = lines.filter_map(|line| number(line.unwrap())).collect();
    child.wait().unwrap();
    let files = fs::read_dir(&current).unwrap().map(|entry| entry.unwrap().path());
    let core = files.into_iter().find(|path| !path.ends_with("mapped")).unwrap();
    Some(Dumped { core, numbers, folder })
}

fn image(path: &Path) -> CoreImage {
    let core = CoreFile::open(path, &DecompressBounds::default()).unwrap();
    let images = ImageFiles::find(&core, None).unwrap();
    CoreImage::new(core, images)
}

/// The blocks that the program printed, by address.
fn expected(dumped: &Dumped) -> Vec<(u64, u64)> {
    let address = |(key, size): (&String, &u64)| Some((key.parse().ok()?, *size));
    let mut blocks: Vec<(u64, u64)> = dumped.numbers.iter().filter_map(address).collect();
    blocks.sort_unstable();
    blocks
}

#[test]
fn the_heap_in_a_core_has_the_blocks_that_the_program_holds() {
    let Some(dumped) = dumped("core_heap", "") else { return };
    let packed = dumped.folder.path().join("packed.zst");
    let zstd = Command::new("zstd").args(["-q", "-o"]).arg(&packed).arg(&dumped.core).status();
    let copies = [Some(dumped.core.clone()), zstd.is_ok_and(|it| it.success()).then_some(packed)];
    for path in copies.into_iter().flatten() {
        let image = image(&path);
        let walk = glibc::walk(&image, image.page_size()).unwrap();
        assert!(walk.heap.corrupted == 0, "{:?}", walk.heap.corruption);
        let live = expected(&dumped);
        assert!(live.len() > 2000, "{}", live.len());
        for (address, size) in &live {
            let found = walk.blocks.containing(*address).and_then(|index| walk.blocks.get(index));
            let found = found.map(|block| (block.start, block.size));
            assert_eq!(found, Some((*address, *size)), "{address:#x}");
        }
        // The C library has some blocks of its own: of threads, and of standard output.
        let others = walk.blocks.len() - live.len();
        assert!(others < 10, "{others} blocks more");
        assert_eq!(walk.heap.arenas.len(), 2);
    }
}

#[test]
fn pieces_are_in_order_and_leave_out_what_was_never_touched() {
    let Some(dumped) = dumped("crashing", "null") else { return };
    let image = image(&dumped.core);
    let number = |key: &str| dumped.numbers[key];
    let pattern = AddrRange {
        start: number("pattern.start"),
        end: number("pattern.start") + number("pattern.size"),
    };
    let mut bytes = Vec::new();
    let mut end = pattern.start;
    // Beyond both ends of the range lie guards.
    let page = image.page_size().bytes();
    let around = AddrRange { start: pattern.start - page, end: pattern.end + page };
    image.visit(around, &mut |address, piece| {
        assert_eq!(address, end, "a piece is missing, or twice there");
        end = address + piece.len() as u64;
        bytes.extend_from_slice(piece);
    });
    assert_eq!(end, pattern.end);
    let is_pattern = |(i, byte): (usize, &u8)| *byte == (7 * i).to_le_bytes()[0];
    assert!(bytes.iter().enumerate().all(is_pattern));

    let mut visited = 0;
    let all = AddrRange { start: 0, end: u64::MAX };
    let mut last = 0;
    image.visit(all, &mut |address, piece| {
        assert!(address >= last && address.is_multiple_of(8));
        last = address + piece.len() as u64;
        visited += piece.len() as u64;
    });
    // The stack of the waiting thread has 256 KiB, of which it touched one or two pages.
    let held: u64 = image.held().0;
    assert!(visited < held - 128 * 1024 && visited > pattern.len().0, "{visited} of {held}");
    let mut word = [0; 8];
    let stack = number("waiting.stack_address") - 64 * 1024;
    assert!(image.read(stack, &mut word) && word == [0; 8], "untouched pages read as zeros");
    assert!(!image.read(number("undumped.start"), &mut word), "left out is not zero");
    assert!(image.read(number("constant.start"), &mut word) && &word == b"constant");
    let tid = number("waiting.tid");
    let thread = image.threads().iter().find(|thread| u64::from(thread.tid) == tid).unwrap();
    assert!(thread.registers.contains(&thread.stack_pointer) && thread.thread_pointer != 0);
}

#[test]
fn a_read_may_cross_from_the_core_into_a_file() {
    let Some(dumped) = dumped("crashing", "null") else { return };
    let image = image(&dumped.core);
    // The kernel dumps the first page of a library, and leaves out the rest of its first mapping.
    let library = image.mappings().iter().find(|it| it.name.base() == b"libc.so.6").unwrap();
    let page = image.page_size().bytes();
    let mut across = vec![0; 64];
    let border = library.range.start + page;
    assert!(image.read(border - 32, &mut across));
    let file = fs::read(Path::new(&*library.name.escaped())).unwrap();
    let at = usize::try_from(page).unwrap() - 32;
    assert_eq!(across, file[at..at + 64]);
}
