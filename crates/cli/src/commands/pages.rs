//! `pagewise pages`: the state of every page, and what was touched meanwhile.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use pagewise_analysis::page_map::{Options, pages, touched};
use pagewise_model::page_map::{Touched, Way};
use pagewise_model::process::Process;
use pagewise_model::{Absent, AddrRange, Bytes, Mapping, Name, PageSize, Pid};
use pagewise_proc::capture::outline;
use pagewise_proc::page_map::{self, Look};
use pagewise_proc::pages::Pace;
use pagewise_proc::{ProcRoot, referenced, target};
use pagewise_sys::probe::tracks_soft_dirty;
use pagewise_sys::system;
use pagewise_view::text::Units;

use crate::args::{ByArg, Pages};
use crate::look;
use crate::output::emit;
use crate::plan::Usage;

/// Looks at the pages of a process, or waits and says what it touched.
pub(crate) fn run(args: &Pages, look: &look::Look) -> anyhow::Result<ExitCode> {
    let (root, pid) = target::hold(&ProcRoot::live(), &args.target)?;
    root.check_access(pid)?;
    let page_size = page_size();
    let place = args.place.as_deref().map(|text| Place::parse(text, page_size)).transpose()?;
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
        Some(Place::Range(range)) => Some(*range),
        _ => None,
    };
    let how = Look {
        way: match args.by {
            ByArg::Both => Way::Both,
            ByArg::Scan => Way::Scan,
            ByArg::Pagemap => Way::Pagemap,
        },
        detail: args.detail,
        pace: if args.fast { Pace::FAST } else { Pace::POLITE },
    };
    let map = page_map::read(&root, process, mappings, within, page_size, &how)?;
    let options =
        Options { runs: args.runs || place.is_some(), address_map: args.output.html.is_some() };
    emit(&pages(&map, &options), &args.output, look, Units::Human)?;
    Ok(ExitCode::SUCCESS)
}

/// Clears the referenced bits, waits, and reads them.
fn watch(
    root: &ProcRoot,
    pid: Pid,
    place: Option<&Place>,
    interval: Duration,
) -> anyhow::Result<Touched> {
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
    Ok(Touched {
        process,
        mappings,
        interval_ns: nanos(waited),
        clear_ns: nanos(cleared),
        read_ns: nanos(begin.elapsed().saturating_sub(waited)),
        written,
    })
}

/// Why nobody knows what was written.
const NO_WRITES: &str = "this kernel does not track soft-dirty pages, and PAGEMAP_SCAN tells writes only where the \
    process itself asked for it (userfaultfd)";

/// How much of each mapping is soft-dirty.
fn written(root: &ProcRoot, process: &Process, mappings: &[Mapping]) -> anyhow::Result<Vec<Bytes>> {
    let how = Look { way: Way::Both, detail: false, pace: Pace::POLITE };
    let read = |mapping: &Mapping| {
        let mapping = vec![mapping.clone()];
        let map = page_map::read(root, process.clone(), mapping, None, page_size(), &how)?;
        let runs = map.mappings.iter().flat_map(|pages| &pages.runs);
        let dirty = runs.filter(|run| run.state.soft_dirty == Some(true));
        Ok(dirty.map(|run| run.range.len()).sum())
    };
    mappings.iter().map(read).collect()
}

fn page_size() -> PageSize {
    PageSize::new(system::page_size()).expect("the kernel's page size is one")
}

/// The mappings that are meant.
fn chosen(mappings: Vec<Mapping>, place: Option<&Place>) -> anyhow::Result<Vec<Mapping>> {
    let Some(place) = place else { return Ok(mappings) };
    let is_meant = |mapping: &Mapping, exactly: bool| match place {
        Place::Range(range) => mapping.range.intersection(*range).is_some(),
        Place::Address(address) => mapping.range.contains(*address),
        Place::Name(name) if exactly => mapping.name == *name || mapping.path() == name.as_bytes(),
        Place::Name(name) => {
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

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Range(AddrRange),
    Address(u64),
    Name(Name),
}

impl Place {
    /// `START-END` or `START+SIZE` in hex, the size with `K`, `M` or `G` where it is decimal; one address; else a name.
    fn parse(text: &str, page_size: PageSize) -> Result<Place, Usage> {
        let range = |start: u64, end: Option<u64>| match end {
            Some(end) if start < end => {
                let page = page_size.bytes();
                let end = end.checked_next_multiple_of(page).unwrap_or(end);
                Ok(Place::Range(AddrRange { start: start & !(page - 1), end }))
            }
            _ => Err(Usage(format!("{text}: a range ends after it begins"))),
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
        // Shorter ones are more likely a part of a name: `cafe`, `libbfd`.
        match hex(text).filter(|_| text.len() > 6) {
            Some(address) => Ok(Place::Address(address)),
            None => Ok(Place::Name(text.into())),
        }
    }
}

/// An address in hex: shorter ones are parts of names, as in `a-b`.
fn address(text: &str) -> Option<u64> {
    hex(text).filter(|_| text.len() >= 4)
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// `0x1000`, or decimal with a unit: `64K`, `2M`, `4096`.
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_range_an_address_or_a_name() {
        let parse = |text: &str| Place::parse(text, PageSize::new(4096).unwrap());
        let range = |start, end| Some(Place::Range(AddrRange { start, end }));
        assert_eq!(
            parse("7f0000000000-7f0000002000").ok(),
            range(0x7f00_0000_0000, 0x7f00_0000_2000)
        );
        assert_eq!(parse("0x1000+8K").ok(), range(0x1000, 0x3000));
        assert_eq!(parse("1234+0x10").ok(), range(0x1000, 0x2000));
        assert_eq!(parse("0x7f0000000000").ok(), Some(Place::Address(0x7f00_0000_0000)));
        for name in ["[heap]", "libc.so.6", "cafe", "a-b", "x+1"] {
            assert_eq!(parse(name).ok(), Some(Place::Name(name.into())), "{name}");
        }
        for wrong in ["2000-1000", "1000-1000", "ffffffffffffffff+2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
