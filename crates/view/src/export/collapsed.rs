//! Collapsed stacks: a line for each call stack, its functions from the outermost on with `;` between, a space, the count.

use std::collections::BTreeMap;
use std::io::{self, Write};

use pagewise_model::traced::{Frame, Profile};

use super::{called, checked, frames};

/// Writes a profile as `main;parse;grow 12`, in order of functions.
///
/// In names `;` becomes `:`, as `stackcollapse-perf.pl` has it, and what readers would take for a count, a difference or a
/// comment is joined by `_`.
///
/// ```
/// use pagewise_model::traced::{Counted, Frame, Profile};
///
/// let frame = |name: &str| Frame {
///     function: Some(name.into()), module: None, offset: 0, line: None, inlined: false,
/// };
/// let profile = Profile {
///     stacks: vec![vec![frame("touch"), frame("main")]],
///     samples: vec![Counted { stack: 0, count: 3, took_ns: None, thread: None, labels: vec![] }],
///     ..Profile::default()
/// };
/// let mut out = Vec::new();
/// pagewise_view::export::collapsed::write(&profile, &mut out).unwrap();
/// assert_eq!(out, b"main;touch 3\n");
/// ```
///
/// # Errors
/// What `out` returns; `InvalidData` for counts that add up to more than 2^63.
pub fn write(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    for (stack, count) in stacks(profile)? {
        writeln!(out, "{} {count}", stack.join(";"))?;
    }
    Ok(())
}

/// How often each stack was met, by its functions from the outermost on.
pub(super) fn stacks(profile: &Profile) -> io::Result<BTreeMap<Vec<String>, u64>> {
    checked(profile)?;
    let mut stacks = BTreeMap::new();
    for counted in profile.samples.iter().filter(|counted| counted.count > 0) {
        let mut names: Vec<String> = frames(profile, counted).iter().rev().map(name).collect();
        if names.is_empty() {
            names.push("[unknown]".to_owned());
        }
        *stacks.entry(names).or_insert(0) += counted.count;
    }
    Ok(stacks)
}

/// A frame in words that cannot be taken for anything else in a line.
fn name(frame: &Frame) -> String {
    let name = called(frame).replace(';', ":");
    let mut name = name.trim().to_owned();
    let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    while let Some(at) = name.rfind(' ').filter(|at| is_number(&name[at + 1..])) {
        name.replace_range(at..=at, "_");
    }
    if name.starts_with("# ") {
        name.replace_range(1..=1, "_");
    }
    if name.is_empty() { "[unknown]".to_owned() } else { name }
}
