//! `pagewise export`: readings of all processes (sweeps) as metrics for Prometheus: served by HTTP,
//! written to a file, or pushed to a collector. The slow cycle (`slow`) diagnoses the machine at a
//! longer interval.

mod args;
mod bundle;
mod slow;

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use pagewise_exporter::{
    ContainerSources, ExportedDiagnosis, ExportedSweep, Exporter, ExporterOptions, GroupRules,
    OtlpEndpoint, PublishedScrape, ScrapeServer, SeriesLimits, WebConfig, write_textfile,
};
use pagewise_model::units::nanoseconds;
use pagewise_model::{Name, Pid};
use pagewise_proc::ProcRoot;
use pagewise_sampler::{Sampler, SamplerOptions};
use pagewise_sys::interrupt::NotedInterrupts;
use pagewise_sys::{own_memory, system};

pub(crate) use args::ExportArgs;
use args::{ExportCommand, ExporterArgs, NO_LISTEN};

use crate::output::{note, to_stdout};

/// Time between two checks for a signal.
const TURN: Duration = Duration::from_millis(250);
/// Minimum time between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Number of sweeps after which an unchanged process is read again: each sweep then reads a
/// twentieth of the unchanged processes.
const REFRESH_SWEEPS: u32 = 20;
const MIN_REFRESH: Duration = Duration::from_secs(60);
const MAX_REFRESH: Duration = Duration::from_secs(900);
/// Time between two diagnoses of the machine.
const DIAGNOSE_EVERY: Duration = Duration::from_secs(300);
/// Minimum time between two messages about failed sweeps or outputs.
const MESSAGE_EVERY: Duration = Duration::from_secs(3600);

/// Exports until a signal arrives, or prints the metrics of one sweep.
pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    if let Some(ExportCommand::Bundle(args)) = &args.command {
        return bundle::run(args);
    }
    let args = &args.exporter;
    if args.every < MIN_INTERVAL {
        bail!("--every needs at least {}", humantime::format_duration(MIN_INTERVAL));
    }
    let options = options(args)?;
    if let Some(socket) = &options.containers.socket {
        let checked = options.containers.check();
        checked.with_context(|| format!("cannot read containers from {}", socket.display()))?;
    }
    let exporter = Exporter::new(options);
    let sampler = sampler(args)?;
    if args.once { once(args, sampler, exporter) } else { serve(args, sampler, exporter) }
}

fn options(args: &ExporterArgs) -> anyhow::Result<ExporterOptions> {
    let rules = match &args.config {
        None => GroupRules::by_comm(),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            GroupRules::parse(&text).with_context(|| format!("{}", path.display()))?
        }
    };
    Ok(ExporterOptions {
        rules: rules.with_children(!args.no_children).with_folders(current_folder),
        limits: SeriesLimits {
            max_series: args.max_series,
            max_groups: args.max_groups,
            max_cgroups: args.max_cgroups,
        },
        containers: ContainerSources {
            logs: Some(args.container_logs.clone()),
            socket: args.container_socket.clone(),
        },
    })
}

/// Returns the current folder of a process. Only group names with `.Cwd` need it.
fn current_folder(pid: Pid) -> Option<Name> {
    ProcRoot::live().link(pid, "cwd").ok()
}

fn sampler(args: &ExporterArgs) -> anyhow::Result<Sampler> {
    system::open_more_files();
    let options = SamplerOptions {
        interval: args.every,
        page_share: args.budget / 100.0,
        refresh: args.every.saturating_mul(REFRESH_SWEEPS).clamp(MIN_REFRESH, MAX_REFRESH),
        ..SamplerOptions::default()
    };
    Ok(Sampler::new(&ProcRoot::live(), options)?)
}

/// Prints the metrics of one sweep, and the metrics of the slow cycle that need only one reading.
/// Signs of trouble need two readings some seconds apart, so they are only searched if
/// --diagnose-every is given.
fn once(
    args: &ExporterArgs,
    mut sampler: Sampler,
    mut exporter: Exporter,
) -> anyhow::Result<ExitCode> {
    let diagnosis = match args.diagnose_every {
        None => Some(slow::reading()),
        Some(Duration::ZERO) => None,
        Some(time) => slow::diagnosis(slow::OBSERVED.min(time), &|| false),
    };
    if let Some(diagnosis) = diagnosis {
        exporter.set_diagnosis(diagnosis);
    }
    let began = Instant::now();
    let exported = exporter.export(sampler.sweep()?.sweep);
    if let Some(folder) = &args.textfile {
        write_textfile(folder, &exported).with_context(|| cannot_write(folder))?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = exported.scrape(args.format.into(), nanoseconds(began.elapsed()), 1);
    to_stdout(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the collector to which metrics are pushed; `None` without --otlp.
fn collector(args: &ExporterArgs) -> anyhow::Result<Option<OtlpEndpoint>> {
    let Some(url) = &args.otlp else { return Ok(None) };
    let mut endpoint = OtlpEndpoint::new(url, args.otlp_ca.as_deref())?;
    for header in &args.otlp_header {
        let Some((name, value)) = header.split_once('=') else {
            bail!("--otlp-header: expected NAME=VALUE, found no =");
        };
        let value = match value.strip_prefix('@') {
            None => value.to_owned(),
            Some(file) => {
                let text = std::fs::read_to_string(file);
                text.with_context(|| format!("cannot read {file}"))?.trim().to_owned()
            }
        };
        endpoint = endpoint.with_header(name, &value).context("--otlp-header")?;
    }
    Ok(Some(endpoint))
}

fn cannot_write(folder: &std::path::Path) -> String {
    format!("cannot write to {}", folder.display())
}

/// Sweeps in one thread, makes the slow cycle in another thread, and serves scrapes in this thread.
fn serve(args: &ExporterArgs, sampler: Sampler, exporter: Exporter) -> anyhow::Result<ExitCode> {
    let interrupts = NotedInterrupts::note_all();
    let published = Arc::new(PublishedScrape::new(args.every));
    let mut server = open_server(args, &published)?;
    let is_over = AtomicBool::new(false);
    let diagnosis = Mutex::new(None);
    let mut sweeps = SweepLoop {
        sampler,
        exporter,
        diagnosis: &diagnosis,
        args,
        otlp: collector(args)?,
        published,
        started_unix_ns: now_ns(),
        complained: None,
    };
    // An error of the first sweep ends the command: no later sweep could correct it.
    sweeps.sweep()?;
    own_memory::release_unused();
    let diagnose_every = args.diagnose_every.unwrap_or(DIAGNOSE_EVERY);
    thread::scope(|scope| {
        let sweeping = scope.spawn(|| sweeps.run(&is_over));
        if !diagnose_every.is_zero() {
            scope.spawn(|| slow::run(diagnose_every, &diagnosis, &is_over));
        }
        let mut has_ended = || interrupts.came() || sweeping.is_finished();
        let served = match &mut server {
            Some(server) => server.run(&mut has_ended).context("cannot wait for connections"),
            None => {
                while !has_ended() {
                    thread::sleep(TURN);
                }
                Ok(())
            }
        };
        is_over.store(true, Ordering::Relaxed);
        served
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the listening sockets. Returns `None` if the metrics are only written to a file or pushed.
fn open_server(
    args: &ExporterArgs,
    published: &Arc<PublishedScrape>,
) -> anyhow::Result<Option<ScrapeServer>> {
    let is_elsewhere = args.textfile.is_some() || args.otlp.is_some();
    let addresses: Vec<&str> = match &args.listen[..] {
        [] if is_elsewhere => return Ok(None),
        [] => vec![NO_LISTEN],
        given => given.iter().map(String::as_str).collect(),
    };
    let web = args.web_config.as_deref().map(WebConfig::load).transpose()?.unwrap_or_default();
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address);
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        note(format_args!("listening on {}", listener.local_addr()?));
        listeners.push(listener);
    }
    Ok(Some(ScrapeServer::new(listeners, Arc::clone(published), web)?))
}

/// Sweeps at an interval, and hands each sweep to all outputs.
struct SweepLoop<'a> {
    sampler: Sampler,
    exporter: Exporter,
    /// The last results of the slow cycle, until the next sweep takes them.
    diagnosis: &'a Mutex<Option<ExportedDiagnosis>>,
    args: &'a ExporterArgs,
    otlp: Option<OtlpEndpoint>,
    published: Arc<PublishedScrape>,
    started_unix_ns: u64,
    complained: Option<Instant>,
}

impl SweepLoop<'_> {
    fn run(&mut self, is_over: &AtomicBool) {
        let mut due = Instant::now() + self.args.every;
        loop {
            while Instant::now() < due {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(TURN.min(due.saturating_duration_since(Instant::now())));
            }
            if let Err(error) = self.sweep() {
                self.complain(&error);
            }
            // After a delay, for example a suspend of the machine, missed sweeps are skipped.
            due = (due + self.args.every).max(Instant::now());
        }
    }

    /// Makes one sweep. If an output fails, the other outputs still get the metrics.
    fn sweep(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        let sweep = self.sampler.sweep()?.sweep;
        let diagnosis = self.diagnosis.lock().expect("no thread panics with the lock").take();
        if let Some(diagnosis) = diagnosis {
            self.exporter.set_diagnosis(diagnosis);
        }
        let exported = self.exporter.export(sweep);
        self.published.publish(&exported, began.elapsed());
        if let Err(error) = self.hand_on(&exported) {
            self.complain(&error);
        }
        Ok(())
    }

    fn hand_on(&self, exported: &ExportedSweep) -> anyhow::Result<()> {
        let pushed = self.otlp.as_ref().map(|it| it.push(exported, self.started_unix_ns));
        if let Some(folder) = &self.args.textfile {
            write_textfile(folder, exported).with_context(|| cannot_write(folder))?;
        }
        Ok(pushed.transpose().map(|_| ())?)
    }

    fn complain(&mut self, error: &anyhow::Error) {
        if self.complained.is_none_or(|at| at.elapsed() >= MESSAGE_EVERY) {
            note(format_args!("{error:#}"));
            self.complained = Some(Instant::now());
        }
    }
}

fn now_ns() -> u64 {
    nanoseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
