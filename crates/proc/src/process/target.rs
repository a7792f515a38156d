//! Which process a user means: a pid, `self`, or a name.

use pagewise_model::{Name, Pid};

use crate::text::number;
use crate::{ProcError, ProcRoot, stat};

/// [`find`], and the tree with that process [held](ProcRoot::holding), for whoever reads it more
/// than once.
///
/// # Errors
/// As [`find`]; [`ProcError::NoSuchProcess`].
pub fn hold(root: &ProcRoot, text: &str) -> Result<(ProcRoot, Pid), ProcError> {
    let pid = find(root, text)?;
    Ok((root.holding(pid)?, pid))
}

/// Finds the process that `text` names: a pid, `self`, the exact name of one process, else a part
/// of one's.
///
/// A name is the kernel's (`comm`), or the last component of the program's path or of the command's
/// first word. We are never found by name: who asks for `pagewise` means another one.
///
/// # Errors
/// [`ProcError::NotFound`], [`ProcError::AmbiguousName`] with all that fit. A pid is believed:
/// [`ProcError::NoSuchProcess`] comes from reading it.
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
        [(pid, _)] => Ok(*pid),
        _ => Err(ProcError::AmbiguousName { name: text.into(), candidates: found }),
    }
}

fn pid(digits: &[u8]) -> Option<Pid> {
    let is_plain = digits.iter().all(u8::is_ascii_digit);
    number(digits).filter(|_| is_plain).and_then(|n| u32::try_from(n).ok()).map(Pid)
}

/// A process and the names it goes by.
struct NamedProcess {
    pid: Pid,
    comm: Name,
    command: Name,
    exe: Option<Name>,
}

impl NamedProcess {
    /// `None` of a process that has just ended.
    fn read(root: &ProcRoot, pid: Pid) -> Option<NamedProcess> {
        let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
        let command = root.read(pid, "cmdline").unwrap_or_default();
        let first = command.split(|&b| b == 0).next().unwrap_or_default();
        Some(NamedProcess {
            pid,
            comm: stat.name,
            command: Name::new(first),
            exe: root.link(pid, "exe").ok(),
        })
    }

    fn fits(&self, test: &dyn Fn(&[u8]) -> bool) -> bool {
        let exe = self.exe.as_ref().is_some_and(|exe| test(exe.base()));
        exe || test(self.comm.as_bytes()) || test(self.command.base())
    }
}

fn fitting(named: &[NamedProcess], test: &dyn Fn(&[u8]) -> bool) -> Vec<(Pid, Name)> {
    named.iter().filter(|n| n.fits(test)).map(|n| (n.pid, n.comm.clone())).collect()
}
