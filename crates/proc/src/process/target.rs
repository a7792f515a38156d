//! The process that a user names: by a PID, `self`, or a name.

use std::cmp::Reverse;

use pagewise_model::{Name, Pid};

use crate::text::number;
use crate::{ProcError, ProcRoot, stat};

/// Finds a process as [`find`] does, and also returns the tree with this process
/// [held](ProcRoot::holding), for several readings of it.
///
/// # Errors
/// As [`find`]; [`ProcError::NoSuchProcess`].
pub fn hold(root: &ProcRoot, text: &str) -> Result<(ProcRoot, Pid), ProcError> {
    let pid = find(root, text)?;
    Ok((root.holding(pid)?, pid))
}

/// Finds the process that `text` names: a PID, `self`, the exact name of one process, else a part
/// of the name of one.
///
/// A name is the kernel's (`comm`), or the last component of the program's path or of the command's
/// first word. This process is never found by name: a user who names `pagewise` means another
/// process.
///
/// # Errors
/// [`ProcError::NotFound`], [`ProcError::AmbiguousName`] with all that fit. A PID is not checked:
/// reading it returns [`ProcError::NoSuchProcess`].
pub fn find(root: &ProcRoot, text: &str) -> Result<Pid, ProcError> {
    let not_found = || ProcError::NotFound { name: text.into() };
    if let Some(pid) = pid(text.as_bytes()) {
        return Ok(pid);
    }
    let us = root.ourselves();
    if let (Some(us), "self") = (us, text) {
        return Ok(us);
    }
    let others = root.pids()?.into_iter().filter(|&pid| Some(pid) != us);
    let named: Vec<NamedProcess> = others.filter_map(|pid| NamedProcess::read(root, pid)).collect();
    let exact = |name: &[u8]| name == text.as_bytes();
    let part = |name: &[u8]| memchr::memmem::find(name, text.as_bytes()).is_some();
    let mut found = fitting(&named, &exact);
    if found.is_empty() && !text.is_empty() {
        found = fitting(&named, &part);
    }
    match found.as_slice() {
        [] => Err(not_found()),
        [one] => Ok(one.pid),
        _ => {
            found.sort_by_key(|it| Reverse(it.resident_pages));
            let candidates = found.iter().map(|it| (it.pid, it.command_line())).collect();
            Err(ProcError::AmbiguousName { name: text.into(), candidates })
        }
    }
}

fn pid(digits: &[u8]) -> Option<Pid> {
    let is_plain = digits.iter().all(u8::is_ascii_digit);
    number(digits).filter(|_| is_plain).and_then(|n| u32::try_from(n).ok()).map(Pid)
}

/// Longest part of a command line in a list, in bytes.
const MAX_LINE: usize = 60;

/// A process and its names.
struct NamedProcess {
    pid: Pid,
    comm: Name,
    command: Name,
    exe: Option<Name>,
    /// The beginning of the command's words, each with a NUL at its end.
    words: Vec<u8>,
    resident_pages: u64,
}

impl NamedProcess {
    /// Returns `None` for a process that has just ended.
    fn read(root: &ProcRoot, pid: Pid) -> Option<NamedProcess> {
        let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
        let words = root.read(pid, "cmdline").unwrap_or_default();
        let first = words.split(|&b| b == 0).next().unwrap_or_default();
        Some(NamedProcess {
            pid,
            comm: stat.name,
            command: Name::new(first),
            exe: root.link(pid, "exe").ok(),
            resident_pages: stat.resident_pages,
            // A command line can have megabytes.
            words: words[..words.len().min(MAX_LINE + 1)].to_vec(),
        })
    }

    /// The beginning of the command line; a process without one has its name in brackets.
    fn command_line(&self) -> Name {
        let is_padding = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
        let end = self.words.iter().rposition(|byte| !is_padding(byte)).map_or(0, |last| last + 1);
        let words = &self.words[..end];
        if words.is_empty() {
            return Name::new(&[b"[", self.comm.as_bytes(), b"]"].concat());
        }
        let line = words.iter().map(|&byte| if byte == 0 { b' ' } else { byte });
        let mut line: Vec<u8> = line.collect();
        if line.len() > MAX_LINE {
            let is_in_character = |at: usize| line[at] & 0xc0 == 0x80;
            let length = (0..=MAX_LINE).rev().find(|&at| !is_in_character(at));
            line.truncate(length.unwrap_or(MAX_LINE));
            line.extend_from_slice("…".as_bytes());
        }
        Name::new(&line)
    }

    fn fits(&self, test: &dyn Fn(&[u8]) -> bool) -> bool {
        let exe = self.exe.as_ref().is_some_and(|exe| test(exe.base()));
        exe || test(self.comm.as_bytes()) || test(self.command.base())
    }
}

fn fitting<'n>(named: &'n [NamedProcess], test: &dyn Fn(&[u8]) -> bool) -> Vec<&'n NamedProcess> {
    named.iter().filter(|it| it.fits(test)).collect()
}
