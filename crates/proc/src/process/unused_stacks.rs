//! Parts of thread stacks that the threads do not use now: resident pages below their stack
//! pointers. Interprets no contents.

use std::thread::sleep;
use std::time::Duration;

use pagewise_model::mapping::Sharing;
use pagewise_model::process::Thread;
use pagewise_model::trim::{UnusedStack, UnusedStacks};
use pagewise_model::{Absent, AddrRange, Mapping, PageSize, Pid, Reading};

use crate::pages::{self, Pace};
use crate::{ProcError, ProcRoot, threads};

/// Bytes below a stack pointer that count as used: the red zone, and memory that the thread will
/// use again soon.
pub const MARGIN: u64 = 32 << 10;

/// Reads which pages below the stack pointer of each thread are resident.
///
/// Threads run meanwhile, so their stack pointers may have changed.
///
/// # Errors
/// As [`pages::read`].
pub fn read(
    root: &ProcRoot,
    pid: Pid,
    mappings: &[Mapping],
    threads: &[Thread],
    page_size: PageSize,
) -> Result<Reading<UnusedStacks>, ProcError> {
    let threads = asked_again(root, pid, threads);
    let (mut parts, running) = unused_parts(mappings, &threads, page_size.bytes());
    let mut ranges: Vec<Mapping> = parts.iter().map(|(part, _)| part.clone()).collect();
    ranges.sort_by_key(|part| part.range.start);
    pages::read(root, pid, &mut ranges, page_size, &Pace::POLITE)?;
    let mut unused = UnusedStacks { threads: Vec::new(), running };
    for (part, thread) in parts.drain(..) {
        let read = ranges.iter().find(|read| read.range == part.range);
        let resident = read.map_or(Err(Absent::Vanished), Mapping::rss);
        match resident {
            Ok(resident) => unused.threads.push(UnusedStack {
                tid: thread.tid,
                name: thread.name.clone(),
                range: part.range,
                resident,
            }),
            Err(absent) => return Ok(Err(absent)),
        }
    }
    Ok(Ok(unused))
}

/// Returns the threads. The stack pointers of running threads are read again, up to `TIMES` times.
fn asked_again(root: &ProcRoot, pid: Pid, threads: &[Thread]) -> Vec<Thread> {
    const TIMES: u32 = 20;
    const PAUSE: Duration = Duration::from_micros(300);
    let mut threads = threads.to_vec();
    for _ in 0..TIMES {
        let mut running =
            threads.iter_mut().filter(|thread| thread.stack_pointer.is_err()).peekable();
        if running.peek().is_none() {
            break;
        }
        sleep(PAUSE);
        for thread in running {
            let text = root.reading(pid, &format!("task/{}/syscall", thread.tid));
            thread.stack_pointer = text.and_then(|text| threads::stack_pointer(&text));
        }
    }
    threads
}

/// The mapping of each thread's stack, cut off [`MARGIN`] bytes below the thread's stack pointer,
/// and the number of threads whose stack pointers are unknown.
fn unused_parts<'t>(
    mappings: &[Mapping],
    threads: &'t [Thread],
    page: u64,
) -> (Vec<(Mapping, &'t Thread)>, u64) {
    let mut pointers: Vec<u64> =
        threads.iter().filter_map(|thread| thread.stack_pointer.clone().ok()).collect();
    pointers.sort_unstable();
    let mut parts = Vec::new();
    let mut running = 0;
    for thread in threads {
        let Ok(pointer) = thread.stack_pointer else {
            running += 1;
            continue;
        };
        let Some(stack) = mappings.iter().find(|it| it.range.contains(pointer) && is_stack(it))
        else {
            continue;
        };
        // Without guard mappings, neighboring stacks form one mapping. The memory below `pointer`
        // then contains frames of another thread.
        let below = pointers.partition_point(|&other| other < pointer);
        let lower = below.checked_sub(1).map_or(0, |index| pointers[index]);
        if stack.range.contains(lower) {
            continue;
        }
        let end = pointer.saturating_sub(MARGIN) / page * page;
        if end > stack.range.start {
            let range = AddrRange { start: stack.range.start, end };
            // The values of `smaps` are those of the whole mapping.
            let smaps = Err(Absent::NotCollected("of a part of a mapping".into()));
            parts.push((Mapping { range, smaps, ..stack.clone() }, thread));
        }
    }
    (parts, running)
}

/// True if a mapping may be a stack: of the first thread, or one that a C library maps.
fn is_stack(mapping: &Mapping) -> bool {
    let name = mapping.name.as_bytes();
    let is_named_so = name.is_empty() || name == b"[stack]" || name.starts_with(b"[anon:stack");
    let is_private = mapping.sharing == Sharing::Private && mapping.inode == 0;
    is_named_so && is_private && mapping.prot.write
}

#[cfg(test)]
mod tests {
    use pagewise_model::{Bytes, Name};

    use crate::maps;

    use super::*;

    fn thread(tid: u32, stack_pointer: Reading<u64>) -> Thread {
        Thread { tid: Pid(tid), name: Name::new(b"x"), stack_pointer }
    }

    #[test]
    fn a_stack_is_unused_from_its_start_to_a_margin_below_the_pointer() {
        let text = b"7f0000000000-7f0000100000 rw-p 00000000 00:00 0\n\
                     7f0000200000-7f0000300000 rw-p 00000000 08:01 7 /file\n\
                     7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]\n";
        let mappings = maps::parse(text).mappings;
        let threads = [
            thread(1, Ok(0x7ffc_000f_f010)),
            thread(2, Ok(0x7f00_0008_0000)),
            thread(3, Ok(0x7f00_0028_0000)),
            thread(4, Err(Absent::Vanished)),
        ];
        let (parts, running) = unused_parts(&mappings, &threads, 4 << 10);
        let found: Vec<(u32, u64, u64)> =
            parts.iter().map(|(it, of)| (of.tid.0, it.range.start, it.range.end)).collect();
        assert_eq!(
            found,
            [(1, 0x7ffc_0000_0000, 0x7ffc_000f_7000), (2, 0x7f00_0000_0000, 0x7f00_0007_8000)]
        );
        assert_eq!(running, 1);
    }

    #[test]
    fn the_part_of_a_stack_has_no_values_of_the_whole_mapping() {
        let text = b"7f0000000000-7f0000100000 rw-p 00000000 00:00 0\n\
                     Rss:                1024 kB\nLocked:                0 kB\nVmFlags: rd wr mr mw me ac\n";
        let mappings = crate::smaps::parse(text).mappings;
        assert_eq!(mappings[0].rss(), Ok(Bytes::mib(1)));
        let threads = [thread(1, Ok(0x7f00_0008_0000))];
        let (parts, _) = unused_parts(&mappings, &threads, 4 << 10);
        assert!(parts[0].0.rss().is_err(), "{:?}", parts[0].0);
    }

    #[test]
    fn of_two_stacks_in_one_mapping_the_upper_one_is_left_out() {
        let text = b"7f0000000000-7f0000100000 rw-p 00000000 00:00 0\n";
        let mappings = maps::parse(text).mappings;
        let threads = [thread(1, Ok(0x7f00_000f_0000)), thread(2, Ok(0x7f00_0008_0000))];
        let (parts, _) = unused_parts(&mappings, &threads, 4 << 10);
        let found: Vec<u32> = parts.iter().map(|(_, of)| of.tid.0).collect();
        assert_eq!(found, [2]);
    }
}
