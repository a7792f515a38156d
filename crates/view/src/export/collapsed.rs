//! Collapsed stacks: one line for each call stack, with its functions from the outermost on,
//! separated by `;`, then a space and the count.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use pagewise_model::Name;
use pagewise_model::heap::{HeapRecording, Of};
use pagewise_model::traced::{Frame, StackProfile};

use super::{addable, called, checked, frames};

/// Writes a profile as `main;parse;grow 12`, in order of functions.
///
/// In names `;` becomes `:`, as in `stackcollapse-perf.pl`. Readers would parse a number after the
/// last space of a name as a count or a difference, and `# ` at the start of a name as a comment:
/// `_` replaces these spaces.
///
/// ```
/// use pagewise_model::traced::{StackCount, Frame, StackProfile};
///
/// let frame = |name: &str| Frame {
///     function: Some(name.into()), module: None, offset: 0, line: None, inlined: false,
/// };
/// let profile = StackProfile {
///     stacks: vec![vec![frame("touch"), frame("main")]],
///     samples: vec![StackCount { stack: 0, count: 3, took_ns: None, thread: None, labels: vec![] }],
///     ..StackProfile::default()
/// };
/// let mut out = Vec::new();
/// pagewise_view::export::collapsed::write(&profile, &mut out).unwrap();
/// assert_eq!(out, b"main;touch 3\n");
/// ```
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for counts whose sum reaches 2^63.
pub fn write(profile: &StackProfile, out: &mut dyn Write) -> io::Result<()> {
    CollapsedStacks::of_profile(profile)?.write(out)
}

/// Writes one number for each call stack of a heap, in the format of [`write()`].
///
/// # Errors
/// Returns the error of `out`; `InvalidData` for numbers whose sum reaches 2^63.
pub fn write_heap(recording: &HeapRecording, of: Of, out: &mut dyn Write) -> io::Result<()> {
    CollapsedStacks::of_heap(recording, of)?.write(out)
}

/// Name for an unknown function.
const UNKNOWN: &str = "[unknown]";

/// Counts by call stack. Each name is stored once, because there can be a hundred thousand stacks
/// of fifty frames.
#[derive(Debug, Default)]
pub(super) struct CollapsedStacks<'p> {
    names: Vec<String>,
    numbers: HashMap<FrameName<'p>, usize>,
    /// Counts by call stack: indices of names, the outermost first.
    counts: HashMap<Vec<usize>, u64>,
}

/// Function and file of a frame, from which its name follows.
type FrameName<'p> = (Option<&'p str>, Option<&'p Name>);

impl<'p> CollapsedStacks<'p> {
    pub(super) fn of_profile(profile: &'p StackProfile) -> io::Result<CollapsedStacks<'p>> {
        checked(profile)?;
        let mut stacks = CollapsedStacks::default();
        for counted in &profile.samples {
            stacks.add(frames(profile, counted).iter().rev(), None, counted.count);
        }
        Ok(stacks)
    }

    pub(super) fn of_heap(recording: &'p HeapRecording, of: Of) -> io::Result<CollapsedStacks<'p>> {
        addable(recording.sites.iter().map(|site| of.number(site)))?;
        let mut stacks = CollapsedStacks::default();
        for site in &recording.sites {
            stacks.add(recording.frames_of(site).rev(), site.kind.called(), of.number(site));
        }
        Ok(stacks)
    }

    /// Adds the count of a call stack. `last` is appended to the stack: the name of a callee of the
    /// innermost frame, for which no frame exists.
    fn add(
        &mut self,
        frames: impl Iterator<Item = &'p Frame>,
        last: Option<&'static str>,
        count: u64,
    ) {
        if count == 0 {
            return;
        }
        let frames = frames.map(|it| (it.function.as_deref(), it.module.as_ref()));
        let mut stack: Vec<usize> = frames.map(|called| self.number(called)).collect();
        if stack.is_empty() {
            stack.push(self.number((None, None)));
        }
        stack.extend(last.map(|last| self.number((Some(last), None))));
        *self.counts.entry(stack).or_insert(0) += count;
    }

    fn number(&mut self, called: FrameName<'p>) -> usize {
        let names = &mut self.names;
        *self.numbers.entry(called).or_insert_with(|| {
            names.push(name(called));
            names.len() - 1
        })
    }

    /// One line for each call stack, sorted by the names of its functions.
    pub(super) fn lines(&self) -> impl DoubleEndedIterator<Item = String> {
        // Different frames can have the same name.
        let mut sorted: Vec<&str> = self.names.iter().map(|name| &**name).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let rank = |name: &String| sorted.binary_search(&&**name).unwrap_or(0);
        let ranks: Vec<usize> = self.names.iter().map(rank).collect();
        let mut lines: BTreeMap<Vec<usize>, u64> = BTreeMap::new();
        for (stack, count) in &self.counts {
            let stack = stack.iter().filter_map(|at| ranks.get(*at).copied()).collect();
            *lines.entry(stack).or_insert(0) += count;
        }
        lines.into_iter().map(move |(stack, count)| {
            let names: Vec<&str> = stack.iter().filter_map(|at| sorted.get(*at).copied()).collect();
            format!("{} {count}", names.join(";"))
        })
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines().try_for_each(|line| writeln!(out, "{line}"))
    }
}

/// Name of a frame, changed so that readers do not parse parts of it as a separator, a count or a
/// comment.
fn name((function, module): FrameName<'_>) -> String {
    let name = called(function, module).replace(';', ":");
    let mut name = name.trim().to_owned();
    let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    while let Some(at) = name.rfind(' ').filter(|at| is_number(&name[at + 1..])) {
        name.replace_range(at..=at, "_");
    }
    if name.starts_with("# ") {
        name.replace_range(1..=1, "_");
    }
    if name.is_empty() { UNKNOWN.to_owned() } else { name }
}
