//! The recorder as a service of systemd.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use pagewise_analysis::sweeps::{self, RecordedFile, RecordingStatus};
use pagewise_model::Name;
use pagewise_store::{RecordReader, StoreError, is_recording};
use pagewise_sys::output_file::{self, FileReaders};
use pagewise_view::text::Units;

use super::args::{InstallArgs, RowArgs, StatusArgs};
use super::times::{self, SYSTEM_FOLDER, now_ns};
use crate::args::RowLimit;
use crate::output::{emit, note, to_stdout};
use crate::terminal::TerminalLook;

/// The name of the service.
const UNIT: &str = "pagewise-record.service";
/// This folder exists only if systemd is the init system.
const SYSTEMD: &str = "/run/systemd/system";

/// The unit file. A reader that is preempted while the kernel holds a mmap lock for it makes the
/// owner of the lock wait: `CAP_SYS_NICE` lets it raise its priority for the time of such a call.
fn unit(program: &Path, every: &str) -> String {
    let program = quoted(program);
    format!(
        "[Unit]
Description=Records the memory of all processes
Documentation=man:pagewise-record(1)

[Service]
ExecStart={program} record --dir {SYSTEM_FOLDER} --every {every}
StateDirectory=pagewise
StateDirectoryMode=0700
UMask=0077
Restart=on-failure
RestartSec=10
OOMScoreAdjust=-500
MemoryMax=512M
LimitNOFILE=65536

# Memory counters of all processes; page frame numbers, for PSS; tracepoints, for a diagnosis; the
# kernel log, for its reports of OOM kills; real-time priority for the system calls that hold the
# mmap lock of a process.
CapabilityBoundingSet=CAP_SYS_PTRACE CAP_SYS_ADMIN CAP_DAC_READ_SEARCH CAP_PERFMON CAP_SYSLOG CAP_SYS_NICE
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
DevicePolicy=closed
DeviceAllow=/dev/kmsg r
PrivateNetwork=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service @debug
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"
    )
}

/// A path as a word of a unit file.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let path = path.replace('%', "%%").replace('$', "$$");
    if path.contains([' ', '\\', ';']) { format!("\"{path}\"") } else { path }
}

/// Installs the service, or prints its unit file.
pub(super) fn install(args: &InstallArgs) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe().context("cannot find the path of pagewise")?;
    let text = unit(&program, &humantime::format_duration(args.every).to_string().replace(' ', ""));
    if args.print {
        to_stdout(|out| out.write_all(text.as_bytes()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if program.starts_with("/tmp") || program.starts_with("/var/tmp") {
        bail!("the service cannot run {}: it has a /tmp of its own", program.display());
    }
    let path = args.unit_dir.join(UNIT);
    output_file::write(&path, FileReaders::Umask, |out| out.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    note(format_args!("wrote {}", path.display()));
    if args.no_start || !Path::new(SYSTEMD).exists() {
        note(format_args!(
            "start the service with: systemctl daemon-reload && systemctl enable --now {UNIT}"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    for words in [&["daemon-reload"][..], &["enable", "--now", UNIT]] {
        let status = Command::new("systemctl").args(words).status();
        let status = status.context("cannot run systemctl")?;
        if !status.success() {
            bail!("systemctl {} failed: {status}", words.join(" "));
        }
    }
    note(format_args!("the service records to {SYSTEM_FOLDER}"));
    Ok(ExitCode::SUCCESS)
}

/// Shows the state of a recording.
pub(super) fn status(args: &StatusArgs, look: &TerminalLook) -> anyhow::Result<ExitCode> {
    let folder = times::folder(&args.folder);
    let spans = match RecordReader::open(&folder) {
        Ok(reader) => reader.spans(),
        Err(StoreError::Empty { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let file = |span: pagewise_store::RecordSpan| RecordedFile {
        size: span.file.size(),
        path: Name::new(span.file.path.as_os_str().as_encoded_bytes()),
        sweeps: span.sweeps.map_err(|why| why.as_str().into()),
    };
    let status = RecordingStatus {
        folder: Name::new(folder.as_os_str().as_encoded_bytes()),
        is_recording: is_recording(&folder),
        files: spans.into_iter().map(file).collect(),
        now_ns: now_ns(),
    };
    let options = times::options(&RowArgs { rows: RowLimit(None) }, status.now_ns);
    emit(&sweeps::status(&status, options), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_names_the_program_and_its_folder() {
        let text = unit(Path::new("/usr/bin/pagewise"), "5s");
        assert!(
            text.contains(
                "ExecStart=/usr/bin/pagewise record --dir /var/lib/pagewise --every 5s\n"
            )
        );
        assert!(text.contains("StateDirectory=pagewise\n"));
        let text = unit(Path::new("/opt/my tools/100%/pagewise"), "5s");
        assert!(text.contains("ExecStart=\"/opt/my tools/100%%/pagewise\" record"), "{text}");
    }
}
