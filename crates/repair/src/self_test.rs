//! Selection of the method that releases zero-filled pages on this kernel, by a test on a child
//! process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use pagewise_model::thp::{Action, FixMethod, FixPlan};
use pagewise_model::{Absent, AddrRange, Bytes, Pid, Reading};
use pagewise_proc::{ProcRoot, stat};
use pagewise_sys::madvise::Advice;
use pagewise_sys::region::AlignedRegion;

use crate::{RepairConditions, RepairTarget, carry_out};

/// Number of huge pages of the subject.
const BLOCKS: usize = 2;
/// Maximum pause of the child process.
const PAUSE: Duration = Duration::from_secs(1);
/// Value of the first byte of each huge page; all other bytes are 0.
const MARK: u8 = 0x5a;

/// The first of `methods` that works in a test on a process that `subject` starts. That process
/// must call [`be_the_subject`].
///
/// Absent if no method works, or if the process gets no huge pages for the test.
pub fn choose(
    methods: &[FixMethod],
    subject: &dyn Fn() -> io::Result<Command>,
) -> Reading<FixMethod> {
    let mut reasons = Vec::new();
    for &method in methods {
        match SelfTestProcess::start(subject).and_then(|subject| subject.try_out(method)) {
            Ok(()) => return Ok(method),
            Err(why) => reasons.push(format!("{}: {why}", method.key())),
        }
    }
    Err(Absent::NotSupported(
        format!("no method of releasing zero pages works here ({})", reasons.join("; ")).into(),
    ))
}

/// A child process with huge pages that are zero-filled except for their first byte.
struct SelfTestProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    blocks: Vec<AddrRange>,
}

impl SelfTestProcess {
    fn start(subject: &dyn Fn() -> io::Result<Command>) -> Result<SelfTestProcess, String> {
        let mut command = subject().map_err(|e| e.to_string())?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("it was piped");
        let mut subject = SelfTestProcess { child, stdin, blocks: Vec::new() };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(|e| e.to_string())?;
        let mut numbers = line.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let (Some(start), Some(size)) = (numbers.next(), numbers.next()) else {
            return Err("no huge page can be had to try it on".into());
        };
        let block = |i| AddrRange { start: start + i * size, end: start + (i + 1) * size };
        subject.blocks = (0..BLOCKS as u64).map(block).collect();
        Ok(subject)
    }

    fn try_out(mut self, method: FixMethod) -> Result<(), String> {
        let pid = Pid(self.child.id());
        let target = self.target(pid).map_err(|e| e.to_string())?;
        let whole = target.still_huge(&self.blocks).map_err(|e| e.to_string())?;
        if whole < BLOCKS as u64 {
            return Err("no huge page can be had to try it on".into());
        }
        let plan = FixPlan {
            action: Action::Shrink,
            ranges: self.blocks.clone(),
            hold: Vec::new(),
            change: Ok(Bytes::ZERO),
            spared: Bytes::ZERO,
        };
        let mut conditions = RepairConditions {
            max_pause: PAUSE,
            // Nothing has to be undone: the child process is killed after the test.
            keeper: &mut (),
            is_interrupted: &|| false,
        };
        let repair =
            carry_out(&target, &plan, method, &mut conditions).map_err(|e| e.to_string())?;
        let freed = repair.rss_before.saturating_sub(repair.rss_after);
        let all: Bytes = self.blocks.iter().map(|block| block.len()).sum();
        // The child process checks its bytes when its standard input is closed.
        drop(self.stdin.take());
        let intact = self.child.wait().is_ok_and(|status| status.success());
        match () {
            () if !intact => Err("it does not keep what was written".into()),
            () if freed.0 < all.0 / 2 => Err(repair.why.unwrap_or("it frees nothing".into())),
            () => Ok(()),
        }
    }

    fn target(&self, pid: Pid) -> Result<RepairTarget, crate::RepairError> {
        let stat = stat::parse(&ProcRoot::live().read(pid, "stat")?)?;
        RepairTarget::open(pid, stat.start_ticks)
    }
}

impl Drop for SelfTestProcess {
    fn drop(&mut self) {
        // Both calls fail only if the child process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs as the child process of [`choose`]: maps huge pages of `huge_size` bytes and writes their
/// address and size to `output`. Returns, at the end of `input`, true if their bytes are unchanged.
///
/// # Errors
/// Memory cannot be mapped, or `input` or `output` fails.
pub fn be_the_subject(
    huge_size: usize,
    mut input: impl Read,
    mut output: impl Write,
) -> io::Result<bool> {
    let mut region = AlignedRegion::map(BLOCKS * huge_size, huge_size)?;
    // `MADV_HUGEPAGE` makes the pages huge if the THP settings allow it; `MADV_COLLAPSE` (Linux
    // 6.1) does so under any setting.
    let _ = region.advise(Advice::HugePage);
    for block in region.bytes().chunks_exact_mut(huge_size) {
        block[0] = MARK;
    }
    let _ = region.advise(Advice::Collapse);
    writeln!(output, "{} {huge_size}", region.start())?;
    output.flush()?;
    input.read_to_end(&mut Vec::new())?;
    let is_intact = |block: &[u8]| block[0] == MARK && block[1..].iter().all(|&byte| byte == 0);
    Ok(region.bytes().chunks_exact(huge_size).all(is_intact))
}
