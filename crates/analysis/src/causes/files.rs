//! Causes: mapped files, and files in memory (tmpfs, memfd).

use std::collections::HashMap;

use pagewise_model::cause::{Cause, CauseCost, CauseObject, Confidence, Verdict};
use pagewise_model::evidence::{ActivityPoint, Instrument, MemoryFile, counter};
use pagewise_model::report::CellValue;
use pagewise_model::{Backing, Bytes, Mapping, Name, Reading, SmapsCounter};

use super::heap::LARGE;
use super::signs::{
    MachineMemory, MajorFaults, bytes, bytes_fact, count_fact, known_rate_fact, rate_fact,
    tight_cgroup,
};
use super::{CauseEvidence, CauseRow, cause, remedy_code, remedy_now};
use crate::cells::{float, text, whole_bytes};
use crate::explain::{ExplainSubject, fact};
use crate::findings::snapshot::{
    OldVersions, UNMAP_OLD_VERSIONS, old_versions, old_versions_sentence, stale_code,
};

/// The rows of the table of causes.
pub(super) const ROWS: &[CauseRow] = &[
    CauseRow {
        id: "file-refaults",
        title: "major faults on files",
        meaning: "The process waits for pages of mapped files, which were evicted or never read.",
        needs: &[Instrument::Activity, Instrument::Faults],
        excluded_by: "fewer than 25 major faults per second, most of them in swap, or a full cgroup",
        source: "proc_pid_stat(5), majflt; proc_vmstat, workingset_refault_file",
        rule: file_refaults,
    },
    CauseRow {
        id: "shm-growth",
        title: "shared memory",
        meaning: "Memory in tmpfs, memfd or System V segments grows, or stays after its file was removed.",
        needs: &[Instrument::Snapshot, Instrument::Activity],
        excluded_by: "shared memory that does not grow",
        source: "shm_overview(7), memfd_create(2), shmget(2)",
        rule: shm_growth,
    },
    CauseRow {
        id: "stale-files",
        title: "deleted or replaced files",
        meaning: "The process runs code of files that were replaced or deleted since it started, or still maps several old versions of a data file.",
        needs: &[Instrument::Snapshot],
        excluded_by: "all mapped programs and libraries are the files on disk, and no data file has two deleted versions of together 16 MiB that are still mapped for reading",
        source: "proc_pid_maps(5), (deleted)",
        rule: stale_files,
    },
];

fn file_refaults(evidence: &CauseEvidence<'_>) -> Verdict {
    let Some(waits) = MajorFaults::of(evidence) else {
        let command = format!("pagewise faults {} --for 10s", evidence.pid());
        return Verdict::Unknown("the process was read only once".into(), command.into());
    };
    if !waits.are_many() {
        return Verdict::RuledOut(vec![CellValue::Rate(waits.rate), text(" major faults")]);
    }
    let Some(in_files) = waits.in_files else {
        let command = format!("pagewise faults {} --for 10s", evidence.pid());
        return Verdict::Unknown("page faults were not recorded".into(), command.into());
    };
    if in_files < 0.5 {
        let line = vec![CellValue::Share(in_files), text(" of the major faults are on files")];
        return Verdict::RuledOut(line);
    }
    if let Some(load) = tight_cgroup(evidence) {
        let line = vec![text("the limit of the cgroup explains it: "), bytes(load.limit)];
        return Verdict::RuledOut(line);
    }
    if !is_sustained(evidence) {
        let line = vec![text("the major faults stop within the observation: files are read once")];
        return Verdict::RuledOut(line);
    }
    refault_cause(evidence, &waits).into()
}

/// True if major faults continue up to the end of the observation. The major faults of a program
/// that starts or loads a file end earlier.
fn is_sustained(evidence: &CauseEvidence<'_>) -> bool {
    let faults: Vec<u64> = evidence.all.activity.iter().map(|point| point.major_faults).collect();
    let third = faults.len() / 3;
    let in_part = |part: &[u64]| {
        part.last().zip(part.first()).map_or(0, |(last, first)| last.saturating_sub(*first))
    };
    let all = in_part(&faults);
    third == 0 || in_part(&faults[faults.len() - third - 1..]) * 6 >= all
}

fn refault_cause(evidence: &CauseEvidence<'_>, waits: &MajorFaults) -> Cause {
    let name = waits.file.clone().unwrap_or_default();
    let evicted = evidence.vmstat_rate("workingset_refault_file").filter(|_| is_full(evidence));
    let is_evicted = evicted.is_some_and(|evicted| evicted * 2.0 >= waits.rate);
    let sentence = vec![
        text("The process waits for "),
        CellValue::Rate(waits.rate),
        text(" pages of files, most of them of "),
        CellValue::Name(name.clone()),
        text(if is_evicted {
            ": the page cache evicts pages that are needed again."
        } else {
            ": these pages are not in the page cache when they are touched."
        }),
    ];
    let mut found = cause("file-refaults", CauseObject::File(name), Confidence::Certain, sentence);
    found.cost = CauseCost::of_time(waits.waited());
    found.evidence = vec![
        rate_fact("major_faults_per_s", "major faults", waits.rate),
        fact("in_files", "on files", waits.in_files.map_or(CellValue::None, CellValue::Share), ""),
    ];
    let label = "evicted pages read again on the machine";
    found.evidence.extend(known_rate_fact("evicted_per_s", label, evicted));
    if let Some(memory) = MachineMemory::of(evidence) {
        found.evidence.push(bytes_fact("available", "available memory", memory.available));
    }
    let reading =
        evidence.faulting_function(|row, _| row.kind == pagewise_model::faults::FaultKind::Major);
    if let Some(name) = reading.and_then(|reading| reading.frame.function.clone()) {
        let name = CellValue::Name(name.as_str().into());
        found.evidence.push(fact("reader", "most of them in", name, ""));
    }
    if !is_evicted && stays_mapped(evidence, waits) {
        found.now = waits.file.as_ref().and_then(|file| {
            remedy_now(
                format!("cat {} > /dev/null", plain_path(file)?),
                [text("Read the file into the page cache, if it fits into the available memory.")],
                true,
            )
        });
    }
    found.code = remedy_code([text(
        "Read the file before time matters (MADV_POPULATE_READ, MADV_WILLNEED, MAP_POPULATE), do not drop it with \
         POSIX_FADV_DONTNEED or MADV_PAGEOUT, and read in order where possible.",
    )]);
    found
}

/// Maximum free share of the machine's memory for which the kernel evicts page cache of all
/// cgroups: if more memory is free, it evicts page cache only in full cgroups.
const FREE: f64 = 0.1;

/// True if the kernel may evict page cache for lack of memory of the machine. Requires that the
/// cgroup of the process is not full.
fn is_full(evidence: &CauseEvidence<'_>) -> bool {
    let [_, last] = &evidence.all.machine;
    let value = |name| counter(&last.meminfo, name).map(Bytes);
    let free = value("MemFree").zip(value("MemTotal"));
    free.is_none_or(|(free, total)| free.fraction_of(total).is_none_or(|share| share < FREE))
}

/// Minimum growth of the file pages in RES, as a share of the pages that major faults read. Less
/// growth means that the process drops the pages again. Reading the file once beforehand does not
/// help such a process.
const MOSTLY_KEPT: f64 = 0.5;

/// True if the file pages in RES grow by at least [`MOSTLY_KEPT`] of the pages that major faults
/// read.
fn stays_mapped(evidence: &CauseEvidence<'_>, waits: &MajorFaults) -> bool {
    let of_files = |point: &ActivityPoint| {
        let other = point.anonymous.clone().ok()? + point.shmem.clone().ok()?;
        Some(point.resident.saturating_sub(other))
    };
    let page = float(evidence.now.provenance.page_size.bytes());
    evidence.growth(of_files).is_some_and(|growth| growth >= waits.rate * page * MOSTLY_KEPT)
}

/// Returns a path if it needs no quotes in a shell.
fn plain_path(path: &Name) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    let text = std::str::from_utf8(path.as_bytes()).ok()?;
    text.bytes().all(is_plain).then(|| text.to_owned())
}

/// Minimum steady growth of shared memory in bytes per second that is trouble.
const GROWING: f64 = 256.0 * 1024.0;

fn shm_growth(evidence: &CauseEvidence<'_>) -> Verdict {
    let growth = evidence.growth(|point| point.shmem.clone().ok());
    let steady = evidence.growing_share(|point| point.shmem.clone().ok());
    let (Some(growth), Some(steady)) = (growth, steady) else {
        let command = format!("pagewise diff {} --every 2s --for 1m", evidence.pid());
        return Verdict::Unknown("RssShmem was not read twice".into(), command.into());
    };
    let largest =
        evidence.subject.as_ref().ok().and_then(|subject| largest_shared(evidence, subject));
    let is_bounded = evidence.before.is_some()
        && largest.as_ref().is_some_and(|it| it.growth > Bytes::ZERO && it.is_bounded());
    if growth >= GROWING && steady >= 0.3 && !is_bounded {
        return growing_cause(evidence, growth, largest).into();
    }
    let fills_it = |file: &&MemoryFile| {
        let name = largest.as_ref().map(|largest| largest.name.as_bytes());
        is_bounded && name.is_some_and(|name| name.starts_with(file.name.as_bytes()))
    };
    if let Some(file) = growing_file(evidence).filter(|file| !fills_it(file)) {
        return file_cause(evidence, file).into();
    }
    if let Some(file) = &largest
        && file.is_growing(evidence.seconds().unwrap_or(1.0))
        && !file.is_bounded()
    {
        let growth = float(file.growth.0) / evidence.seconds().unwrap_or(1.0).max(0.001);
        return growing_cause(evidence, growth, largest).into();
    }
    let mut line =
        vec![text("shared memory grows by "), bytes(whole_bytes(growth)), text(" per second")];
    if let Some(machine) = machine_growth(evidence) {
        line.extend([text(", tmpfs of the machine by "), bytes(whole_bytes(machine))]);
    }
    Verdict::RuledOut(line)
}

/// Growth in bytes per second of `Shmem` in `/proc/meminfo`.
fn machine_growth(evidence: &CauseEvidence<'_>) -> Option<f64> {
    evidence.machine_rate(|point| counter(&point.meminfo, "Shmem"))
}

/// Shared memory with the same name. Names that differ only in their numbers count as the same
/// name, such as `buffer-17` and `buffer-18`.
#[derive(Clone, Debug, Default)]
struct SharedFiles {
    name: Name,
    resident: Bytes,
    growth: Bytes,
    mappings: u64,
    has_removed: bool,
    /// Size of the mappings in bytes.
    mapped: Bytes,
    /// Growth of the size of the mappings in bytes.
    mapped_growth: Bytes,
}

impl SharedFiles {
    fn is_growing(&self, seconds: f64) -> bool {
        float(self.growth.0) >= GROWING * seconds
    }

    /// True for a small mapping of constant size that is being filled.
    fn is_bounded(&self) -> bool {
        self.mapped_growth == Bytes::ZERO && self.mapped < LARGE
    }
}

/// Sums the resident shared memory by name.
fn by_name(subject: &ExplainSubject<'_>) -> HashMap<Vec<u8>, SharedFiles> {
    let mut files: HashMap<Vec<u8>, SharedFiles> = HashMap::new();
    for mapping in subject.mappings.iter().filter(|mapping| mapping.backing() == Backing::Shmem) {
        let key: Vec<u8> =
            mapping.path().iter().copied().filter(|it| !it.is_ascii_digit()).collect();
        let file = files.entry(key).or_default();
        let resident = shared_size(mapping);
        if resident >= file.resident {
            file.name = mapping.name.clone();
        }
        file.resident += resident;
        file.mapped += mapping.size();
        file.mappings += 1;
        // `maps` marks memfds and anonymous shared memory as deleted even while they exist.
        file.has_removed |= mapping.is_deleted() && mapping.path().starts_with(b"/dev/shm/");
    }
    files
}

/// Resident and swapped bytes of a shared mapping.
fn shared_size(mapping: &Mapping) -> Bytes {
    mapping.rss().unwrap_or_default() + mapping.counter(SmapsCounter::Swap).unwrap_or_default()
}

/// Returns the shared memory that grew most since the first snapshot. Without growth, returns the
/// largest shared memory.
fn largest_shared(
    evidence: &CauseEvidence<'_>,
    subject: &ExplainSubject<'_>,
) -> Option<SharedFiles> {
    let before = evidence.before.map(by_name).unwrap_or_default();
    let files = by_name(subject).into_iter().map(|(key, mut file)| {
        if evidence.before.is_some() {
            let earlier = before.get(&key).cloned().unwrap_or_default();
            file.growth = file.resident.saturating_sub(earlier.resident);
            file.mapped_growth = file.mapped.saturating_sub(earlier.mapped);
        }
        file
    });
    files.max_by_key(|file| (file.growth, file.resident))
}

/// Returns the fastest growing file in memory among the files that the process has open or fills;
/// `None` if this file grows slowly.
fn growing_file<'a>(evidence: &CauseEvidence<'a>) -> Option<&'a MemoryFile> {
    let seconds = evidence.seconds()?;
    let files = evidence.all.memory_files.iter();
    let in_memory = files.filter(|file| !file.is_removed);
    let own = in_memory.filter(|file| !file.is_closed || fills(evidence, file));
    let most = own.max_by_key(|file| file.growth())?;
    (float(most.growth().0) >= GROWING * seconds).then_some(most)
}

/// If the process fills the files, the quotient of the bytes that it writes and the growth of the
/// files is in this range. The quotient is not exactly 1, because the last page of a file may be
/// partly written.
const WRITTEN: std::ops::Range<f64> = 0.8..1.15;

/// True if the process fills files of this name: its page faults are in files of this name, or the
/// process and its children write about as many bytes to files in memory as the files grow. Reads
/// and writes of storage do not count.
fn fills(evidence: &CauseEvidence<'_>, file: &MemoryFile) -> bool {
    let increase = |value: fn(&ActivityPoint) -> &Reading<Bytes>| {
        evidence.growth(|point| value(point).clone().ok())
    };
    let files = increase(|point| &point.file_traffic);
    let storage = increase(|point| &point.storage_traffic);
    // `file_traffic` counts at least a page for each call, so it matches the growth by small files,
    // each of which takes a whole page. `memory_writes` matches the growth by copies, which
    // `file_traffic` counts twice: as read and as written.
    let traffic = files.zip(storage).map(|(files, storage)| files - storage);
    let written = increase(|point| &point.memory_writes);
    let grown = float(file.growth().0);
    let seconds = evidence.seconds().unwrap_or(0.0);
    let explains =
        |per_second: &f64| grown > 0.0 && WRITTEN.contains(&(per_second * seconds / grown));
    touches(evidence, file) || traffic.iter().chain(&written).any(explains)
}

fn touches(evidence: &CauseEvidence<'_>, file: &MemoryFile) -> bool {
    let mappings = evidence.faults().map_or(&[][..], |recording| &recording.mappings);
    mappings.iter().any(|mapping| {
        let name = mapping.name.as_bytes();
        name.starts_with(b"/dev/shm/") && are_same_but_numbers(name, file.name.as_bytes())
    })
}

/// True if a name matches a pattern in which `N` represents any number.
fn are_same_but_numbers(name: &[u8], pattern: &[u8]) -> bool {
    let mut words = Vec::with_capacity(name.len());
    for byte in name {
        let byte = if byte.is_ascii_digit() { b'N' } else { *byte };
        if byte != b'N' || words.last() != Some(&b'N') {
            words.push(byte);
        }
    }
    words == pattern
}

/// Returns the cause for a growing file in memory that the process does not map.
fn file_cause(evidence: &CauseEvidence<'_>, file: &MemoryFile) -> Cause {
    let per_second =
        whole_bytes(float(file.growth().0) / evidence.seconds().unwrap_or(1.0).max(0.001));
    let sentence = if file.is_closed {
        vec![
            text(
                "The process fills files of shared memory and closes them, but does not remove their names: ",
            ),
            CellValue::Name(file.name.clone()),
            text(" (N stands for numbers) has "),
            bytes(file.after),
            text(" and grows by "),
            bytes(per_second),
            text(" per second."),
        ]
    } else {
        vec![
            text("The process keeps "),
            bytes(file.after),
            text(" in memory by "),
            CellValue::Name(file.name.clone()),
            text(", which grows by "),
            bytes(per_second),
            text(" per second and is not part of RES."),
        ]
    };
    let object = CauseObject::File(file.name.clone());
    let confidence = if file.is_closed && !touches(evidence, file) {
        Confidence::Likely(format!("strace -f -e trace=openat -p {}", evidence.pid()).into())
    } else {
        Confidence::Certain
    };
    let mut found = cause("shm-growth", object, confidence, sentence);
    let resident = evidence.resident().unwrap_or_default();
    found.cost = CauseCost::of_memory(file.after, resident + file.after);
    found.evidence = vec![
        bytes_fact("growth_per_s", "growth per second", per_second),
        bytes_fact("size", "size", file.after),
        count_fact("files", "files of that name", file.count),
    ];
    let is_path =
        file.name.as_bytes().starts_with(b"/") && !file.name.as_bytes().starts_with(b"/memfd:");
    if file.name.as_bytes().starts_with(b"/SYSV") {
        found.now = remedy_now(
            "",
            [text(
                "Remove each segment to which no process is attached and that no program needs: `ipcs -m` lists them \
                 (nattch 0), `ipcrm -m SHMID` removes one.",
            )],
            false,
        );
    } else if file.is_closed {
        found.now = remedy_now(
            "ls -lst /dev/shm",
            [text("Remove the files that no process needs any more: their names alone keep them.")],
            false,
        );
    } else if is_path && let Some(path) = plain_path(&file.name) {
        found.now = remedy_now(
            "",
            [text(format!(
                "Move {path} to a disk, or remove it after its last use and restart the program: it is memory until no \
                 process has it open."
            ))],
            false,
        );
    }
    found.code = remedy_code([text(
        "Remove what was read: shmctl(IPC_RMID), shm_unlink, close of the memfd, or fallocate(FALLOC_FL_PUNCH_HOLE). Write logs to \
         a disk, and rotate them.",
    )]);
    found
}

fn growing_cause(evidence: &CauseEvidence<'_>, growth: f64, file: Option<SharedFiles>) -> Cause {
    let file = file.unwrap_or_default();
    let resident = evidence.resident().unwrap_or_default();
    let sentence = vec![
        text("Shared memory of the process grows by "),
        bytes(whole_bytes(growth)),
        text(" per second, most of it in "),
        CellValue::Name(file.name.clone()),
        text(if file.has_removed { ", which was removed but is still mapped." } else { "." }),
    ];
    let check = format!("pagewise diff {} --every 2s --for 1m", evidence.pid());
    let confidence = match evidence.before {
        Some(_) if file.growth > Bytes::ZERO => Confidence::Certain,
        _ => Confidence::Likely(check.into()),
    };
    let object = CauseObject::File(file.name.clone());
    let mut found = cause("shm-growth", object, confidence, sentence);
    found.cost = CauseCost::of_memory(file.resident.max(file.growth), resident);
    found.evidence = vec![
        bytes_fact("growth_per_s", "growth per second", whole_bytes(growth)),
        bytes_fact("resident", "resident", file.resident),
        count_fact("mappings", "mappings of that name", file.mappings),
    ];
    let mapping =
        evidence.calling_function(|row| row.call == "mmap" && row.detail & MAP_SHARED != 0);
    if let Some(name) = mapping.and_then(|mapping| mapping.frame.function.clone()) {
        let name = CellValue::Name(name.as_str().into());
        found.evidence.push(fact("function", "mapped by", name, ""));
    }
    found.code = remedy_code([text(
        "Unmap each segment after use (munmap, shmdt), and remove its name: shm_unlink, shmctl(IPC_RMID), close of the memfd. \
         Bound ring buffers and caches in shared memory.",
    )]);
    found
}

/// Flag of `mmap` for shared mappings.
const MAP_SHARED: u64 = 1;

fn stale_files(evidence: &CauseEvidence<'_>) -> Verdict {
    let Ok(subject) = evidence.subject else {
        let command = format!("pagewise explain {}", evidence.pid());
        return Verdict::Unknown("the mappings could not be read".into(), command.into());
    };
    let Some(stale) = stale_code(subject) else {
        if let Some(versions) = old_versions(subject) {
            return versions_cause(evidence, &versions).into();
        }
        return Verdict::RuledOut(vec![text(
            "all mapped programs and libraries are the files on disk",
        )]);
    };
    let first = stale.names[0].clone();
    let count = stale.names.len() as u64;
    let sentence = vec![
        CellValue::Count(count),
        text(" of the files it runs (first "),
        CellValue::Name(first.clone()),
        text(
            ") were replaced or deleted after the process mapped them: it still runs the old code.",
        ),
    ];
    let mut found = cause("stale-files", CauseObject::File(first), Confidence::Certain, sentence);
    // The process works with the old files, so a restart is not urgent.
    found.cost = CauseCost::of_risk(0.2);
    found.evidence = vec![
        bytes_fact("reserved", "mapped", stale.reserved),
        fact(
            "files",
            "files",
            CellValue::List(stale.names.into_iter().map(CellValue::Name).collect()),
            "",
        ),
    ];
    found.now = remedy_now(
        "",
        [text(
            "Restart the process: it then runs the new code, and the old files' disk space is freed.",
        )],
        false,
    );
    found.into()
}

fn versions_cause(evidence: &CauseEvidence<'_>, versions: &OldVersions) -> Cause {
    let object = CauseObject::File(versions.name.clone());
    let sentence = old_versions_sentence(versions);
    let mut found = cause("stale-files", object, Confidence::Certain, sentence);
    let resident = versions.resident.clone().ok();
    found.cost = match resident.zip(evidence.resident()) {
        Some((old, whole)) => CauseCost::of_memory(old, whole),
        None => CauseCost::of_risk(0.2),
    };
    found.evidence = vec![
        bytes_fact("mapped", "mapped", versions.mapped),
        count_fact("versions", "old versions", versions.count),
    ];
    found.evidence.extend(resident.map(|it| bytes_fact("resident", "resident", it)));
    found.now =
        remedy_now("", [text("Restart the process: it then maps the new version alone.")], false);
    found.code = remedy_code([text(UNMAP_OLD_VERSIONS)]);
    found
}

#[cfg(test)]
mod tests {
    use pagewise_model::Quadrant;
    use pagewise_model::evidence::Evidence;
    use pagewise_model::faults::FaultKind;

    use super::*;
    use crate::causes::made::verdict;
    use crate::causes::made_recordings::{add_major_faults, faults, steady};

    fn reading(count: u64) -> Evidence {
        let mut evidence = steady(1 << 20);
        evidence.faults = faults(FaultKind::Major, count, "/data/index", Quadrant::SharedFile);
        add_major_faults(&mut evidence, count);
        evidence
    }

    #[test]
    fn major_faults_on_a_file_name_the_file() {
        let Verdict::Present(found) = verdict(&reading(4000), "file-refaults") else {
            panic!("they are many")
        };
        assert_eq!(found.object, CauseObject::File("/data/index".into()));
        assert_eq!(found.now, None, "the pages are dropped again");
        assert!(matches!(verdict(&reading(40), "file-refaults"), Verdict::RuledOut(_)));
    }

    #[test]
    fn a_file_whose_pages_stay_mapped_is_read_once_as_a_remedy() {
        let mut evidence = reading(4000);
        for point in &mut evidence.activity {
            point.resident += Bytes(point.major_faults * 4096);
        }
        let Verdict::Present(found) = verdict(&evidence, "file-refaults") else {
            panic!("they are many")
        };
        assert_eq!(found.now.unwrap().command, "cat /data/index > /dev/null");
    }

    #[test]
    fn files_that_are_read_once_at_the_start_are_well() {
        let mut evidence = reading(4000);
        for point in evidence.activity.iter_mut().skip(3) {
            point.major_faults = 4000;
        }
        assert!(matches!(verdict(&evidence, "file-refaults"), Verdict::RuledOut(_)));
    }

    #[test]
    fn old_versions_of_a_mapped_data_file_are_stale() {
        use crate::sample::{resident, snapshot};
        let with = |lines: &[&str]| {
            let mappings = || lines.iter().map(|line| resident(line, 4 << 20)).collect();
            let made = crate::causes::made::evidence(snapshot(mappings()), snapshot(mappings()));
            verdict(&made, "stale-files")
        };
        let old = "7f0000000000-7f0000a00000 r--s 0 11 /data/geo.db (deleted)";
        let older = "7f0001000000-7f0001a00000 r--s 0 12 /data/geo.db (deleted)";
        let new = "7f0002000000-7f0002a00000 r--s 0 13 /data/geo.db";
        let Verdict::Present(found) = with(&[old, older, new]) else { panic!("two old versions") };
        assert_eq!(found.object, CauseObject::File("/data/geo.db".into()));
        assert!(matches!(with(&[old, new]), Verdict::RuledOut(_)), "a reader may still use one");
        let part = "7f0001000000-7f0001a00000 r--s 0 11 /data/geo.db (deleted)";
        assert!(matches!(with(&[old, part, new]), Verdict::RuledOut(_)), "one version, two parts");
        let written = "7f0001000000-7f0001a00000 rw-s 0 12 /data/geo.db (deleted)";
        assert!(matches!(with(&[old, written, new]), Verdict::RuledOut(_)), "a temporary file");
        let small = "7f0001000000-7f0001100000 r--s 0 12 /data/geo.db (deleted)";
        assert!(matches!(with(&[old, small, new]), Verdict::RuledOut(_)), "11 MiB");
    }

    #[test]
    fn a_small_shared_area_that_is_filled_does_not_grow_without_bound() {
        use crate::sample::{resident, snapshot};
        const MIB: u64 = 1 << 20;
        let with = |mapped: [u64; 2]| {
            let at = |mapped: u64, used: u64| {
                let range = format!("7f0000000000-{:x}", 0x7f00_0000_0000 + mapped * MIB);
                let line = format!("{range} rw-s 0 9 /memfd:ring (deleted)");
                snapshot(vec![resident(&line, used * MIB)])
            };
            let mut made = crate::causes::made::evidence(at(mapped[0], 1), at(mapped[1], 3));
            made.activity = crate::causes::made::activity([MIB; 17]);
            for (step, point) in (0..).zip(&mut made.activity) {
                point.shmem = Ok(Bytes(MIB + step * MIB / 8));
            }
            // The process also has an open file descriptor of the file.
            made.memory_files = vec![MemoryFile {
                name: "/memfd:ring".into(),
                before: Bytes::mib(1),
                after: Bytes::mib(3),
                count: 1,
                is_closed: false,
                is_removed: false,
            }];
            verdict(&made, "shm-growth")
        };
        assert!(matches!(with([4, 4]), Verdict::RuledOut(_)));
        assert!(matches!(with([2, 4]), Verdict::Present(_)), "it is enlarged");
        assert!(matches!(with([64, 64]), Verdict::Present(_)), "it is large");
    }

    #[test]
    fn a_file_on_tmpfs_that_grows_is_memory_of_the_process() {
        let mut evidence = steady(1 << 20);
        let file = |before: u64, after: u64| MemoryFile {
            name: "/dev/shm/log".into(),
            before: Bytes::mib(before),
            after: Bytes::mib(after),
            count: 1,
            is_closed: false,
            is_removed: false,
        };
        evidence.memory_files = vec![file(10, 18)];
        let Verdict::Present(found) = verdict(&evidence, "shm-growth") else {
            panic!("it grows by 2 MiB per second")
        };
        assert_eq!(found.object, CauseObject::File("/dev/shm/log".into()));
        evidence.memory_files = vec![file(500, 500)];
        assert!(matches!(verdict(&evidence, "shm-growth"), Verdict::RuledOut(_)));
    }

    #[test]
    fn closed_files_belong_to_the_process_that_fills_them() {
        let closed = MemoryFile {
            name: "/dev/shm/image-N".into(),
            before: Bytes::mib(10),
            after: Bytes::mib(20),
            count: 40,
            is_closed: true,
            is_removed: false,
        };
        let is_present = |filled: &str| {
            let mut evidence = steady(1 << 20);
            evidence.memory_files = vec![closed.clone()];
            evidence.faults = faults(FaultKind::Anonymous, 500, filled, Quadrant::SharedAnonymous);
            matches!(verdict(&evidence, "shm-growth"), Verdict::Present(_))
        };
        assert!(is_present("/dev/shm/image-17"));
        assert!(!is_present("/dev/shm/other-17"));
        assert!(!is_present("[heap]"));
        let is_present_if_written = |mib: u64| {
            let mut evidence = steady(1 << 20);
            evidence.memory_files = vec![closed.clone()];
            for (at, point) in (0..).zip(&mut evidence.activity) {
                point.storage_traffic = Ok(Bytes::ZERO);
                point.file_traffic = Ok(Bytes(mib * at * (1 << 20) / 16));
                // A copy reads and writes: half of its traffic is written.
                point.memory_writes = Ok(Bytes(mib * at * (1 << 20) / 32));
            }
            matches!(verdict(&evidence, "shm-growth"), Verdict::Present(_))
        };
        assert!(is_present_if_written(10));
        assert!(is_present_if_written(20), "children copy files");
        assert!(!is_present_if_written(1), "another process writes");
        assert!(!is_present_if_written(500), "it writes to sockets");
    }
}
