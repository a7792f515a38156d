//! Groups by a configuration file are those of process-exporter.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use pagewise_skip::{Lack, skip};

use crate::fixture::ProcessGroup;
use crate::server::{ServerProcess, free_address, wait};

/// Configurations whose rules together use each kind of matcher and each field of names.
const CONFIGURATIONS: [&str; 5] = [
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
    // Each process has a group of its own, and a rule needs both of its parts.
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
    // Rules without a name have that of the program; one with a folder matches that folder alone.
    r#"
process_names:
  - exe: [pwgroup-a]
  - exe: [pwgroup_exe]
  - exe: [/tmp/pwgroup_path]
"#,
    // A lazy quantifier, an end or a blank, and both with the name of the program.
    r#"
process_names:
  - exe: [pwgroup_pg]
    cmdline: ['-D\s+.+?(?P<Path>[^/]+)(?:$|\s)']
    name: "{{.ExeBase}}:{{.Matches.Path}}"
  - name: "pwgroup {{.Username}} {{.Matches.Word}}"
    cmdline: ['\s(?P<Word>pwgroup-\S+)\s']
"#,
];

/// Number of processes of each group whose name has `pwgroup`.
fn groups(text: &str, metric: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let rest = line.strip_prefix(metric)?.strip_prefix("{groupname=\"")?;
        let (name, count) = rest.split_once("\"} ")?;
        name.contains("pwgroup").then(|| (name.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(line).collect()
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
            // Kernels without this file have no way to ask in one step.
            fs::read_to_string(task).map_or(true, |it| !it.trim().is_empty())
        })
    });
    for (rules, least) in CONFIGURATIONS.iter().zip([4, 4, 1, 3, 3]) {
        let Some((theirs, ours)) = both(rules) else {
            return skip(&Lack::Tool("prometheus-process-exporter"));
        };
        assert_eq!(ours, theirs, "{rules}");
        assert!(ours.len() >= least, "{rules}: {ours:?}");
    }
}

/// The groups by process-exporter, and ours; `None` if it is not installed.
fn both(rules: &str) -> Option<(BTreeMap<String, f64>, BTreeMap<String, f64>)> {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    fs::write(&config, rules).unwrap();
    let config = config.to_str().unwrap();
    let address = free_address();
    let listen = address.to_string();
    let args = ["-config.path", config, "-web.listen-address", &listen];
    let other = ServerProcess::other("prometheus-process-exporter", &args, address)?;
    let ours = ServerProcess::export(&["--every", "1h", "--config", config]);
    other.wait_for("/metrics");
    Some((
        groups(&other.page("/metrics"), "namedprocess_namegroup_num_procs"),
        groups(&ours.page("/metrics"), "pagewise_group_processes"),
    ))
}
