//! Reads a large file of `/proc` while it is parsed: the kernel writes on one CPU, we read on another.

use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

/// Large enough that handing a buffer over costs nothing, small enough to stay in the cache.
const BUFFER: usize = 256 << 10;
/// One buffer being filled, one being parsed, one on the way.
const BUFFERS: usize = 3;

/// The longest single `read`, in nanoseconds.
///
/// The kernel holds the target's mmap lock for no longer than a `read` of `smaps` or `maps` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LongestRead(pub(crate) u64);

/// Hands the whole file to `consume`, piece by piece, cut anywhere.
///
/// A file that fits one buffer is read on this thread; starting another costs more than it gains.
pub(crate) fn stream(mut file: File, mut consume: impl FnMut(&[u8])) -> io::Result<LongestRead> {
    let mut first = vec![0; BUFFER];
    let mut longest = LongestRead::default();
    let filled = fill(&mut file, &mut first, &mut longest)?;
    if filled < first.len() {
        consume(&first[..filled]);
        return Ok(longest);
    }
    thread::scope(|scope| {
        let (full, parse) = sync_channel(BUFFERS);
        let (empty, reuse) = sync_channel(BUFFERS);
        let reader = scope.spawn(move || keep_reading(file, longest, &full, &reuse));
        consume(&first);
        for spare in [first, vec![0; BUFFER], vec![0; BUFFER]] {
            // The reader may have ended with an error, which it returns below.
            let _ = empty.send(spare);
        }
        for (buffer, filled) in parse {
            consume(&buffer[..filled]);
            let _ = empty.send(buffer);
        }
        drop(empty);
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

type Filled = (Vec<u8>, usize);

fn keep_reading(
    mut file: File,
    mut longest: LongestRead,
    full: &SyncSender<Filled>,
    reuse: &Receiver<Vec<u8>>,
) -> io::Result<LongestRead> {
    while let Ok(mut buffer) = reuse.recv() {
        let filled = fill(&mut file, &mut buffer, &mut longest)?;
        if filled == 0 || full.send((buffer, filled)).is_err() {
            break;
        }
    }
    Ok(longest)
}

/// Reads until the buffer is full or the file ends; a seq_file gives a page or so a call.
fn fill(file: &mut File, buffer: &mut [u8], longest: &mut LongestRead) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let begin = Instant::now();
        let read = match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        longest.0 = longest.0.max(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        filled += read;
    }
    Ok(filled)
}
