//! `pagewise export bundle`: versions, one sweep, findings and the account of the RAM, as JSON.

use std::process::ExitCode;

use anyhow::{Context, bail};
use pagewise_exporter::{ExportedDiagnosis, ExportedFinding, anonymous};
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::output_file::{self, FileReaders};
use serde_json::{Value, json};

use super::args::BundleArgs;
use super::slow;
use crate::output::to_stdout;

/// Saves or prints the bundle.
pub(super) fn run(args: &BundleArgs) -> anyhow::Result<ExitCode> {
    let interrupts = NotedInterrupts::note_all();
    let mut sampler = Sampler::new(&ProcRoot::live(), SamplerOptions::default())?;
    let mut sweep = sampler.sweep()?.sweep;
    let Some(mut diagnosis) = slow::diagnosis(slow::OBSERVED, &|| interrupts.came()) else {
        bail!("interrupted before the bundle was complete");
    };
    if args.anonymous {
        let findings = diagnosis.findings.as_deref_mut();
        anonymous(&mut sweep, findings.unwrap_or_default());
    }
    let kernel = rustix::system::uname();
    let bundle = json!({
        "schema": "pagewise.bundle/1",
        "pagewise": env!("CARGO_PKG_VERSION"),
        "kernel": kernel.release().to_string_lossy(),
        "machine": kernel.machine().to_string_lossy(),
        "is_anonymous": args.anonymous,
        "findings": findings(&diagnosis),
        "account": account(&diagnosis),
        "sweep": sweep,
    });
    let mut text = serde_json::to_string_pretty(&bundle).context("cannot write the bundle")?;
    text.push('\n');
    match &args.output {
        None => to_stdout(|out| out.write_all(text.as_bytes()))?,
        // The bundle may contain command lines, so only its owner may read the file.
        Some(path) => {
            output_file::write(path, FileReaders::Owner, |out| out.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))?
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the findings as JSON; null if the processes could not be observed.
fn findings(diagnosis: &ExportedDiagnosis) -> Value {
    let findings = diagnosis.findings.as_ref();
    findings.map_or(Value::Null, |list| list.iter().map(finding).collect())
}

fn finding(finding: &ExportedFinding) -> Value {
    json!({
        "id": finding.id,
        "severity": finding.severity.key(),
        "object": finding.object.label(),
    })
}

/// Returns the owners of the RAM as JSON; null if the machine could not be read.
fn account(diagnosis: &ExportedDiagnosis) -> Value {
    let Some(account) = &diagnosis.account else { return Value::Null };
    let owners = account.owners.iter().map(|it| json!({"id": it.id, "bytes": it.bytes}));
    json!({
        "total": account.total,
        "unaccounted": account.unaccounted,
        "owners": owners.collect::<Vec<Value>>(),
    })
}
