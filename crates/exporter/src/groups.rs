//! Groups of processes, by rules in the format of process-exporter's configuration file.
//!
//! The first rule that matches a process names its group. A process that no rule matches belongs to
//! the group of its nearest ancestor that has one, unless that is turned off.

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

/// Rules that put processes into groups.
#[derive(Clone, Debug)]
pub struct GroupRules {
    rules: Vec<GroupRule>,
    with_children: bool,
    folder_of: FolderLookup,
}

/// Finds the current folder of a process, which sweeps do not have.
type FolderLookup = fn(Pid) -> Option<Name>;

/// One rule: a process matches if all its parts match.
#[derive(Clone, Debug)]
struct GroupRule {
    name: NameTemplate,
    comm: Option<Vec<String>>,
    exe: Option<Vec<ExeRule>>,
    command: Option<Vec<Regex>>,
}

/// A program by the first word of its command line.
#[derive(Clone, Debug)]
struct ExeRule {
    base: String,
    /// The whole path, if the rule has one.
    path: Option<String>,
}

/// Properties of a process that rules and names use, and the captures of the regular expressions.
#[derive(Debug)]
struct ProcessFacts<'a> {
    process: &'a SweepProcess,
    comm: &'a [u8],
    /// First word of the command line; `comm` if it has none.
    exe: &'a [u8],
    folder_of: FolderLookup,
    matches: BTreeMap<String, String>,
}

impl GroupRules {
    /// One group for each `comm`.
    pub fn by_comm() -> GroupRules {
        let name = NameTemplate::parse("{{.Comm}}").expect("the text above is a template");
        let rule = GroupRule { name, comm: None, exe: None, command: None };
        GroupRules { rules: vec![rule], with_children: true, folder_of: |_| None }
    }

    /// With `true`, processes without a matching rule belong to the group of an ancestor.
    #[must_use]
    pub fn with_children(mut self, with_children: bool) -> GroupRules {
        self.with_children = with_children;
        self
    }

    /// With a function that finds the current folder of a process, for names with `.Cwd`.
    #[must_use]
    pub fn with_folders(mut self, folder_of: fn(Pid) -> Option<Name>) -> GroupRules {
        self.folder_of = folder_of;
        self
    }

    /// The group of each process of a sweep. `known` is the assignment of the sweep before: names
    /// are made again only for processes whose identity has changed.
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

    /// The group of a process or of its nearest ancestor with one.
    fn inherited(
        &self,
        process: &SweepProcess,
        own: &HashMap<ProcessKey, OwnGroup>,
        parents: &HashMap<Pid, (ProcessKey, Pid)>,
    ) -> Option<GroupName> {
        let mut key = process.key;
        let mut parent = process.identity.parent;
        // A sweep is not atomic, so parents could form a circle.
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

/// The words of a command line with blanks between them.
fn command_line(words: &[Name]) -> String {
    let words: Vec<_> = words.iter().map(|it| String::from_utf8_lossy(it.as_bytes())).collect();
    words.join(" ")
}

/// Last component of a path. `/` and slashes at the end do not count, as in Go's `filepath.Base`.
fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    match (path.is_empty(), end) {
        (true, _) => b".",
        (false, 0) => b"/",
        _ => path[..end].rsplit(|&b| b == b'/').next().unwrap_or(path),
    }
}

/// Name of a group, as text.
pub type GroupName = Arc<str>;

/// The identity of a process, and the group that a rule gives it; `None` if no rule matches.
type OwnGroup = (Arc<ProcessIdentity>, Option<GroupName>);

/// The groups of the processes of a sweep.
#[derive(Clone, Debug, Default)]
pub struct GroupAssignment {
    own: HashMap<ProcessKey, OwnGroup>,
    groups: HashMap<ProcessKey, GroupName>,
}

impl GroupAssignment {
    /// The group of a process.
    pub fn group(&self, key: ProcessKey) -> Option<&GroupName> {
        self.groups.get(&key)
    }
}
