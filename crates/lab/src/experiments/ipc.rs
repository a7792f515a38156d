//! Channels between two processes: shared memory, streams through the kernel, and reading the other
//! process's memory.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

use pagewise_measure::pin::PinnedThread;
use pagewise_model::Bytes;
use pagewise_model::lab::{ExperimentClaim, Plot};
use pagewise_model::report::{Scale, AxisUnit};
use pagewise_labmem::fork::fork;
use pagewise_labmem::mapping::{OwnedMapping, MapRequest};
use pagewise_sys::remote;
use rustix::fs::{MemfdFlags, memfd_create};

use super::RunExperiment;
use crate::bench::{count, nanos};
use crate::error::While;
use crate::results::Explained;
use crate::{ExperimentAbout, Bench, LabError, Need, ParameterAbout, QuantityAbout, ExperimentResults};

/// See [`ABOUT`].
pub(super) struct Ipc;

static ABOUT: ExperimentAbout = ExperimentAbout {
    name: "ipc",
    question: "How fast do two processes talk through shared memory, and how fast through the kernel?",
    expectation: "In memory that both have mapped, a message is there as soon as the other CPU sees it: some 100 ns, without the \
        kernel, as long as both run and look. Through a pipe or a socket each message is two system calls and two copies, and \
        the other side must be woken: tens of microseconds. It does not matter who made the memory: mmap, memfd and System V \
        segments are the same pages. process_vm_readv copies once, and the sender does nothing.",
    figures: "a round trip of 0.2 µs in shared memory, of 60 µs through a pipe; process_vm_readv 8.6 to 9.2 GB/s in pieces of 64 to 512 KiB",
    needs: &[Need::Cpus(2)],
    parameters: &[
        ParameterAbout { name: "rounds", meaning: "round trips for each size", values: [300, 3_000, 30_000] },
        ParameterAbout { name: "mib", meaning: "data sent one way for each message size, in MiB", values: [16, 128, 1024] },
    ],
    quantities: &[
        QuantityAbout { name: "round_trip", unit: AxisUnit::Nanos, meaning: "time for a question and its answer, 8 bytes each" },
        QuantityAbout { name: "bandwidth", unit: AxisUnit::Bytes, meaning: "bytes a second one way, in messages of 256 KiB" },
    ],
    arms: &["shared mapping", "memfd", "System V", "pipe", "socket pair", "process_vm_readv"],
    runs: [5, 7, 7],
    timed: true,
    memory: |_| Bytes::mib(8),
};

/// Sizes of messages in bytes, all multiples of a word.
const SIZES: [usize; 6] = [8, 64, 512, 4 << 10, 32 << 10, LARGEST];
const LARGEST: usize = 256 << 10;

impl RunExperiment for Ipc {
    fn about(&self) -> &'static ExperimentAbout {
        &ABOUT
    }

    fn run(&self, arm: &str, bench: &mut Bench) -> Result<(), LabError> {
        let [rounds, mib] = ["rounds", "mib"].map(|name| bench.parameter(name));
        let message = vec![1; LARGEST];
        let (mut ours, theirs) = ends(arm, &message).while_("cannot create the channel")?;
        let child = fork(|| u8::from(answer(theirs, &message).is_err())).while_("cannot start a process")?;
        ours.other_is(child.pid());
        let _pinned = PinnedThread::to(0)?;
        let talk = talk(ours.as_mut(), rounds, mib << 20, bench);
        child.kill();
        talk.while_("the other process does not answer")
    }

    fn judge(&self, results: &ExperimentResults<'_>) -> Vec<ExperimentClaim> {
        let ratio = |quantity, over, under| results.ratio(quantity, over, under);
        let seen = "0.2 µs in shared memory, 60 µs through a pipe";
        let turns = "both processes must run: if other programs use the CPUs, the polling process waits for its time slice";
        vec![
            results
                .claim("A ring in shared memory answers sooner than a pipe", seen)
                .more_than(10.0, ratio("round_trip", "pipe", "shared mapping"))
                .because(turns),
            results
                .claim("and than a socket", "")
                .more_than(10.0, ratio("round_trip", "socket pair", "shared mapping"))
                .because(turns),
            results
                .claim("A memfd is the same memory", "")
                .the_same(0.25, ratio("bandwidth", "memfd", "shared mapping"))
                .because(turns),
            results
                .claim("and so is a System V segment", "")
                .the_same(0.25, ratio("bandwidth", "System V", "shared mapping"))
                .because(turns),
            results
                .claim("process_vm_readv, with one copy, is faster than a pipe with two", "8.6 to 9.2 GB/s")
                .more_than(1.0, ratio("bandwidth", "process_vm_readv", "pipe")),
            results
                .claim("A pipe is good for large messages: a system call costs the same for 8 bytes", "")
                .holds("more than 10 × the bandwidth", growth(&results.curve("bandwidth", "pipe"))),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        let plot = |curve: &'static str, x: &'static str, y: (&'static str, AxisUnit)| Plot::Curves {
            curve: curve.into(),
            x: (x.into(), AxisUnit::Bytes, Scale::Log),
            y: (y.0.into(), y.1, Scale::Log),
        };
        vec![
            plot("round trip", "size of the answer", ("time", AxisUnit::Nanos)),
            plot("bandwidth", "size of a message", ("bytes a second", AxisUnit::Bytes)),
        ]
    }
}

/// Returns the ratio of a curve's last value to its first value as text, and true if the ratio is
/// above 10.
fn growth(curve: &[(f64, f64)]) -> Option<(bool, pagewise_model::report::Label)> {
    let times = curve.last()?.1 / curve.first()?.1;
    Some((times > 10.0, format!("{times:.0} ×").into()))
}

/// Requests messages of each size: first one at a time, then many at once.
fn talk(end: &mut dyn ChannelEnd, rounds: u64, bytes: u64, bench: &mut Bench) -> io::Result<()> {
    let mut buffer = vec![0; LARGEST];
    ask(end, 1, &mut buffer)?;
    for size in SIZES {
        let (x, message) = (count(size as u64), &mut buffer[..size]);
        let each = (rounds / TRIES).max(1);
        let round_trip = typical(|| (0..each).try_for_each(|_| ask(end, 1, message)))? / count(each);
        bench.point("round trip", x, round_trip);
        let messages = (bytes / TRIES / size as u64).clamp(1, each * 20);
        let bandwidth = x * count(messages) / (typical(|| ask(end, messages, message))? / 1e9);
        bench.point("bandwidth", x, bandwidth);
        match size {
            8 => bench.record("round_trip", round_trip),
            LARGEST => bench.record("bandwidth", bandwidth),
            _ => {}
        }
    }
    Ok(())
}

/// Number of measurements in one run.
const TRIES: u64 = 15;

/// Median time of the tries; in some tries another program occupies one of the CPUs.
fn typical(mut one: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let mut timed = || {
        let begin = Instant::now();
        one().map(|()| nanos(begin))
    };
    let mut times = (0..TRIES).map(|_| timed()).collect::<io::Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Sends a request, which is a word with the number and the size of messages, and receives the
/// messages.
fn ask(end: &mut dyn ChannelEnd, messages: u64, buffer: &mut [u8]) -> io::Result<()> {
    let question = messages << 32 | buffer.len() as u64;
    end.send(&question.to_ne_bytes())?;
    (0..messages).try_for_each(|_| end.receive(buffer))
}

/// Runs in the other process: answers requests until the process is killed.
fn answer(mut end: Box<dyn ChannelEnd + Send>, message: &[u8]) -> io::Result<()> {
    let _pinned = PinnedThread::to(1);
    loop {
        let mut question = [0; 8];
        end.receive(&mut question)?;
        let question = u64::from_ne_bytes(question);
        let size = usize::try_from(question & 0xffff_ffff).unwrap_or(0).min(message.len());
        (0..question >> 32).try_for_each(|_| end.send(&message[..size]))?;
    }
}

/// One end of a channel.
trait ChannelEnd {
    fn send(&mut self, message: &[u8]) -> io::Result<()>;
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()>;
    /// Sets the PID of the process at the other end.
    fn other_is(&mut self, _process: u32) {}
}

/// The end of a channel in this process, and the end in the other process.
type ChannelEnds = (Box<dyn ChannelEnd + Send>, Box<dyn ChannelEnd + Send>);

fn ends(arm: &str, message: &[u8]) -> io::Result<ChannelEnds> {
    match arm {
        "pipe" => {
            let ((from_other, to_us), (from_us, to_other)) = (io::pipe()?, io::pipe()?);
            Ok((Box::new(KernelStream(from_other, to_other)), Box::new(KernelStream(from_us, to_us))))
        }
        "socket pair" => {
            let (ours, theirs) = UnixStream::pair()?;
            let stream = |socket: UnixStream| Ok::<_, io::Error>(KernelStream(socket.try_clone()?, socket));
            Ok((Box::new(stream(ours)?), Box::new(stream(theirs)?)))
        }
        "process_vm_readv" => {
            let [questions, answers] = rings("shared mapping")?;
            let address = message.as_ptr().addr() as u64;
            let reader = RemoteReader { questions: questions.clone(), answers: answers.clone(), other: 0, address };
            Ok((Box::new(reader), Box::new(Offerer { questions, answers })))
        }
        kind => {
            let [questions, answers] = rings(kind)?;
            let ours = Rings { to: questions.clone(), from: answers.clone() };
            Ok((Box::new(ours), Box::new(Rings { to: answers, from: questions })))
        }
    }
}

/// A stream through the kernel: its reader, and its writer.
struct KernelStream<R, W>(R, W);

impl<R: Read, W: Write> ChannelEnd for KernelStream<R, W> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.1.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(message)
    }
}

/// Two rings, one for each direction.
struct Rings {
    to: WordRing,
    from: WordRing,
}

impl ChannelEnd for Rings {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.to.put(message);
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.from.pop_message(message);
        Ok(())
    }
}

/// Reader that copies the offered message from the other process's memory.
struct RemoteReader {
    questions: WordRing,
    answers: WordRing,
    other: u32,
    address: u64,
}

impl ChannelEnd for RemoteReader {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.questions.put(message);
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.answers.wait_for(1);
        let there = self.address..self.address + message.len() as u64;
        let read = remote::read(self.other, &[there], message)?;
        self.answers.have_taken(1);
        if read == message.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn other_is(&mut self, process: u32) {
        self.other = process;
    }
}

/// Sender that offers a message in its own memory, and waits until the message was read.
struct Offerer {
    questions: WordRing,
    answers: WordRing,
}

impl ChannelEnd for Offerer {
    fn send(&mut self, _message: &[u8]) -> io::Result<()> {
        self.answers.have_sent(1);
        self.answers.wait_for_room(LENGTH);
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.questions.pop_message(message);
        Ok(())
    }
}

/// A ring of words in shared memory, for one direction:
///
/// ```text
/// word   0            16             32                32 + LENGTH
///        words sent   words taken    the words themselves, word n at n % LENGTH
/// ```
///
/// The sender writes the first word and the data, the receiver the second word; each has cache
/// lines of its own.
#[derive(Clone)]
struct WordRing(Arc<OwnedMapping>);

const SENT: usize = 0;
const TAKEN: usize = 16;
const WORDS: usize = 32;
/// Number of words in a ring: 64 KiB, the default size of a pipe.
const LENGTH: usize = 8192;
/// Number of bytes after which the other side is notified, so that both copy at the same time.
const PART: usize = 4 << 10;
const WORD: usize = size_of::<u64>();

/// Creates two rings, one for each direction.
fn rings(kind: &str) -> io::Result<[WordRing; 2]> {
    Ok([WordRing(Arc::new(shared(kind)?)), WordRing(Arc::new(shared(kind)?))])
}

/// Maps memory that is shared with a child of a later fork.
fn shared(kind: &str) -> io::Result<OwnedMapping> {
    let page = usize::try_from(pagewise_sys::system::page_size()).unwrap_or(usize::MAX);
    let length = ((WORDS + LENGTH) * WORD).next_multiple_of(page);
    let wanted = MapRequest { length, shared: true, populate: true, ..MapRequest::default() };
    match kind {
        "memfd" => {
            let file = File::from(memfd_create("pagewise-ring", MemfdFlags::CLOEXEC)?);
            file.set_len(length as u64)?;
            OwnedMapping::map(&MapRequest { file: Some(&file), ..wanted })
        }
        "System V" => OwnedMapping::system_v(length),
        _ => OwnedMapping::map(&wanted),
    }
}

impl WordRing {
    fn put(&self, message: &[u8]) {
        for part in message.chunks(PART) {
            let words = part.len() / WORD;
            self.wait_for_room(words);
            let (first, ring) = (self.count(SENT), self.shared_words());
            for (at, bytes) in part.as_chunks().0.iter().enumerate() {
                ring[(first + at) % LENGTH].store(u64::from_ne_bytes(*bytes), Relaxed);
            }
            self.have_sent(words);
        }
    }

    fn pop_message(&self, message: &mut [u8]) {
        for part in message.chunks_mut(PART) {
            let words = part.len() / WORD;
            self.wait_for(words);
            let (first, ring) = (self.count(TAKEN), self.shared_words());
            for (at, bytes) in part.as_chunks_mut().0.iter_mut().enumerate() {
                *bytes = ring[(first + at) % LENGTH].load(Relaxed).to_ne_bytes();
            }
            self.have_taken(words);
        }
    }

    fn shared_words(&self) -> &[AtomicU64; LENGTH] {
        self.0.as_words()[WORDS..].first_chunk().expect("the mapping holds both parts")
    }

    fn count(&self, which: usize) -> usize {
        // Acquire: all writes of the other process before it changed the count are visible.
        usize::try_from(self.0.as_words()[which].load(Acquire)).unwrap_or(usize::MAX)
    }

    fn add(&self, which: usize, words: usize) {
        // Release: a process that sees the count sees all writes before it. There is one writer, so
        // a store is enough.
        let count = self.count(which) + words;
        self.0.as_words()[which].store(count as u64, Release);
    }

    fn have_sent(&self, words: usize) {
        self.add(SENT, words);
    }

    fn have_taken(&self, words: usize) {
        self.add(TAKEN, words);
    }

    fn wait_for(&self, words: usize) {
        wait_until(|| self.count(SENT) - self.count(TAKEN) >= words);
    }

    fn wait_for_room(&self, words: usize) {
        wait_until(|| self.count(SENT) - self.count(TAKEN) + words <= LENGTH);
    }
}

/// Polls a condition; from time to time, lets other threads run.
fn wait_until(is_so: impl Fn() -> bool) {
    for time in 0_u32.. {
        if is_so() {
            return;
        }
        if time % 1024 == 1023 { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_go_through_each_way_to_talk() {
        for arm in &ABOUT.arms[..5] {
            let message: Vec<u8> = (0..=250).cycle().take(LARGEST).collect();
            let (mut ours, mut theirs) = ends(arm, &message).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| SIZES.iter().for_each(|size| ours.send(&message[..*size]).unwrap()));
                for size in SIZES {
                    let mut found = vec![0; size];
                    theirs.receive(&mut found).unwrap();
                    assert!(found == message[..size], "{arm}, {size} bytes");
                }
            });
        }
    }
}
