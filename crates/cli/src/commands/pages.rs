//! `pagewise pages`: the state of every page, or the pages that are accessed in an interval.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use pagewise_analysis::page_map::{PageMapOptions, pages, touched};
use pagewise_model::page_map::{PageTableWay, TouchedMemory};
use pagewise_model::process::Process;
use pagewise_model::units::nanoseconds;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, Name, PageSize, Pid};
use pagewise_proc::capture::outline;
use pagewise_proc::page_map::{self, PageMapRequest};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, referenced, target};
use pagewise_sys::probe::tracks_soft_dirty;
use pagewise_sys::system;
use pagewise_view::text::Units;

use crate::args::OutputArgs;
use crate::output::emit;
use crate::target::UsageError;
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct PagesArgs {
    /// A PID, a process name, a part of a name that matches one process only, or `self` (pagewise)
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
    /// Limit the report to an address range (START-END, or START+SIZE with a SIZE such as `2M`), to
    /// the mapping that contains an address, or to the mappings whose name contains MAPPING.
    /// Addresses are hexadecimal. A single address has at least 7 characters; shorter text is a
    /// MAPPING
    #[arg(value_name = "RANGE|MAPPING")]
    pub(crate) place: Option<String>,
    /// List runs of pages in the same state; this is the default if a RANGE or MAPPING is given
    #[arg(long)]
    pub(crate) runs: bool,
    /// Show data of page frames too: the map count of each page, KSM pages, folio sizes (needs
    /// root)
    #[arg(long)]
    pub(crate) detail: bool,
    /// The kernel interface to use
    #[arg(long, value_enum, default_value_t = ByArg::Both, value_name = "INTERFACE")]
    pub(crate) by: ByArg,
    /// Read page tables at full speed; the default is to sleep after each 2 MiB of addresses
    #[arg(long)]
    pub(crate) fast: bool,
    /// Clear the referenced bits of the process, wait TIME, and report the pages that were accessed
    /// in this time
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with_all = ["runs", "detail", "fast"])]
    pub(crate) touched: Option<Duration>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ByArg {
    /// /proc/PID/pagemap, and PAGEMAP_SCAN only to find huge pages and zero pages; this is the
    /// fastest choice
    Both,
    /// Only PAGEMAP_SCAN, which also reports written pages if the process tracks writes with
    /// userfaultfd
    Scan,
    /// Only /proc/PID/pagemap, which shows neither PMD-mapped huge pages nor zero pages
    Pagemap,
}

/// Reports the pages of a process, or the pages that it accesses in an interval.
pub(crate) fn run(args: &PagesArgs, look: &terminal::TerminalLook) -> anyhow::Result<ExitCode> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.target)?;
    root.check_access(pid)?;
    let page_size = page_size();
    let place = args.place.as_deref().map(|text| PagesWhere::parse(text, page_size)).transpose()?;
    if let Some(interval) = args.touched {
        let report = touched(&watch(&root, pid, place.as_ref(), interval)?);
        emit(&report, &args.output, look, Units::Human)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (process, mappings) = outline(&root, pid)?;
    let mappings = match mappings {
        Ok(mappings) => chosen(mappings, place.as_ref())?,
        Err(absent) => bail!("its mappings cannot be read: {absent}"),
    };
    let within = match &place {
        Some(PagesWhere::Range(range)) => Some(*range),
        _ => None,
    };
    let how = PageMapRequest {
        way: match args.by {
            ByArg::Both => PageTableWay::Both,
            ByArg::Scan => PageTableWay::Scan,
            ByArg::Pagemap => PageTableWay::Pagemap,
        },
        detail: args.detail,
        pace: if args.fast { Pace::FAST } else { Pace::POLITE },
    };
    let map = page_map::read(&root, process, mappings, within, page_size, &how)?;
    let options = PageMapOptions {
        runs: args.runs || place.is_some(),
        for_programs: args.output.json,
        address_map: args.output.html.is_some(),
    };
    emit(&pages(&map, &options), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

/// Clears the referenced bits, waits, and reads them.
fn watch(
    root: &ProcRoot,
    pid: Pid,
    place: Option<&PagesWhere>,
    interval: Duration,
) -> anyhow::Result<TouchedMemory> {
    let (process, _) = outline(root, pid)?;
    let mut cleared = referenced::clear(root, pid)?;
    let tracks = tracks_soft_dirty();
    if tracks {
        cleared += referenced::clear_soft_dirty(root, pid)?;
    }
    let begin = Instant::now();
    thread::sleep(interval);
    let waited = begin.elapsed();
    let mappings = chosen(referenced::mappings(root, pid)?, place)?;
    let written = if tracks {
        Ok(written(root, &process, &mappings)?)
    } else {
        Err(Absent::NotSupported(NO_WRITES.into()))
    };
    Ok(TouchedMemory {
        process,
        mappings,
        interval_ns: nanoseconds(waited),
        clear_ns: nanoseconds(cleared),
        read_ns: nanoseconds(begin.elapsed().saturating_sub(waited)),
        written,
    })
}

/// Reason why written pages are unknown.
const NO_WRITES: &str = "this kernel does not track soft-dirty pages, and PAGEMAP_SCAN knows writes only in memory \
    that the process itself registered for it (userfaultfd)";

/// Soft-dirty amount of each mapping.
fn written(root: &ProcRoot, process: &Process, mappings: &[Mapping]) -> anyhow::Result<Vec<Bytes>> {
    let how = PageMapRequest { way: PageTableWay::Both, detail: false, pace: Pace::POLITE };
    let read = |mapping: &Mapping| {
        let mapping = vec![mapping.clone()];
        let map = page_map::read(root, process.clone(), mapping, None, page_size(), &how)?;
        let runs = map.mappings.iter().flat_map(|pages| pages.runs.iter());
        let dirty = runs.filter(|run| run.state.soft_dirty == Some(true));
        Ok(dirty.map(|run| run.range.len()).sum())
    };
    mappings.iter().map(read).collect()
}

fn page_size() -> PageSize {
    PageSize::new(system::page_size()).expect("the kernel's page size is one")
}

/// The mappings that `place` selects.
fn chosen(mappings: Vec<Mapping>, place: Option<&PagesWhere>) -> anyhow::Result<Vec<Mapping>> {
    let Some(place) = place else { return Ok(mappings) };
    let is_meant = |mapping: &Mapping, exactly: bool| match place {
        PagesWhere::Range(range) => mapping.range.intersection(*range).is_some(),
        PagesWhere::Address(address) => mapping.range.contains(*address),
        PagesWhere::Name(name) if exactly => {
            mapping.name == *name || mapping.path() == name.as_bytes()
        }
        PagesWhere::Name(name) => {
            memchr::memmem::find(mapping.name.as_bytes(), name.as_bytes()).is_some()
        }
    };
    for exactly in [true, false] {
        let meant: Vec<Mapping> =
            mappings.iter().filter(|mapping| is_meant(mapping, exactly)).cloned().collect();
        if !meant.is_empty() {
            return Ok(meant);
        }
    }
    bail!("nothing is mapped there")
}

/// Selection of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PagesWhere {
    Range(AddrRange),
    Address(u64),
    Name(Name),
}

impl PagesWhere {
    /// Parses `START-END` or `START+SIZE`, one address, or else a name. Addresses are hexadecimal;
    /// SIZE is as in [`size`].
    fn parse(text: &str, page_size: PageSize) -> Result<PagesWhere, UsageError> {
        let range = |start: u64, end: Option<u64>| match end {
            Some(end) if start < end => {
                let page = page_size.bytes();
                let end = end.checked_next_multiple_of(page).unwrap_or(end);
                Ok(PagesWhere::Range(AddrRange { start: start & !(page - 1), end }))
            }
            _ => Err(UsageError(format!("{text}: a range ends after it begins"))),
        };
        if let Some((start, end)) = text.split_once('-')
            && let (Some(start), Some(end)) = (address(start), address(end))
        {
            return range(start, Some(end));
        }
        if let Some((start, length)) = text.split_once('+')
            && let (Some(start), Some(length)) = (address(start), size(length))
        {
            return range(start, start.checked_add(length));
        }
        // A shorter hexadecimal word, such as `cafe`, is more likely a part of a name.
        match hex(text).filter(|_| text.len() > 6) {
            Some(address) => Ok(PagesWhere::Address(address)),
            None => Ok(PagesWhere::Name(text.into())),
        }
    }
}

/// A hexadecimal address of at least 4 characters: shorter words are parts of names, as in `a-b`.
fn address(text: &str) -> Option<u64> {
    hex(text).filter(|_| text.len() >= 4)
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// Bytes: hexadecimal (`0x1000`), or decimal with or without a unit (`64K`, `2M`, `65536`).
fn size(text: &str) -> Option<u64> {
    if text.starts_with("0x") {
        return hex(text);
    }
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_range_an_address_or_a_name() {
        let parse = |text: &str| PagesWhere::parse(text, PageSize::new(4096).unwrap());
        let range = |start, end| Some(PagesWhere::Range(AddrRange { start, end }));
        assert_eq!(
            parse("7f0000000000-7f0000002000").ok(),
            range(0x7f00_0000_0000, 0x7f00_0000_2000)
        );
        assert_eq!(parse("0x1000+8K").ok(), range(0x1000, 0x3000));
        assert_eq!(parse("1234+0x10").ok(), range(0x1000, 0x2000));
        assert_eq!(parse("0x7f0000000000").ok(), Some(PagesWhere::Address(0x7f00_0000_0000)));
        for name in ["[heap]", "libc.so.6", "cafe", "a-b", "x+1"] {
            assert_eq!(parse(name).ok(), Some(PagesWhere::Name(name.into())), "{name}");
        }
        for wrong in ["2000-1000", "1000-1000", "ffffffffffffffff+2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
