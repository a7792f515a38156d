//! Groups by configuration files of process-exporter.

use pagewise_exporter::{GroupAssignment, GroupRules};
use pagewise_model::sweep::SweepProcess;

use crate::sweeps::{named, process, sweep};

/// The group of each process, `-` for none.
fn groups(rules: &str, with_children: bool, processes: Vec<SweepProcess>) -> Vec<String> {
    let rules = GroupRules::parse(rules).unwrap().with_children(with_children);
    let sweep = sweep(1, processes, Vec::new());
    let groups = rules.assign(&sweep, &GroupAssignment::default());
    let name = |it: &SweepProcess| groups.group(it.key).map_or("-".into(), |it| it.to_string());
    sweep.processes.iter().map(name).collect()
}

#[test]
fn the_first_rule_that_matches_names_the_group() {
    let rules = r#"
process_names:
  - comm:
    - bash
    - sh
  - name: "{{.ExeFull}}"
    exe:
    - /usr/local/bin/process-exporter
  - name: "{{.ExeBase}}:{{.Matches.Cfgfile}}"
    exe:
    - prometheus
    cmdline:
    - --config.file=(?P<Path>\S*/)?(?P<Cfgfile>\S+)
  - name: "{{.Comm}}/{{ .Username }}"
    cmdline:
    - .+
"#;
    let processes = vec![
        process(1, 0, &["/bin/bash", "-l"], 1),
        process(2, 1, &["/usr/local/bin/process-exporter"], 1),
        process(3, 1, &["/opt/process-exporter"], 1),
        process(4, 1, &["prometheus", "--config.file=/etc/prom/a.yml"], 1),
        named(process(5, 1, &["prometheus"], 1), b"prom"),
        process(6, 0, &[], 1),
    ];
    let expected = [
        "bash",
        "/usr/local/bin/process-exporter",
        // `comm` has at most 15 bytes.
        "process-exporte/ann",
        "prometheus:a.yml",
        "prom/ann",
        "-",
    ];
    assert_eq!(groups(rules, true, processes), expected);
}

#[test]
fn a_process_without_a_rule_belongs_to_its_nearest_ancestor_with_one() {
    let rules = "process_names: [{comm: [make]}, {comm: [init]}]";
    let processes = || {
        vec![
            process(1, 0, &["init"], 1),
            process(2, 1, &["make"], 1),
            process(3, 2, &["sh"], 1),
            process(4, 3, &["cc"], 1),
            process(5, 1, &["sshd"], 1),
            // Two processes that are the parents of each other, of a torn sweep.
            process(6, 7, &["a"], 1),
            process(7, 6, &["b"], 1),
        ]
    };
    assert_eq!(
        groups(rules, true, processes()),
        ["init", "make", "make", "make", "init", "-", "-"]
    );
    assert_eq!(groups(rules, false, processes()), ["init", "make", "-", "-", "-", "-", "-"]);
}

#[test]
fn names_have_the_fields_of_the_template_language() {
    let name = |template: &str| {
        let rules =
            format!("process_names: [{{name: '{template}', cmdline: ['(?P<A>j.b) (\\S+)']}}]");
        groups(&rules, true, vec![process(31, 1, &["/usr/bin/job", "x", "y"], 1)]).remove(0)
    };
    assert_eq!(name("{{.PID}} {{.StartTime}}"), "31 2024-02-29 12:00:00 +0000 UTC");
    assert_eq!(name("{{.Cgroups}}"), "[/system.slice/web.service]");
    assert_eq!(name("{{ index .Cgroups 0 }}"), "/system.slice/web.service");
    assert_eq!(name("a {{- .Matches.A -}} b"), "ajobb");
    assert_eq!(
        name("{{index .Matches \"A\"}}{{index .Matches \"B\"}}|{{.Matches.B}}"),
        "job|<no value>"
    );
    assert_eq!(name("{{.Matches}}"), "map[:x A:job]");
}

#[test]
fn a_program_with_a_folder_matches_that_folder_alone() {
    let rules = "process_names: [{exe: [dash]}, {exe: [zsh]}, {exe: [/opt/shells/fish]}]";
    let processes = vec![
        process(1, 0, &["/usr/bin/dash"], 1),
        process(2, 0, &["zsh", "-l"], 1),
        process(3, 0, &["/opt/shells/fish"], 1),
        process(4, 0, &["/usr/bin/fish"], 1),
        process(5, 0, &["fish"], 1),
    ];
    assert_eq!(groups(rules, false, processes), ["dash", "zsh", "fish", "-", "-"]);
}

#[test]
fn a_rule_joins_programs_captures_and_properties_of_the_process() {
    let rules = r#"
process_names:
  - name: "{{.ExeBase}}:{{.Matches.Data}}"
    exe: [databased]
    cmdline: ['--data\s+\S*?(?P<Data>[^/\s]+)(?:\s|$)']
  - name: "{{.ExeFull}}:{{.PID}}"
    exe: [scraperd]
  - name: "{{.Cwd}}"
    comm: [walker]
"#;
    let rules = GroupRules::parse(rules).unwrap().with_children(false);
    let rules = rules.with_folders(|pid| (pid.0 == 7).then(|| "/srv/walk".into()));
    let processes = vec![
        process(4, 1, &["/usr/sbin/databased", "--data", "/var/lib/one"], 1),
        process(5, 1, &["/usr/local/bin/scraperd"], 1),
        process(7, 1, &["walker"], 1),
        process(8, 1, &["walker"], 1),
    ];
    let sweep = sweep(1, processes, Vec::new());
    let found = rules.assign(&sweep, &GroupAssignment::default());
    let name = |it: &SweepProcess| found.group(it.key).unwrap().to_string();
    let names: Vec<String> = sweep.processes.iter().map(name).collect();
    assert_eq!(names, ["databased:one", "/usr/local/bin/scraperd:5", "/srv/walk", ""]);
}

/// A configuration, command lines, and the groups that process-exporter gives them.
type ConfigurationCase = (&'static str, &'static [(&'static [&'static str], &'static str)]);

/// The configurations of process-exporter's tests, README and packages, in other words.
const OWN_CONFIGURATIONS: [ConfigurationCase; 5] = [
    // The default of the packages and of the Helm chart.
    (
        "process_names: [{name: '{{.Comm}}', cmdline: ['.+']}]",
        &[(&["/usr/sbin/sshd", "-D"], "sshd"), (&["nginx: worker"], "nginx: worker"), (&[], "-")],
    ),
    // Programs: of any folder, and of one.
    (
        "process_names:\n  - exe: \n    - dash\n  - exe: \n    - zsh\n  - exe: \n    - /bin/fish\n",
        &[(&["/bin/dash"], "dash"), (&["zsh"], "zsh"), (&["/bin/fish"], "fish"), (&["fish"], "-")],
    ),
    // An escape of YAML's double quotes, a lazy quantifier, and each property of a process.
    (
        r#"
process_names:
  - exe: 
    - postmaster
    cmdline: 
    - "-D\\s+.+?(?P<Folder>[^/]+)(?:$|\\s)"
    name: "{{.ExeBase}}:{{.Matches.Folder}}"
  - exe: 
    - scraper
    name: "{{.ExeFull}}:{{.PID}}"
  - comm:
    - clock
    name: "{{.StartTime}}"
  - comm:
    - here
    name: "{{.Cwd}}"
  - comm: [boxed]
    name: "{{.Cgroups}}"
"#,
        &[
            (&["/usr/bin/postmaster", "-D", "/srv/main"], "postmaster:main"),
            (&["/opt/scraper"], "/opt/scraper:2"),
            (&["/bin/clock"], "2024-02-29 12:00:00 +0000 UTC"),
            (&["/bin/here"], ""),
            (&["/bin/boxed"], "[/system.slice/web.service]"),
        ],
    ),
    // Each kind of selector; a regular expression that begins with a dash.
    (
        r#"
process_names:
  - comm:
    - bash
  - exe:
    - postgres
    - /usr/local/bin/scraper
  - name: "{{.ExeFull}}:{{.Matches.File}}"
    exe:
    - /usr/local/bin/exporter
    cmdline:
    - -config.path\s+(?P<File>\S+)
"#,
        &[
            (&["-bash"], "-"),
            (&["/bin/bash"], "bash"),
            (&["/usr/lib/postgres", "-D", "x"], "postgres"),
            (&["/opt/scraper"], "-"),
            (
                &["/usr/local/bin/exporter", "-config.path", "a.yml"],
                "/usr/local/bin/exporter:a.yml",
            ),
            (&["/usr/local/bin/exporter"], "-"),
        ],
    ),
    // A name without a field; comm has at most 15 bytes.
    (
        "process_names:\n  - comm:\n    - chromium-browse\n  - exe:\n    - /sbin/upstart\n    \
         cmdline:\n    - --user\n    name: upstart:-user\n",
        &[
            (&["/usr/bin/chromium-browser"], "chromium-browser"),
            (&["/sbin/upstart", "--user"], "upstart:-user"),
            (&["/sbin/upstart", "--system"], "-"),
        ],
    ),
];

#[test]
fn its_own_configurations_are_accepted_with_the_same_names() {
    for (rules, expected) in OWN_CONFIGURATIONS {
        let processes = (1..).zip(expected).map(|(pid, it)| process(pid, 0, it.0, 1)).collect();
        let names: Vec<&str> = expected.iter().map(|it| it.1).collect();
        assert_eq!(groups(rules, true, processes), names, "{rules}");
    }
}

#[test]
fn the_last_program_with_the_same_last_component_counts() {
    let rules = "process_names: [{exe: [sh, /bin/sh]}, {exe: [/bin/ksh, ksh], name: any}]";
    let commands = ["sh", "/bin/sh", "/opt/sh", "ksh", "/opt/ksh"];
    let processes = (1..).zip(commands).map(|(pid, it)| process(pid, 0, &[it], 1)).collect();
    assert_eq!(groups(rules, false, processes), ["-", "sh", "-", "any", "any"]);
}

#[test]
fn errors_name_the_rule_and_the_part() {
    let error = |text: &str| GroupRules::parse(text).unwrap_err().to_string();
    assert!(error("process_names: [{name: x}]").contains("process_names[0]: expected comm"));
    let regex = error("process_names: [{comm: [a]}, {cmdline: ['(']}]");
    assert!(regex.starts_with("process_names[1]: cmdline:"), "{regex}");
    let template = error("process_names: [{name: '{{.Cwd | printf}}', comm: [a]}]");
    assert!(template.contains("{{.Cwd | printf}}"), "{template}");
    assert!(error("process_names: [{name: '{{.Comm', comm: [a]}]").contains("expected }}"));
    assert!(error("process_names: 7").contains("not in the format"));
    let large = error("process_names: [{cmdline: ['(a{1000}){1000}']}]");
    assert!(large.contains("cmdline"), "{large}");
}

#[test]
fn a_process_that_executes_another_program_changes_its_group() {
    let rules = GroupRules::by_comm();
    let first = sweep(1, vec![process(9, 1, &["sh"], 1)], Vec::new());
    let known = rules.assign(&first, &GroupAssignment::default());
    let second = sweep(2, vec![process(9, 1, &["redis"], 1)], Vec::new());
    let groups = rules.assign(&second, &known);
    assert_eq!(groups.group(second.processes[0].key).map(|it| &**it), Some("redis"));
}
