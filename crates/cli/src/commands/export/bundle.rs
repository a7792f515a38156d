//! `pagewise export bundle`: versions and one sweep, as JSON.

use std::process::ExitCode;

use anyhow::Context;
use pagewise_exporter::anonymous;
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};
use pagewise_sys::output_file::{self, FileReaders};
use serde_json::json;

use super::args::BundleArgs;
use crate::output::to_stdout;

/// Saves or prints the bundle.
pub(super) fn run(args: &BundleArgs) -> anyhow::Result<ExitCode> {
    let mut sampler = Sampler::new(&ProcRoot::live(), SamplerOptions::default())?;
    let sweep = sampler.sweep()?.sweep;
    let sweep = if args.anonymous { anonymous(&sweep) } else { sweep };
    let kernel = rustix::system::uname();
    let bundle = json!({
        "schema": "pagewise.bundle/1",
        "pagewise": env!("CARGO_PKG_VERSION"),
        "kernel": kernel.release().to_string_lossy(),
        "machine": kernel.machine().to_string_lossy(),
        "is_anonymous": args.anonymous,
        "sweep": sweep,
    });
    let mut text = serde_json::to_string_pretty(&bundle).context("cannot write the bundle")?;
    text.push('\n');
    match &args.output {
        None => to_stdout(|out| out.write_all(text.as_bytes()))?,
        // The bundle may contain command lines: only its owner reads it.
        Some(path) => {
            output_file::write(path, FileReaders::Owner, |out| out.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write {}", path.display()))?
        }
    }
    Ok(ExitCode::SUCCESS)
}
