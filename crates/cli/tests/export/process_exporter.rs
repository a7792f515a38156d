//! With the same configuration file, pagewise makes the same groups as process-exporter.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use pagewise_skip::{Lack, skip};

use crate::fixture::ProcessGroup;
use crate::server::{ServerProcess, free_address, wait};

/// Configurations whose rules together use each kind of matcher and each field of names.
const CONFIGURATIONS: [&str; 6] = [
    r#"
process_names:
  - name: "pwgroup:{{.Matches.Kind}}:{{.ExeBase}}"
    cmdline:
    - pwgroup-(?P<Kind>[a-z]+)
    - (?P<Last>\d+)$
  - exe:
    - pwgroup_exe
  - name: "pwgroup:{{.ExeFull}}:{{.Username}}"
    exe:
    - /tmp/pwgroup_path
  - name: "pwgroup:{{.Comm}}"
    comm:
    - pwgroup_none
"#,
    // Each process has a group of its own, and the rule matches only if both of its conditions
    // match.
    r#"
process_names:
  - name: "pwgroup:{{.PID}}:{{.Matches}}"
    exe: [pwgroup-a, pwgroup-b]
    cmdline: ['\s(?P<Word>pwgroup-\S+)\s']
  - name: "pwgroup:rest"
    exe: [pwgroup_exe, pwgroup_path]
"#,
    // The first rule that matches counts, also if a later one would match better.
    r#"
process_names:
  - name: "pwgroup:{{.Comm}}:{{.ExeBase}}"
    cmdline: ['pwgroup']
  - exe: [pwgroup_exe]
"#,
    // Groups of a rule without a name have the name of the program. A rule with a path matches only
    // that path.
    r#"
process_names:
  - exe: [pwgroup-a]
  - exe: [pwgroup_exe]
  - exe: [/tmp/pwgroup_path]
"#,
    // A lazy quantifier that ends at the end of the text or at a blank, and variables in names.
    r#"
process_names:
  - exe: [pwgroup_pg]
    cmdline: ['-D\s+.+?(?P<Path>[^/]+)(?:$|\s)']
    name: "{{.ExeBase}}:{{.Matches.Path}}"
  - name: "pwgroup {{.Username}} {{.Matches.Word}}"
    cmdline: ['\s(?P<Word>pwgroup-\S+)\s']
"#,
    // If two programs of a rule have the same last path component, the last one counts. All scalars
    // are read as text.
    r#"
process_names:
  - exe: [pwgroup_path, /opt/pwgroup_path]
  - exe: [/nowhere/pwgroup_exe, pwgroup_exe]
  - comm: [1, true, yes]
    name: 7
"#,
];

/// Returns the number of processes of each group, without groups that have no process.
fn all_groups(text: &str, metric: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let rest = line.strip_prefix(metric)?.strip_prefix("{groupname=\"")?;
        let (name, count) = rest.split_once("\"} ")?;
        Some((name.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(line).filter(|it| it.1 > 0.0).collect()
}

/// Returns the number of processes of each group whose name contains `pwgroup`.
fn groups(text: &str, metric: &str) -> BTreeMap<String, f64> {
    let all = all_groups(text, metric).into_iter();
    all.filter(|it| it.0.contains("pwgroup")).collect()
}

fn start(name: &str, args: &str) -> ProcessGroup {
    // A shell with a child, which belongs to the group of the shell.
    let script = format!("sleep 1000 & wait # {args}");
    ProcessGroup::start(Command::new("sh").arg0(name).args(["-c", &script, args]))
}

#[test]
fn groups_and_their_processes_are_those_of_process_exporter() {
    let children = [
        start("pwgroup-a", "pwgroup-alpha 1"),
        start("pwgroup-a", "pwgroup-alpha 2"),
        start("pwgroup-b", "pwgroup-beta 3"),
        start("pwgroup_exe", "x"),
        start("/tmp/pwgroup_path", "x"),
        start("/opt/pwgroup_path", "x"),
        start("pwgroup_pg", "-D /data/pwgroup7"),
    ];
    wait("the children", || {
        children.iter().all(|it| {
            let task = format!("/proc/{0}/task/{0}/children", it.pid());
            // Without this file, the kernel cannot list the children, and the test does not wait
            // for them.
            fs::read_to_string(task).map_or(true, |it| !it.trim().is_empty())
        })
    });
    for (rules, least) in CONFIGURATIONS.iter().zip([4, 4, 1, 3, 3, 2]) {
        let Some((theirs, ours)) = both(rules) else {
            return skip(&Lack::Tool("prometheus-process-exporter"));
        };
        assert_eq!(ours, theirs, "{rules}");
        assert!(ours.len() >= least, "{rules}: {ours:?}");
    }
}

/// Rules for all processes of a machine: the rules in process-exporter's packages, and rules that
/// group processes of a program by user.
const WHOLE_MACHINE: [&str; 2] = [
    "process_names: [{name: '{{.Comm}}', cmdline: ['.+']}]",
    "process_names: [{name: '{{.ExeBase}} {{.Username}}', cmdline: ['^\\S+']}, {comm: [init]}]",
];

#[test]
fn all_processes_of_the_machine_are_in_the_same_groups() {
    let _targets = [start("pwwhole-a", "x"), start("/opt/pwwhole", "x")];
    for rules in WHOLE_MACHINE {
        let Some((other, ours)) = servers(rules, &["--every", "100ms", "--max-groups", "10000"])
        else {
            return skip(&Lack::Tool("prometheus-process-exporter"));
        };
        let our_groups = || all_groups(&ours.page("/metrics"), "pagewise_group_processes");
        let mut last = Vec::new();
        // Processes begin and end during the test. So pagewise is read before and after
        // process-exporter, and groups whose two counts of pagewise differ are not compared.
        let is_same = (0..100).any(|_| {
            let before = our_groups();
            let theirs = all_groups(&other.page("/metrics"), "namedprocess_namegroup_num_procs");
            // Wait for a reading of pagewise that began after the reading of process-exporter.
            std::thread::sleep(Duration::from_millis(300));
            let after = our_groups();
            let is_stable = |name: &&String| before.get(*name) == after.get(*name);
            let names = before.keys().chain(theirs.keys()).filter(is_stable);
            let differ = names.filter(|it| before.get(*it) != theirs.get(*it));
            last = differ.cloned().collect();
            last.is_empty() && before.keys().filter(is_stable).count() >= 3
        });
        assert!(is_same, "{rules}: {last:?}");
    }
}

/// Returns the groups of process-exporter and of pagewise; `None` if process-exporter is not
/// installed.
fn both(rules: &str) -> Option<(BTreeMap<String, f64>, BTreeMap<String, f64>)> {
    let (other, ours) = servers(rules, &["--every", "1h"])?;
    Some((
        groups(&other.page("/metrics"), "namedprocess_namegroup_num_procs"),
        groups(&ours.page("/metrics"), "pagewise_group_processes"),
    ))
}

/// Starts process-exporter and `pagewise export` with these rules. Returns `None` if
/// process-exporter is not installed.
fn servers(rules: &str, args: &[&str]) -> Option<(ServerProcess, ServerProcess)> {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    fs::write(&config, rules).unwrap();
    let config = config.to_str().unwrap();
    let address = free_address();
    let listen = address.to_string();
    let other_args = ["-config.path", config, "-recheck", "-web.listen-address", &listen];
    let other = ServerProcess::other("prometheus-process-exporter", &other_args, address)?;
    let args = [&["--diagnose-every", "0s", "--config", config], args].concat();
    let ours = ServerProcess::export(&args);
    other.wait_for("/metrics");
    Some((other, ours))
}
