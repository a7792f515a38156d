//! `/proc/<pid>/task/<tid>/children`: a process and all that descend from it.

use std::collections::HashSet;

use pagewise_model::Pid;

use crate::ProcRoot;
use crate::text::number;

/// Maximum number of processes in a tree.
const MAX_PROCESSES: usize = 1 << 16;

/// A process, its children, theirs, and so on; those that end meanwhile may be missing, and so are
/// those whose parent has ended. Only the process itself if the kernel lists no children
/// (CONFIG_PROC_CHILDREN).
pub fn with_descendants(root: &ProcRoot, pid: Pid) -> Vec<Pid> {
    let mut found = vec![pid];
    let mut known = HashSet::from([pid]);
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        for tid in root.tids(parent).unwrap_or_default() {
            let children =
                root.reading(parent, &format!("task/{tid}/children")).unwrap_or_default();
            let new = parse(&children).filter(|child| known.insert(*child));
            found.extend(new.take(MAX_PROCESSES - found.len()));
        }
        at += 1;
    }
    found
}

fn parse(text: &[u8]) -> impl Iterator<Item = Pid> {
    let words = text.split(u8::is_ascii_whitespace);
    words.filter_map(|word| number(word).and_then(|n| u32::try_from(n).ok()).map(Pid))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_of_children_are_found() {
        let script = "sh -c 'sleep 600; true' & sleep 600; true";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid(shell.id());
        let root = ProcRoot::live();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut found = Vec::new();
        while found.len() < 4 && std::time::Instant::now() < deadline {
            found = with_descendants(&root, pid);
        }
        for Pid(pid) in found.iter().rev() {
            Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        }
        shell.wait().unwrap();
        assert_eq!(found.len(), 4, "the shell, a shell and a sleep, and a sleep");
        assert_eq!(found[0], pid);
    }

    #[test]
    fn a_tree_has_a_maximum_size() {
        let folder = tempfile::tempdir().unwrap();
        let task = folder.path().join("7/task/7");
        std::fs::create_dir_all(&task).unwrap();
        // The process is its own descendant, too.
        let children: Vec<String> = (7..300_000).map(|pid| pid.to_string()).collect();
        std::fs::write(task.join("children"), children.join(" ")).unwrap();
        let found = with_descendants(&ProcRoot::at(folder.path()), Pid(7));
        assert_eq!((found.len(), found[1]), (MAX_PROCESSES, Pid(8)));
    }

    #[test]
    fn an_ended_process_has_no_threads_and_an_empty_list_no_children() {
        assert_eq!(with_descendants(&ProcRoot::at("/no/such/proc"), Pid(7)), [Pid(7)]);
        assert_eq!(parse(b"12 x 4294967296 13 \n").collect::<Vec<_>>(), [Pid(12), Pid(13)]);
    }
}
