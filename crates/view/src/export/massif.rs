//! File format of valgrind's massif, for `ms_print` and massif-visualizer.

use std::io::{self, Write};

use pagewise_model::heap::HeapRecording;
use pagewise_model::traced::Frame;

use super::snapshots::{ExportSnapshot, SnapshotTime, snapshots};
use super::{addable, plain};

/// Maximum depth of the written trees, larger than the depth of call stacks in programs.
const DEEPEST: usize = 256;

/// Writes each snapshot, the peak and the end, with the trees that were stored. Branches with less
/// than `threshold` percent of their snapshot's bytes are merged into one line.
///
/// `mem_heap_B` is the number of live bytes, `mem_heap_extra_B` the number of other bytes of the
/// allocator's footprint. An unknown footprint is written as 0, because the format has no missing
/// values.
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum reaches 2^63.
pub fn write(recording: &HeapRecording, threshold: f64, out: &mut dyn Write) -> io::Result<()> {
    let snapshots = snapshots(recording);
    for snapshot in &snapshots {
        addable([snapshot.bytes, snapshot.extra.unwrap_or(0)].into_iter())?;
    }
    let words: Vec<_> = recording.command.iter().map(|word| uncommented(word.as_bytes())).collect();
    write!(out, "desc: pagewise heap export, mem_heap_extra_B is what the allocator held beyond")?;
    writeln!(out, " live bytes\ncmd: {}\ntime_unit: ms", words.join(" "))?;
    for (at, snapshot) in snapshots.iter().enumerate() {
        writeln!(
            out,
            "#-----------\nsnapshot={at}\n#-----------\ntime={}\nmem_heap_B={}\nmem_heap_extra_B={}\nmem_stacks_B=0",
            snapshot.time_ns / 1_000_000,
            snapshot.bytes,
            snapshot.extra.unwrap_or(0)
        )?;
        match (&snapshot.sites, snapshot.what) {
            (Some(sites), what) => {
                let word = if what == SnapshotTime::Peak { "peak" } else { "detailed" };
                writeln!(out, "heap_tree={word}")?;
                MassifTree::new(recording, snapshot, sites, threshold).write(out)?;
            }
            (None, _) => writeln!(out, "heap_tree=empty")?,
        }
    }
    Ok(())
}

/// A call stack as indices of frames, the allocating function first, and its bytes.
type MassifStack<'r> = (&'r [u32], u64);

/// The tree of one snapshot.
struct MassifTree<'r> {
    recording: &'r HeapRecording,
    /// Sorted by call stack, so that stacks with a common start are neighbors.
    rows: Vec<MassifStack<'r>>,
    bytes: u64,
    threshold: f64,
}

/// A child of a node of the tree.
enum MassifChild {
    /// A frame, and the range of the rows that contain it.
    Frame { number: u32, from: usize, to: usize, bytes: u64 },
    /// Number of branches below the threshold, and their bytes.
    Rest { places: u64, bytes: u64 },
}

impl<'r> MassifTree<'r> {
    fn new(
        recording: &'r HeapRecording,
        snapshot: &ExportSnapshot,
        sites: &[(usize, u64)],
        threshold: f64,
    ) -> MassifTree<'r> {
        let stack = |site: usize| {
            let at = usize::try_from(recording.sites.get(site)?.stack).ok()?;
            recording.stacks.get(at).map(Vec::as_slice)
        };
        let rows = sites.iter().map(|(site, bytes)| (stack(*site).unwrap_or(&[]), *bytes));
        let mut rows: Vec<MassifStack<'r>> = rows.collect();
        rows.sort_unstable();
        MassifTree { recording, rows, bytes: snapshot.bytes, threshold }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut children = self.children(0, self.rows.len(), 0);
        // Bytes of unknown call stacks, and of sites that were too small to be stored.
        let known = children.iter().fold(0_u64, |sum, child| sum.saturating_add(child.bytes()));
        add_rest(&mut children, 1, self.bytes.saturating_sub(known));
        let label = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.";
        writeln!(out, "n{}: {} {label}", children.len(), self.bytes)?;
        self.write_children(children, 0, out)
    }

    fn write_children(
        &self,
        children: Vec<MassifChild>,
        depth: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        for child in children {
            write!(out, "{:indent$}", "", indent = depth + 1)?;
            match child {
                MassifChild::Frame { number, from, to, bytes } => {
                    let below = self.children(from, to, depth + 1);
                    let label = self.label(number);
                    writeln!(out, "n{}: {bytes} {label}", below.len())?;
                    self.write_children(below, depth + 1, out)?;
                }
                MassifChild::Rest { places: 0 | 1, bytes } => {
                    let threshold = self.threshold;
                    writeln!(
                        out,
                        "n0: {bytes} in 1 place, below massif's threshold ({threshold:.2}%)"
                    )?;
                }
                MassifChild::Rest { places, bytes } => {
                    let threshold = self.threshold;
                    writeln!(
                        out,
                        "n0: {bytes} in {places} places, all below massif's threshold ({threshold:.2}%)"
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Children of a node at `depth`, largest first. Callers below the threshold are merged into
    /// one child.
    fn children(&self, from: usize, to: usize, depth: usize) -> Vec<MassifChild> {
        let mut children = Vec::new();
        let (mut places, mut small) = (0, 0_u64);
        if depth >= DEEPEST {
            return children;
        }
        let mut start = from;
        while let Some((stack, _)) = self.rows[..to].get(start) {
            let same =
                self.rows[start..to].iter().take_while(|(it, _)| it.get(depth) == stack.get(depth));
            let (count, bytes) =
                same.fold((0, 0_u64), |(n, sum), (_, bytes)| (n + 1, sum.saturating_add(*bytes)));
            match stack.get(depth) {
                // The call stack ends at this depth.
                None => {}
                Some(number) if self.is_large(bytes) => {
                    children.push(MassifChild::Frame {
                        number: *number,
                        from: start,
                        to: start + count,
                        bytes,
                    });
                }
                Some(_) => (places, small) = (places + 1, small.saturating_add(bytes)),
            }
            start += count;
        }
        children.sort_by_key(|child| std::cmp::Reverse(child.bytes()));
        add_rest(&mut children, places, small);
        children
    }

    #[expect(clippy::cast_precision_loss, reason = "a threshold need not be exact")]
    fn is_large(&self, bytes: u64) -> bool {
        bytes as f64 * 100.0 >= self.threshold * self.bytes as f64
    }

    /// `0x1234: function (file.c:12)`, in the form of massif.
    fn label(&self, number: u32) -> String {
        let frame = usize::try_from(number).ok().and_then(|at| self.recording.frames.get(at));
        let Some(Frame { function, module, offset, line, .. }) = frame else {
            return "0x0: ???".to_owned();
        };
        let function = function.as_deref().filter(|name| !name.is_empty()).unwrap_or("???");
        let function = uncommented(function.as_bytes());
        let place = match (line, module) {
            (Some(line), _) => {
                let file = line.file.rsplit('/').next().unwrap_or(&line.file);
                format!(" ({}:{})", uncommented(file.as_bytes()), line.number)
            }
            (None, Some(module)) => format!(" (in {})", uncommented(module.as_bytes())),
            (None, None) => String::new(),
        };
        format!("0x{offset:X}: {function}{place}")
    }
}

impl MassifChild {
    fn bytes(&self) -> u64 {
        match self {
            MassifChild::Frame { bytes, .. } | MassifChild::Rest { bytes, .. } => *bytes,
        }
    }
}

/// Adds `more` branches with `bytes` in total to the child that sums the branches below the
/// threshold.
fn add_rest(children: &mut Vec<MassifChild>, more: u64, bytes: u64) {
    if bytes == 0 {
        return;
    }
    match children.iter_mut().find(|child| matches!(child, MassifChild::Rest { .. })) {
        Some(MassifChild::Rest { places, bytes: rest }) => {
            *places += more;
            *rest = rest.saturating_add(bytes);
        }
        _ => children.push(MassifChild::Rest { places: more, bytes }),
    }
}

/// Replaces `#`, at which `ms_print` begins a comment.
fn uncommented(text: &[u8]) -> String {
    plain(text).replace('#', ":")
}
