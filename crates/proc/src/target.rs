//! Which process a user means: a pid, `self`, or a name.

use pagewise_model::{Name, Pid};

use crate::{Error, ProcRoot, stat};

/// Finds the process that `text` names: a pid, `self`, the exact name of one process, else a part of one's.
///
/// A name is the kernel's (`comm`) or the last component of the command's first word. We are never found by name.
///
/// # Errors
/// [`Error::NoSuchProcess`], [`Error::NotFound`], [`Error::AmbiguousName`] with all that fit.
pub fn find(root: &ProcRoot, text: &str) -> Result<Pid, Error> {
    if text == "self" {
        return Ok(Pid(std::process::id()));
    }
    if let Ok(pid) = text.parse() {
        return Ok(Pid(pid));
    }
    let us = Pid(std::process::id());
    let pids = root.pids()?.into_iter().filter(|&pid| !(root.is_live() && pid == us));
    let named: Vec<_> = pids.filter_map(|pid| Some((pid, names(root, pid)?))).collect();
    let exact = |names: &[Name; 2]| names.iter().any(|name| name.as_bytes() == text.as_bytes());
    let part = |names: &[Name; 2]| {
        names.iter().any(|name| memchr::memmem::find(name.as_bytes(), text.as_bytes()).is_some())
    };
    let fit = |test: &dyn Fn(&[Name; 2]) -> bool| -> Vec<(Pid, Name)> {
        let fitting = named.iter().filter(|(_, names)| test(names));
        fitting.map(|(pid, [comm, _])| (*pid, comm.clone())).collect()
    };
    let mut found = fit(&exact);
    if found.is_empty() && !text.is_empty() {
        found = fit(&part);
    }
    match found.as_slice() {
        [] => Err(Error::NotFound { name: text.into() }),
        [(pid, _)] => Ok(*pid),
        _ => Err(Error::AmbiguousName { name: text.into(), candidates: found }),
    }
}

/// `comm`, and the command without its folder; none of a process that has just ended.
fn names(root: &ProcRoot, pid: Pid) -> Option<[Name; 2]> {
    let stat = stat::parse(&root.read(pid, "stat").ok()?).ok()?;
    let command = root.read(pid, "cmdline").unwrap_or_default();
    let first = command.split(|&b| b == 0).next().unwrap_or_default();
    let base = Name::new(Name::new(first).base());
    Some([stat.name, base])
}
