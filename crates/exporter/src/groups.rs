//! Groups of processes, by rules in the format of process-exporter's configuration file.
//!
//! The first rule that matches a process determines its group. A process without a matching rule
//! belongs to the group of its nearest ancestor that has a group, unless this inheritance is
//! disabled.

mod config;
mod template;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pagewise_model::sweep::{ProcessIdentity, ProcessKey, Sweep, SweepProcess};
use pagewise_model::{Name, Pid};
use regex::Regex;

use crate::exposition::label_text;
pub use config::GroupConfigError;
use template::NameTemplate;
pub use template::TemplateError;

/// Rules that assign processes to groups.
#[derive(Clone, Debug)]
pub struct GroupRules {
    rules: Vec<GroupRule>,
    with_children: bool,
    folder_of: FolderLookup,
}

/// Finds the current working directory of a process, which sweeps do not contain.
type FolderLookup = fn(Pid) -> Option<Name>;

/// One rule. A process matches if all parts of the rule match.
#[derive(Clone, Debug)]
struct GroupRule {
    name: NameTemplate,
    comm: Option<Vec<String>>,
    exe: Option<Vec<ExeRule>>,
    command: Option<Vec<Regex>>,
}

/// Matches programs by the first word of the command line.
#[derive(Clone, Debug)]
struct ExeRule {
    base: String,
    /// Complete path of the program; `None` if the rule has only the last component.
    path: Option<String>,
}

/// Properties of a process that rules and group names use, and the captures of regular expressions.
#[derive(Debug)]
struct ProcessFacts<'a> {
    process: &'a SweepProcess,
    comm: &'a [u8],
    /// First word of the command line; `comm` if the command line is empty.
    exe: &'a [u8],
    folder_of: FolderLookup,
    matches: BTreeMap<String, String>,
}

impl GroupRules {
    /// Rules with one group for each `comm`.
    pub fn by_comm() -> GroupRules {
        let name = NameTemplate::parse("{{.Comm}}").expect("the text above is a template");
        let rule = GroupRule { name, comm: None, exe: None, command: None };
        GroupRules { rules: vec![rule], with_children: true, folder_of: |_| None }
    }

    /// With `true`, a process without a matching rule belongs to the group of its nearest ancestor
    /// that has a group.
    #[must_use]
    pub fn with_children(mut self, with_children: bool) -> GroupRules {
        self.with_children = with_children;
        self
    }

    /// Sets a function that finds the current working directory of a process, for group names with
    /// `.Cwd`.
    #[must_use]
    pub fn with_folders(mut self, folder_of: fn(Pid) -> Option<Name>) -> GroupRules {
        self.folder_of = folder_of;
        self
    }

    /// Assigns each process of a sweep to its group. `known` is the assignment of the previous
    /// sweep: rules are evaluated only for processes whose identity has changed.
    pub fn assign(&self, sweep: &Sweep, known: &GroupAssignment) -> GroupAssignment {
        let mut own = HashMap::with_capacity(sweep.processes.len());
        for process in &sweep.processes {
            let identity = Arc::clone(&process.identity);
            let before = known.own.get(&process.key);
            let name = match before.filter(|(before, _)| Arc::ptr_eq(before, &identity)) {
                Some((_, name)) => name.clone(),
                None => self.name(process),
            };
            own.insert(process.key, (identity, name));
        }
        let mut groups = HashMap::with_capacity(own.len());
        let parents: HashMap<Pid, (ProcessKey, Pid)> =
            sweep.processes.iter().map(|it| (it.key.pid, (it.key, it.identity.parent))).collect();
        for process in &sweep.processes {
            if let Some(name) = self.inherited(process, &own, &parents) {
                groups.insert(process.key, name);
            }
        }
        GroupAssignment { own, groups }
    }

    /// Group of a process or of its nearest ancestor that has one; `None` if no ancestor has one.
    fn inherited(
        &self,
        process: &SweepProcess,
        own: &HashMap<ProcessKey, OwnGroup>,
        parents: &HashMap<Pid, (ProcessKey, Pid)>,
    ) -> Option<GroupName> {
        let mut key = process.key;
        let mut parent = process.identity.parent;
        // A sweep is not atomic, so the parents can form a cycle.
        for _ in 0..=parents.len() {
            if let Some((_, Some(name))) = own.get(&key) {
                return Some(name.clone());
            }
            if !self.with_children {
                return None;
            }
            (key, parent) = *parents.get(&parent)?;
        }
        None
    }

    fn name(&self, process: &SweepProcess) -> Option<GroupName> {
        let words = process.identity.command.as_deref().unwrap_or_default();
        let comm = process.identity.name.as_bytes();
        let exe = words.first().map_or(comm, Name::as_bytes);
        let (folder_of, matches) = (self.folder_of, BTreeMap::new());
        let mut facts = ProcessFacts { process, comm, exe, folder_of, matches };
        let mut line = None;
        let rule = self.rules.iter().find(|rule| {
            facts.matches.clear();
            rule.matches(&mut facts, words, &mut line)
        })?;
        Some(label_text(&rule.name.render(&facts)).into())
    }
}

impl GroupRule {
    fn matches(
        &self,
        facts: &mut ProcessFacts<'_>,
        words: &[Name],
        line: &mut Option<String>,
    ) -> bool {
        if let Some(names) = &self.comm
            && !names.iter().any(|it| it.as_bytes() == facts.comm)
        {
            return false;
        }
        if let Some(rules) = &self.exe
            && (words.is_empty() || !rules.iter().any(|it| it.matches(facts.exe)))
        {
            return false;
        }
        let Some(expressions) = &self.command else { return true };
        let line = line.get_or_insert_with(|| command_line(words));
        for expression in expressions {
            let Some(captures) = expression.captures(line) else { return false };
            for (name, text) in expression.capture_names().zip(captures.iter()) {
                let text = text.map_or("", |it| it.as_str());
                facts.matches.insert(name.unwrap_or_default().to_owned(), text.to_owned());
            }
        }
        true
    }
}

impl ExeRule {
    fn matches(&self, exe: &[u8]) -> bool {
        base(exe) == self.base.as_bytes()
            && self.path.as_ref().is_none_or(|path| path.as_bytes() == exe)
    }
}

/// The words of a command line, separated by spaces.
fn command_line(words: &[Name]) -> String {
    let words: Vec<_> = words.iter().map(|it| String::from_utf8_lossy(it.as_bytes())).collect();
    words.join(" ")
}

/// Last component of a path, without trailing slashes. As in Go's `filepath.Base`, the result is
/// `/` for a path of slashes only and `.` for an empty path.
fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    match (path.is_empty(), end) {
        (true, _) => b".",
        (false, 0) => b"/",
        _ => path[..end].rsplit(|&b| b == b'/').next().unwrap_or(path),
    }
}

/// Name of a group.
pub type GroupName = Arc<str>;

/// Identity of a process, and the group of the rule that matches it; `None` if no rule matches.
type OwnGroup = (Arc<ProcessIdentity>, Option<GroupName>);

/// The groups of all processes of a sweep.
#[derive(Clone, Debug, Default)]
pub struct GroupAssignment {
    own: HashMap<ProcessKey, OwnGroup>,
    groups: HashMap<ProcessKey, GroupName>,
}

impl GroupAssignment {
    /// Group of a process; `None` if it belongs to no group.
    pub fn group(&self, key: ProcessKey) -> Option<&GroupName> {
        self.groups.get(&key)
    }
}
