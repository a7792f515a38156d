//! Replacement of names in a sweep and in findings, for a support request.

use std::collections::HashMap;
use std::sync::Arc;

use pagewise_model::Name;
use pagewise_model::sweep::{ProcessIdentity, Sweep};

use crate::diagnosis::{ExportedFinding, FindingObject};

/// Replacements of names, by the kind of the name. Equal names have the same replacement.
#[derive(Debug, Default)]
struct Replacements(HashMap<&'static str, HashMap<Name, Name>>);

impl Replacements {
    /// Returns the replacement of a name: `process-3` for the third name of its kind.
    fn replace(&mut self, kind: &'static str, name: &Name) -> Name {
        let known = self.0.entry(kind).or_default();
        let next = known.len() + 1;
        let made = || Name::new(format!("{kind}-{next}").as_bytes());
        known.entry(name.clone()).or_insert_with(made).clone()
    }

    fn path(&mut self, path: &Name) -> Name {
        let parts = path.as_bytes().split(|&b| b == b'/').map(|part| match part {
            b"" => Vec::new(),
            part => self.replace("cgroup", &Name::new(part)).as_bytes().to_vec(),
        });
        Name::new(&parts.collect::<Vec<_>>().join(&b'/'))
    }
}

/// Replaces names of processes, programs, users and cgroups, and removes command lines. Equal names
/// have the same replacement everywhere. Sizes, counters, PIDs and times are unchanged.
pub fn anonymous(sweep: &mut Sweep, findings: &mut [ExportedFinding]) {
    let mut names = Replacements::default();
    for process in &mut sweep.processes {
        let identity = &process.identity;
        process.identity = Arc::new(ProcessIdentity {
            name: names.replace("process", &identity.name),
            parent: identity.parent,
            command: identity.command.clone().map(|_| Vec::new()),
            exe: identity.exe.as_ref().map(|it| names.replace("program", it)).map_err(Clone::clone),
            uid: identity.uid.clone(),
            user: identity.user.as_ref().map(|it| names.replace("user", it)),
            cgroup: identity.cgroup.as_ref().map(|it| names.path(it)).map_err(Clone::clone),
            started_unix_ns: identity.started_unix_ns,
        });
    }
    if let Ok(cgroups) = &mut sweep.cgroups {
        for cgroup in cgroups.iter_mut() {
            cgroup.path = names.path(&cgroup.path);
        }
        // Cgroups are searched by path, so they must be in order of path.
        cgroups.sort_by(|a, b| a.path.cmp(&b.path));
    }
    for finding in findings {
        finding.object = match &finding.object {
            FindingObject::Machine => FindingObject::Machine,
            FindingObject::Process(name) => FindingObject::Process(names.replace("process", name)),
            FindingObject::Cgroup(path) => FindingObject::Cgroup(names.path(path)),
        };
    }
}
