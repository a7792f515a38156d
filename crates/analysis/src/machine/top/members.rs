//! Selection of the processes that a query concerns, and the names of their groups.

use pagewise_model::Name;
use pagewise_model::sweep::{ProcessIdentity, Sweep, SweepProcess};
use pagewise_model::top::{TopGrouping, TopQuery};

/// Returns the processes of the query's cgroup, or all processes.
pub(super) fn select<'s>(sweep: &'s Sweep, query: &TopQuery) -> Vec<&'s SweepProcess> {
    let is_wanted = |process: &&SweepProcess| match &query.cgroup {
        None => true,
        Some(cgroup) => process.identity.cgroup.as_ref().is_ok_and(|it| is_inside(it, cgroup)),
    };
    sweep.processes.iter().filter(is_wanted).collect()
}

/// True if `path` is `cgroup` or a cgroup below it.
pub(super) fn is_inside(path: &Name, cgroup: &Name) -> bool {
    let folder = cgroup.as_bytes().strip_suffix(b"/").unwrap_or(cgroup.as_bytes());
    let rest = path.as_bytes().strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the user's name, or the UID if the machine has no name for it.
pub(super) fn user(identity: &ProcessIdentity) -> Name {
    match (&identity.user, &identity.uid) {
        (Some(user), _) => user.clone(),
        (None, Ok(uid)) => Name::from(uid.to_string().as_str()),
        (None, Err(_)) => Name::from("?"),
    }
}

/// Returns the name of the group of a process.
pub(super) fn group(identity: &ProcessIdentity, grouping: TopGrouping) -> Name {
    match grouping {
        TopGrouping::User => user(identity),
        TopGrouping::Cgroup => identity.cgroup.clone().unwrap_or_else(|_| Name::from("?")),
        // Without permission, the link to the program file cannot be read. The name of the process
        // then replaces it.
        TopGrouping::Exe => identity.exe.clone().unwrap_or_else(|_| identity.name.clone()),
    }
}
