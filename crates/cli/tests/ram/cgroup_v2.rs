//! Every command that reads memory cgroups, with version 2 of the hierarchy: in a virtual machine,
//! since this machine may use version 1. Compared with the files of the kernel, which the script of
//! the virtual machine copies.

use pagewise_model::Bytes;
use pagewise_vm::{GuestProgram, VmResult};
use serde_json::Value;

use super::fixture::machine::machine;
use super::fixture::{number, static_program};

/// `shop/web` is protected and throttled, `shop` limits it; `tight` is near its own limit, and the
/// kernel has killed a process in it.
const SCRIPT: &str = "\
cgroups=/sys/fs/cgroup
out=$PAGEWISE_RESULTS
fail() { echo \"$1\" >&2; exit 1; }
mkdir $cgroups/shop $cgroups/tight
echo +memory >$cgroups/shop/cgroup.subtree_control || fail subtree_control
mkdir $cgroups/shop/web
echo 200M >$cgroups/shop/memory.max
echo 48M >$cgroups/shop/web/memory.high
echo 16M >$cgroups/shop/web/memory.low
echo 24M >$cgroups/tight/memory.max
# enter CGROUP NAME ARGUMENTS: runs until the end of the machine
enter() {
    folder=$cgroups/$1 name=$2
    shift 2
    tail -f /dev/null | sh -c 'echo $$ >$0/cgroup.procs; exec oomed \"$@\"' $folder \"$@\" \\
        >/tmp/said.$name 2>&1 &
}
enter tight large anon=40 wait
until grep -q 'oom_kill [1-9]' $cgroups/tight/memory.events; do sleep 0.1; done
enter tight small anon=22 wait
enter shop/web web anon=32 wait
for name in small web; do
    until grep -q ready /tmp/said.$name; do sleep 0.1; done
done
small=$(head -n 1 $cgroups/tight/cgroup.procs)

copy() {
    for folder in shop shop/web tight; do
        name=$(echo $folder | tr / -)
        for file in current max high low peak events; do
            [ -e $cgroups/$folder/memory.$file ] && cp $cgroups/$folder/memory.$file $out/$name.$file
        done
    done
}
# record NAME COMMAND
record() {
    file=$1
    shift
    \"$@\" >$out/$file 2>/tmp/error
    status=$?
    [ $status = 0 ] || [ $status = 10 ] || fail \"$*: $status: $(cat /tmp/error)\"
}
copy
record system pagewise system --cgroup --json --for 0s
record below pagewise system --cgroup /shop --json --for 0s
record oom pagewise oom --json --for 0s --limit all
record ps pagewise ps --group cgroup --json
record explain pagewise explain $small --json
record doctor pagewise doctor $small --json
record diagnose pagewise diagnose /tight --for 300ms --json
record export pagewise export --once
pagewise record --dir /tmp/sweeps --every 300ms --for 1s || fail record
record replay pagewise replay --dir /tmp/sweeps --json
exit 0
";

/// The files that a virtual machine sent.
struct GuestReports(VmResult);

impl GuestReports {
    fn text(&self, name: &str) -> String {
        let bytes = self.0.file(name).unwrap_or_else(|| panic!("no {name}: {}", self.0.failure()));
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn json(&self, name: &str) -> Value {
        let text = self.text(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// Returns a number of the kernel: `tight.current`.
    fn kernels(&self, name: &str) -> u64 {
        self.text(name).trim().parse().unwrap()
    }

    /// Returns a counter of `memory.events`.
    fn event(&self, cgroup: &str, name: &str) -> u64 {
        let text = self.text(&format!("{cgroup}.events"));
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    }
}

/// Returns the object of a list whose `key` has this value.
fn row<'a>(report: &'a Value, list: &str, key: &str, value: &str) -> &'a Value {
    let rows = report[list].as_array().unwrap_or_else(|| panic!("no {list}: {report}"));
    rows.iter().find(|row| row[key] == value).unwrap_or_else(|| panic!("no {value}: {report}"))
}

/// Number of bytes that a cgroup may gain or lose between two readings.
const DRIFT: u64 = 4 << 20;
const MIB: u64 = 1 << 20;

#[test]
fn cgroups_of_version_2_are_those_of_the_kernel_in_every_command() {
    let Some(oomed) = static_program("oomed") else { return };
    let Some(mut machine) = machine(SCRIPT) else { return };
    machine.memory = Bytes::mib(512);
    machine.programs.push(GuestProgram::new(&oomed, "/bin/oomed"));
    let result = machine.run(&|| false).unwrap();
    assert!(result.success(), "{}", result.failure());
    let reports = GuestReports(result);
    system_has_the_kernels_numbers(&reports);
    oom_has_limits_and_the_last_kill(&reports);
    reports_on_a_process_name_its_limit(&reports);
    diagnose_finds_the_cgroup_that_is_full(&reports);
    sweeps_have_the_same_cgroups(&reports);
}

fn system_has_the_kernels_numbers(reports: &GuestReports) {
    let system = reports.json("system");
    assert_eq!(system["version"], 2);
    for (path, file) in [("/shop", "shop"), ("/shop/web", "shop-web"), ("/tight", "tight")] {
        let row = row(&system, "cgroups", "path", path);
        let kernels = reports.kernels(&format!("{file}.current"));
        assert!(number(row, "current").abs_diff(kernels) <= DRIFT, "{row}: {kernels}");
        if reports.0.file(&format!("{file}.peak")).is_some() {
            let kernels = reports.kernels(&format!("{file}.peak"));
            assert!(number(row, "peak").abs_diff(kernels) <= DRIFT, "{row}: {kernels}");
        }
        for event in ["low", "high", "max", "oom", "oom_kill"] {
            let kernels = reports.event(file, event);
            assert_eq!(row["events"][event], kernels, "{path} {event}");
        }
    }
    let web = row(&system, "cgroups", "path", "/shop/web");
    assert_eq!((&web["high"], &web["protected"]), (&(48 * MIB).into(), &(16 * MIB).into()));
    assert!(web["limit"].is_null(), "{web}");
    let tight = row(&system, "cgroups", "path", "/tight");
    assert_eq!((&tight["limit"], &tight["oom_kills"]), (&(24 * MIB).into(), &1.into()));
    assert_eq!(tight["limit_hits"], reports.event("tight", "max"));
    row(&system, "findings", "id", "near-limit");
    let below = reports.json("below");
    let paths: Vec<&Value> =
        below["cgroups"].as_array().unwrap().iter().map(|row| &row["path"]).collect();
    assert_eq!(paths, ["/shop", "/shop/web"]);
}

fn oom_has_limits_and_the_last_kill(reports: &GuestReports) {
    let oom = reports.json("oom");
    assert_eq!(row(&oom, "scopes", "scope", "/tight")["limit"], 24 * MIB);
    assert_eq!(row(&oom, "scopes", "scope", "/shop")["limit"], 200 * MIB);
    let processes = oom["processes"].as_array().unwrap();
    assert!(processes.iter().any(|row| row["cgroup"] == "/shop/web"), "{oom}");
    let last = &oom["past"]["last"];
    assert_eq!((&last["cgroup"], &last["victim"]), (&"/tight".into(), &"oomed".into()), "{last}");
    assert_eq!(last["limit"], 24 * MIB);
}

fn reports_on_a_process_name_its_limit(reports: &GuestReports) {
    let finding = |name: &str| reports.json(name)["findings"].to_string();
    assert!(finding("explain").contains("near-cgroup-limit"), "{}", finding("explain"));
    let doctor = reports.text("doctor");
    assert!(doctor.contains("/sys/fs/cgroup/tight/memory.max"), "{doctor}");
    let ps = reports.json("ps");
    assert!(number(row(&ps, "groups", "cgroup", "/shop/web"), "rss") >= 32 * MIB, "{ps}");
}

fn diagnose_finds_the_cgroup_that_is_full(reports: &GuestReports) {
    let diagnosis = reports.json("diagnose");
    let row = row(&diagnosis, "cgroups", "path", "/tight");
    assert_eq!(row["limit"], 24 * MIB);
    let kernels = reports.kernels("tight.current");
    assert!(number(row, "usage").abs_diff(kernels) <= DRIFT, "{row}: {kernels}");
}

/// Checks the exporter and a recording. The live view shows the same sweeps.
fn sweeps_have_the_same_cgroups(reports: &GuestReports) {
    let export = reports.text("export");
    let series = |name: &str, cgroup: &str| {
        let label = format!("cgroup=\"{cgroup}\"");
        let is_it = |line: &&str| line.starts_with(name) && line.contains(&label);
        let line = export.lines().find(is_it).unwrap_or_else(|| panic!("no {name} {cgroup}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let close = |found: f64, kernels: u64| {
        let found = format!("{found:.0}").parse::<u64>().unwrap();
        assert!(found.abs_diff(kernels) <= DRIFT, "{found} {kernels}");
    };
    close(series("pagewise_cgroup_memory_limit_bytes{", "/tight"), 24 * MIB);
    close(series("pagewise_cgroup_memory_limit_bytes{", "/shop"), 200 * MIB);
    close(
        series("pagewise_cgroup_memory_bytes{", "/shop/web"),
        reports.kernels("shop-web.current"),
    );
    assert_eq!(format!("{}", series("pagewise_cgroup_oom_kills", "/tight")), "1");
    let replay = reports.json("replay");
    let tight = row(&replay, "cgroups", "path", "/tight");
    assert_eq!((&tight["limit"], &tight["oom_kills"]), (&(24 * MIB).into(), &1.into()));
}
