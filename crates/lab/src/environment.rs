//! Properties of the machine that affect measurements.

use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pagewise_labmem::mapping::{MapRequest, OwnedMapping};
use pagewise_model::lab::Environment;
use pagewise_model::{Absent, Bytes, Name, Reading};
use pagewise_proc::{ProcRoot, meminfo};
use pagewise_sys::system;

use crate::bench::{count, nanos};

/// Reads these properties; `first_touch` is measured before.
pub(crate) fn environment(first_touch: Reading<[f64; 2]>) -> Environment {
    let machine = meminfo::machine(&ProcRoot::live());
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Environment {
        version: env!("CARGO_PKG_VERSION").into(),
        kernel: Name::new(&system::kernel_release()),
        cpu: line_of("/proc/cpuinfo", "model name"),
        cpus: cpus(),
        caches: pagewise_measure::cache::caches().map(|caches| {
            caches.iter().map(|cache| (format!("L{}", cache.level).into(), cache.size)).collect()
        }),
        mem_total: machine.mem_total,
        page_size: Bytes(system::page_size()),
        thp: content("/sys/kernel/mm/transparent_hugepage/enabled"),
        governor: content("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        hypervisor: content("/sys/hypervisor/type").or_else(|_| hypervisor()),
        root: rustix::process::geteuid().is_root(),
        first_touch,
        unix_seconds: seconds,
    }
}

/// CPUs that this process may run on.
pub(crate) fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

fn content(path: &str) -> Reading<Name> {
    let text = fs::read(path).map_err(|_| Absent::NotSupported(format!("no {path}").into()))?;
    Ok(Name::new(text.trim_ascii_end()))
}

fn line_of(path: &str, key: &str) -> Reading<Name> {
    let text = content(path)?;
    let lines = text.as_bytes().split(|byte| *byte == b'\n');
    let value = lines.filter_map(|line| line.strip_prefix(key.as_bytes())).find_map(|rest| {
        let at = rest.iter().position(|byte| *byte == b':')?;
        Some(Name::new(rest[at + 1..].trim_ascii()))
    });
    value.ok_or_else(|| Absent::NotSupported(format!("{path} has no {key}").into()))
}

/// The hypervisor's vendor, from the firmware: the CPU reports only that there is a hypervisor.
fn hypervisor() -> Reading<Name> {
    let flags = line_of("/proc/cpuinfo", "flags")?;
    let is_virtual = flags.as_bytes().split(|byte| *byte == b' ').any(|flag| flag == b"hypervisor");
    let vendor = Path::new("/sys/class/dmi/id/sys_vendor");
    match is_virtual {
        true => Ok(fs::read(vendor)
            .map_or_else(|_| "a hypervisor".into(), |name| Name::new(name.trim_ascii()))),
        false => Err(Absent::NotSupported("no hypervisor".into())),
    }
}

/// Touches new memory. Returns the nanoseconds for a page.
///
/// # Errors
/// Returns the error of `mmap`.
pub fn touch(bytes: usize) -> std::io::Result<f64> {
    let page = usize::try_from(system::page_size()).unwrap_or(usize::MAX);
    let length = bytes.max(page).next_multiple_of(page);
    let mapping = OwnedMapping::map(&MapRequest { length, ..MapRequest::default() })?;
    let begin = Instant::now();
    mapping.touch(0..length, page);
    Ok(nanos(begin) / count((length / page) as u64))
}
