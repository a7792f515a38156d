//! Programs that need a small machine with swap. Each runs in a virtual machine of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use pagewise_corpus::build;
use pagewise_corpus::labels::Need;
use pagewise_corpus::{Label, RemediedForm};
use pagewise_model::Bytes;
use pagewise_vm::{GuestKernel, GuestProgram, VirtualMachine, missing_requirement};

use super::judge::{JudgedRun, ToolAnswer, Verdict, read_answer};

/// Memory of a machine: the programs need less than 768 MiB.
const MEMORY: Bytes = Bytes::mib(512);
const SWAP: Bytes = Bytes::gib(1);
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// Path of the tool in the guest.
const TOOL: &str = "/bin/pagewise";
/// Path of the program in the guest.
const PROGRAM: &str = "/bin/program";
/// Starts the program with the argument `$2`, and the tool `$1` when the program is ready. A page
/// fault reads one page from swap.
const SCRIPT: &str = r#"
mkswap /dev/vda >/dev/null && swapon /dev/vda || exit 1
echo 0 >/proc/sys/vm/page-cluster
/bin/program $2 >/tmp/out &
pid=$!
until grep -q ready /tmp/out; do
    kill -0 $pid || exit 1
    sleep 0.1
done
eval "$(echo "$1" | sed "s/{pid}/$pid/g")" >"$PAGEWISE_RESULTS/answer"
true
"#;

/// True if the program needs a machine with little memory.
pub(super) fn is_needed(label: &Label) -> bool {
    label.needs.iter().any(|need| matches!(need, Need::MemoryBelow(_)))
}

/// Runs the tool at the program in a virtual machine, and writes its answer and the verdict of
/// `judge` to `run`.
pub(super) fn examine(
    label: &Label,
    is_remedied: bool,
    command: &str,
    run: &mut JudgedRun,
    judge: impl Fn(&ToolAnswer) -> Verdict,
) {
    if let Some(missing) = missing_requirement() {
        run.verdict = Verdict::Skipped(missing.to_string());
        return;
    }
    match answer(label, is_remedied, command) {
        Ok(answer) => {
            run.verdict = judge(&answer);
            run.cpu_ms = answer.cpu_ms;
            run.answer = answer;
        }
        Err(error) => run.verdict = Verdict::NoAnswer(format!("{error:#}")),
    }
}

fn answer(label: &Label, is_remedied: bool, command: &str) -> Result<ToolAnswer> {
    let argument = match (&label.remedied, is_remedied) {
        (_, false) => "",
        (Some(RemediedForm::Argument), true) => "--remedied",
        (_, true) => bail!("the remedied form has no argument of its own"),
    };
    let built = build::build(label, &build::work_folder().join("build"))?;
    let line = built.context("a compiler is missing")?;
    let [program] = line.as_slice() else { bail!("it is not one compiled program") };
    let kernel = GuestKernel::find().context("no kernel")?;
    let command = ["sh", "-c", SCRIPT, "sh", command, argument].map(str::to_owned);
    let mut machine = VirtualMachine::new(kernel, command.to_vec());
    machine.memory = MEMORY;
    // With a second emulated CPU, the kernel panics when tracepoints are switched on: that CPU runs
    // a breakpoint which the kernel has already removed.
    machine.cpus = 1;
    machine.disks = vec![SWAP];
    machine.time_limit = TIME_LIMIT;
    machine.full_cpu = true;
    machine.programs = vec![
        GuestProgram::new(&tool()?, TOOL),
        GuestProgram { symbols: true, ..GuestProgram::new(Path::new(program), PROGRAM) },
    ];
    let result = machine.run(&|| false)?;
    ensure!(result.success(), "{}", result.failure());
    let answer = result.file("answer").context("the machine has no answer")?;
    read_answer(&String::from_utf8_lossy(answer))
}

/// Returns the path of pagewise on the search path of tools.
fn tool() -> Result<PathBuf> {
    let path = super::tool::search_path()?;
    let folders = std::env::split_paths(&path).map(|folder| folder.join("pagewise"));
    folders.into_iter().find(|file| file.is_file()).context("pagewise is not built")
}
