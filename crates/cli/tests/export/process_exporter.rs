//! Groups by a configuration file are those of process-exporter.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use pagewise_skip::{Lack, skip};

use crate::server::{ServerProcess, free_address, wait};

/// Rules that use each field whose value does not change from one run to the next.
const RULES: &str = r#"
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
"#;

/// Number of processes of each group whose name has `pwgroup`.
fn groups(text: &str, metric: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let rest = line.strip_prefix(metric)?.strip_prefix("{groupname=\"")?;
        let (name, count) = rest.split_once("\"} ")?;
        name.contains("pwgroup").then(|| (name.to_owned(), count.parse().unwrap()))
    };
    text.lines().filter_map(line).collect()
}

fn start(name: &str, args: &str) -> Child {
    // A shell with a child, which belongs to the group of the shell.
    let script = format!("sleep 1000 & wait # {args}");
    let mut command = Command::new("sh");
    command.arg0(name).args(["-c", &script, args]);
    command.process_group(0).spawn().unwrap()
}

#[test]
fn groups_and_their_processes_are_those_of_process_exporter() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("groups.yml");
    fs::write(&config, RULES).unwrap();
    let config = config.to_str().unwrap();
    let mut children = vec![
        start("pwgroup-a", "pwgroup-alpha 1"),
        start("pwgroup-a", "pwgroup-alpha 2"),
        start("pwgroup-b", "pwgroup-beta 3"),
        start("pwgroup_exe", "x"),
        start("/tmp/pwgroup_path", "x"),
        start("/opt/pwgroup_path", "x"),
    ];
    wait("the children", || {
        children.iter().all(|it| {
            let task = format!("/proc/{0}/task/{0}/children", it.id());
            // Kernels without this file have no way to ask in one step.
            fs::read_to_string(task).map_or(true, |it| !it.trim().is_empty())
        })
    });
    let address = free_address();
    let listen = address.to_string();
    let args = ["-config.path", config, "-web.listen-address", &listen];
    let other = ServerProcess::other("prometheus-process-exporter", &args, address);
    let ours = ServerProcess::export(&["--every", "1h", "--config", config]);
    let judged = other.map(|other| {
        other.wait_for("/metrics");
        (
            groups(&other.page("/metrics"), "namedprocess_namegroup_num_procs"),
            groups(&ours.page("/metrics"), "pagewise_group_processes"),
        )
    });
    for child in &mut children {
        let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        child.wait().unwrap();
    }
    let Some((theirs, ours)) = judged else {
        return skip(&Lack::Tool("prometheus-process-exporter"));
    };
    assert_eq!(ours, theirs);
    assert!(ours.len() >= 4, "{ours:?}");
}
