//! Every captured kernel: each tree in `fixtures/kernels` is read as a `/proc`, and the result must
//! agree with the kernel's own sums and with the facts that the captured program recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pagewise_model::{Bytes, Mapping, Pid, Smaps, SmapsCounter, Snapshot};
use pagewise_proc::ProcRoot;
use pagewise_proc::capture::{CaptureRequest, Wish, capture};

/// One captured tree: `KERNEL/PROGRAM-READER`.
struct CapturedTree {
    name: String,
    path: PathBuf,
    /// `meta.toml`, whose one table holds dotted keys: `expected.x.rss` is `x.rss` here.
    meta: BTreeMap<String, String>,
}

impl CapturedTree {
    fn open(path: PathBuf) -> CapturedTree {
        let meta = fs::read_to_string(path.join("meta.toml")).expect("each tree has a meta.toml");
        let fields = meta.lines().filter_map(|line| line.split_once(" = "));
        let meta = fields
            .map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        let kernel = path.parent().and_then(Path::file_name).unwrap_or_default();
        let name =
            Path::new(kernel).join(path.file_name().unwrap_or_default()).display().to_string();
        CapturedTree { name, path, meta }
    }

    fn is_strangers(&self) -> bool {
        self.name.ends_with("-stranger")
    }

    fn number(&self, key: &str) -> u64 {
        let value = self.meta.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.name));
        value.parse().unwrap_or_else(|_| panic!("{}: {key} is {value}", self.name))
    }

    /// Returns the names of the items for which the program recorded `.KEY`.
    fn saying(&self, key: &str) -> Vec<String> {
        let names = self.meta.keys().filter_map(|k| k.strip_suffix(key)?.strip_suffix('.'));
        names.map(str::to_owned).collect()
    }

    fn snapshot(&self) -> Snapshot {
        let pid = Pid(u32::try_from(self.number("pid")).expect("a pid fits"));
        let request = CaptureRequest { wish: Wish::Full, ..CaptureRequest::default() };
        capture(&ProcRoot::at(&self.path), pid, &request)
            .unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    folders.sort();
    folders
}

fn trees() -> Vec<CapturedTree> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/kernels");
    folders(&kernels).iter().flat_map(|kernel| folders(kernel)).map(CapturedTree::open).collect()
}

/// Runs `check` on each tree whose reader saw the mappings.
fn each_readable(check: impl Fn(&CapturedTree, &Snapshot, &[Mapping])) {
    for tree in trees().iter().filter(|tree| !tree.is_strangers()) {
        let snapshot = tree.snapshot();
        let mappings = snapshot.mappings.as_ref();
        check(tree, &snapshot, mappings.unwrap_or_else(|why| panic!("{}: {why}", tree.name)));
    }
}

fn smaps<'a>(tree: &CapturedTree, mapping: &'a Mapping) -> &'a Smaps {
    let smaps = mapping.smaps.as_ref();
    smaps.unwrap_or_else(|why| panic!("{}: {:?}: {why}", tree.name, mapping.name))
}

fn at<'a>(tree: &CapturedTree, mappings: &'a [Mapping], address: u64) -> &'a Mapping {
    let found = mappings.iter().find(|mapping| mapping.range.contains(address));
    found.unwrap_or_else(|| panic!("{}: no mapping at {address:#x}", tree.name))
}

#[test]
fn there_are_two_kernels_and_three_readers_of_each() {
    let names: Vec<String> = trees().into_iter().map(|tree| tree.name).collect();
    let of = |reader: &str| names.iter().filter(|name| name.ends_with(reader)).count();
    assert!(of("-root") >= 14, "{names:?}");
    assert_eq!([of("-owner"), of("-stranger")], [of("-root"); 2], "{names:?}");
}

#[test]
fn every_line_and_flag_of_smaps_is_known() {
    each_readable(|tree, snapshot, mappings| {
        let rollup = snapshot.rollup.as_ref().unwrap_or_else(|why| panic!("{}: {why}", tree.name));
        for smaps in mappings.iter().map(|mapping| smaps(tree, mapping)).chain([&**rollup]) {
            assert!(smaps.extra.is_empty(), "{}: {:?} needs a row", tree.name, smaps.extra);
            let unknown = smaps.flags.iter().flat_map(|flags| &flags.unknown).next();
            assert_eq!(unknown, None, "{}: a VmFlags code needs a row", tree.name);
        }
    });
}

#[test]
fn the_mappings_add_up_to_the_rollup() {
    each_readable(|tree, snapshot, mappings| {
        let rollup = snapshot.rollup.as_ref().unwrap_or_else(|why| panic!("{}: {why}", tree.name));
        for (counter, total) in rollup.iter().filter(|(counter, _)| counter.is_bytes()) {
            // The rollup splits Pss further than the mappings do.
            let values = mappings.iter().map(|mapping| smaps(tree, mapping).bytes(counter));
            let Ok(sum) = values.sum::<Result<Bytes, _>>() else {
                assert!(counter.name().starts_with("Pss_"), "{}: {}", tree.name, counter.name());
                continue;
            };
            // The PSS is rounded down to a KiB in each mapping, and once in the rollup.
            let is_share = counter.name().contains("Pss");
            let rounding = if is_share { 1024 * mappings.len() as u64 } else { 0 };
            let fits = sum.0 <= total && total <= sum.0 + rounding;
            assert!(fits, "{}: {} is {total}, not {}", tree.name, counter.name(), sum.0);
        }
    });
}

#[test]
fn the_mappings_add_up_to_statm() {
    each_readable(|tree, snapshot, mappings| {
        let statm = snapshot.statm.as_ref().unwrap_or_else(|why| panic!("{}: {why}", tree.name));
        let counted = mappings.iter().filter(|mapping| mapping.name.as_bytes() != b"[vsyscall]");
        assert_eq!(counted.map(Mapping::size).sum::<Bytes>(), statm.size, "{}", tree.name);
    });
}

#[test]
fn each_mapping_holds_what_its_program_says() {
    each_readable(|tree, _, mappings| {
        for name in tree.saying("rss") {
            let fact = |key: &str| tree.number(&format!("{name}.{key}"));
            let mapping = at(tree, mappings, fact("start"));
            let smaps = smaps(tree, mapping);
            let found = [
                Ok(mapping.range.start),
                Ok(mapping.size().0),
                smaps.get(SmapsCounter::Rss),
                smaps.get(SmapsCounter::Anonymous),
            ];
            let expected = ["start", "size", "rss", "anonymous"].map(|key| Ok(fact(key)));
            assert_eq!(found, expected, "{}: {name}", tree.name);
        }
    });
}

#[test]
fn half_of_what_a_fork_shared_is_exclusive_once_the_child_wrote_it() {
    each_readable(|tree, _, mappings| {
        for name in tree.saying("co_mapped") {
            let fact = |key: &str| tree.number(&format!("{name}.{key}"));
            let smaps = smaps(tree, at(tree, mappings, fact("start")));
            let get = |counter| smaps.get(counter).expect("every kernel since 2.6.25 has it");
            assert_eq!(get(SmapsCounter::Pss), fact("pss"), "{}", tree.name);
            assert_eq!(
                get(SmapsCounter::PrivateClean) + get(SmapsCounter::PrivateDirty),
                fact("exclusive"),
                "{}",
                tree.name
            );
            assert_eq!(
                get(SmapsCounter::SharedClean) + get(SmapsCounter::SharedDirty),
                fact("co_mapped"),
                "{}",
                tree.name
            );
        }
    });
}

#[test]
fn each_thread_has_its_name_and_its_stack_pointer_in_its_stack() {
    each_readable(|tree, snapshot, mappings| {
        let threads =
            snapshot.threads.as_ref().unwrap_or_else(|why| panic!("{}: {why}", tree.name));
        for name in tree.saying("tid") {
            let tid = tree.number(&format!("{name}.tid"));
            let thread = threads.iter().find(|thread| u64::from(thread.tid.0) == tid);
            let thread = thread.unwrap_or_else(|| panic!("{}: no thread {tid}", tree.name));
            assert_eq!(thread.name.as_bytes(), name.as_bytes(), "{}", tree.name);

            let stack = at(tree, mappings, tree.number(&format!("{name}.stack_address")));
            let pointer = thread.stack_pointer.clone().expect("a waiting thread has one");
            assert!(stack.range.contains(pointer), "{}: {name} is at {pointer:#x}", tree.name);
            let rss = stack.rss().expect("smaps was read");
            assert!(rss.0 >= tree.number(&format!("{name}.stack_used")), "{}: {name}", tree.name);
        }
    });
}

#[test]
fn the_machine_is_that_of_the_capture_not_ours() {
    for tree in trees() {
        let snapshot = tree.snapshot();
        assert_eq!(*snapshot.provenance.kernel.escaped(), *tree.meta["kernel"], "{}", tree.name);
        assert!(snapshot.machine.mem_total.is_ok(), "{}", tree.name);
        assert!(snapshot.machine.max_map_count.is_ok(), "{}", tree.name);
        if !tree.is_strangers() {
            assert_eq!(
                snapshot.provenance.page_size.bytes(),
                tree.number("page_size"),
                "{}",
                tree.name
            );
        }
    }
}

#[test]
fn values_without_permission_are_absent_and_others_present() {
    for tree in trees().iter().filter(|tree| tree.is_strangers()) {
        let snapshot = tree.snapshot();
        assert!(snapshot.mappings.is_err(), "{}", tree.name);
        assert!(snapshot.rollup.is_err(), "{}", tree.name);
        assert!(snapshot.statm.is_ok(), "{}", tree.name);
        assert!(snapshot.status.is_ok(), "{}", tree.name);
    }
}
