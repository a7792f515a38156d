//! Reads a large file of `/proc` while it is parsed: the kernel writes on one CPU, and the parser
//! runs on another.

use pagewise_model::units::nanoseconds;
use pagewise_sys::priority::briefly_raised;
use std::fs::File;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Size of a buffer in bytes. Passing a buffer of this size to another thread costs little, and the
/// buffer still fits the CPU cache.
const BUFFER: usize = 256 << 10;
/// Number of buffers. The parser may wait 2 ms for a CPU while other threads read at a raised
/// priority. These buffers take the text that the kernel writes meanwhile.
const BUFFERS: usize = 8;

/// Duration of a read in nanoseconds. After a read of at least this duration, the file is read
/// without a raised priority, because other threads need the CPU, too.
const LONG_READ: u64 = 5_000_000;

/// Duration of the reads that follow one raise of the priority. Raising the priority for each read
/// would take an eighth of the time to read `smaps`.
const RAISED: Duration = Duration::from_micros(200);

/// Duration of the longest single `read`, in nanoseconds.
///
/// The kernel holds the target's mmap lock for no longer than a `read` of `smaps` or `maps` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LongestRead(pub(crate) u64);

/// Passes the whole file to `consume` in pieces, which can begin and end in the middle of a line.
///
/// A file that fits one buffer is read on this thread: starting a second thread would cost more
/// time than it saves.
pub(crate) fn stream(file: &File, mut consume: impl FnMut(&[u8])) -> io::Result<LongestRead> {
    let mut buffer = vec![0; BUFFER];
    let mut longest = LongestRead::default();
    let filled = fill(file, &mut buffer, &mut longest)?;
    if filled < buffer.len() {
        consume(&buffer[..filled]);
        return Ok(longest);
    }
    let rest = match beside(file, &buffer, &mut consume) {
        Some(rest) => rest,
        None => {
            consume(&buffer);
            alone(file, &mut buffer, &mut consume)
        }
    };
    Ok(longest.max(rest?))
}

/// Consumes `first` and then the remaining file, which another thread reads meanwhile. If no other
/// thread can be started, returns `None` and consumes nothing.
fn beside(
    file: &File,
    first: &[u8],
    consume: &mut impl FnMut(&[u8]),
) -> Option<io::Result<LongestRead>> {
    let (full, parse) = sync_channel(BUFFERS);
    let (empty, reuse) = sync_channel(BUFFERS);
    thread::scope(|scope| {
        let read = move || keep_reading(file, &full, &reuse);
        let reader = thread::Builder::new().spawn_scoped(scope, read).ok()?;
        for _ in 0..BUFFERS {
            // The reader may have ended with an error, which it returns below.
            let _ = empty.send(vec![0; BUFFER]);
        }
        consume(first);
        for (buffer, filled) in parse {
            consume(&buffer[..filled]);
            let _ = empty.send(buffer);
        }
        Some(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Alternates between reading and consuming.
fn alone(
    file: &File,
    buffer: &mut [u8],
    consume: &mut impl FnMut(&[u8]),
) -> io::Result<LongestRead> {
    let mut longest = LongestRead::default();
    loop {
        match fill(file, buffer, &mut longest)? {
            0 => return Ok(longest),
            filled => consume(&buffer[..filled]),
        }
    }
}

/// A buffer, and the number of bytes in it.
type FilledBuffer = (Vec<u8>, usize);

fn keep_reading(
    file: &File,
    full: &SyncSender<FilledBuffer>,
    reuse: &Receiver<Vec<u8>>,
) -> io::Result<LongestRead> {
    let mut longest = LongestRead::default();
    while let Ok(mut buffer) = reuse.recv() {
        let filled = fill(file, &mut buffer, &mut longest)?;
        if filled == 0 || full.send((buffer, filled)).is_err() {
            break;
        }
    }
    Ok(longest)
}

/// Reads until the buffer is full or the file ends. A seq_file returns about a page per call.
fn fill(file: &File, buffer: &mut [u8], longest: &mut LongestRead) -> io::Result<usize> {
    let mut filled = 0;
    let mut ended = false;
    while filled < buffer.len() && !ended {
        let is_raised = longest.0 < LONG_READ;
        let mut turn = || fill_for(file, &mut buffer[filled..], longest);
        let read = if is_raised { briefly_raised(turn) } else { turn() }?;
        filled += read.filled;
        ended = read.ended;
    }
    Ok(filled)
}

/// Result of several reads.
struct ReadTurn {
    filled: usize,
    /// True at the end of the file.
    ended: bool,
}

/// Reads for [`RAISED`], or until the buffer is full or the file ends.
fn fill_for(mut file: &File, buffer: &mut [u8], longest: &mut LongestRead) -> io::Result<ReadTurn> {
    let mut turn = ReadTurn { filled: 0, ended: false };
    let first = Instant::now();
    let mut begin = first;
    while turn.filled < buffer.len() && begin.duration_since(first) < RAISED {
        let read = file.read(&mut buffer[turn.filled..]);
        let end = Instant::now();
        match read {
            Ok(0) => {
                turn.ended = true;
                break;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => {
                turn.filled += read?;
                longest.0 = longest.0.max(nanoseconds(end.duration_since(begin)));
            }
        }
        begin = end;
    }
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    /// A file that takes several buffers, whose bytes show their position.
    fn long_file() -> (File, Vec<u8>) {
        let bytes: Vec<u8> = (0_u8..=250).cycle().take(4 * BUFFER + 17).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file.rewind().unwrap();
        (file, bytes)
    }

    #[test]
    fn both_ways_of_reading_give_the_whole_file_in_order() {
        let (mut file, bytes) = long_file();
        let mut beside = Vec::new();
        stream(&file, |piece| beside.extend_from_slice(piece)).unwrap();
        assert!(beside == bytes);
        file.rewind().unwrap();
        let mut in_turn = Vec::new();
        alone(&file, &mut vec![0; BUFFER], &mut |piece: &[u8]| in_turn.extend_from_slice(piece))
            .unwrap();
        assert!(in_turn == bytes);
    }

    #[test]
    fn an_error_of_the_reader_is_returned() {
        let folder = File::open("/proc").unwrap();
        assert!(stream(&folder, |_| panic!("nothing can be read of a folder")).is_err());
    }
}
