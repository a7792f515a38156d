//! Reasons why an event cannot be counted, with the setting or privilege that is needed.

use std::fs;
use std::io;

use pagewise_model::{Absent, Reading};
use pagewise_sys::system::{CapabilitySet, has_capability};

use crate::pmu::Pmus;

/// Converts the kernel's error for an event to a reason. `of_the_cpu` is true if the event is
/// counted by the CPU.
pub(crate) fn event(error: &io::Error, of_the_cpu: bool, pmus: &Pmus) -> Absent {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => not_permitted(),
        Some(libc::ENOSYS) => built_without("CONFIG_PERF_EVENTS"),
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) if of_the_cpu => {
            let no_pmu = pmus.no_cpu_pmu();
            no_pmu.unwrap_or_else(|| Absent::NotSupported("this CPU does not count it".into()))
        }
        Some(libc::ENOENT) => Absent::NotInThisKernel("".into()),
        _ => Absent::NotSupported(error.to_string().into()),
    }
}

fn built_without(option: &str) -> Absent {
    Absent::NotSupported(format!("the kernel was built without {option}").into())
}

/// Reason for a refused count: the sysctl if it refuses, otherwise a container or security module.
fn not_permitted() -> Absent {
    let needs = match paranoid() {
        Ok(level) if level > 0 && !has_capability(CapabilitySet::PERFMON) => {
            format!("CAP_PERFMON (kernel.perf_event_paranoid is {level})")
        }
        _ => "a container or security module that lets perf_event_open through".to_owned(),
    };
    Absent::NotPermitted(needs.into())
}

/// Reason why a kernel event cannot be counted if pagewise may count user mode only.
pub(crate) fn user_mode_only() -> Absent {
    not_permitted()
}

/// `kernel.perf_event_paranoid`.
pub(crate) fn paranoid() -> Reading<i64> {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    text.trim().parse().map_err(|_| built_without("CONFIG_PERF_EVENTS"))
}

/// Reason why tracefs has no tracepoints.
pub(crate) fn empty_tracefs() -> Absent {
    Absent::NotPermitted(
        "a kernel without lockdown=confidentiality, which hides the tracepoints".into(),
    )
}

/// Reason why tracefs cannot be read.
pub(crate) fn tracefs(error: &io::Error) -> Absent {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            Absent::NotPermitted("root, to read the numbers of tracepoints from tracefs".into())
        }
        Some(libc::ENODEV | libc::ENOSYS) => built_without("CONFIG_TRACING"),
        _ => Absent::NotSupported(format!("tracefs cannot be opened: {error}").into()),
    }
}

/// Reason why a tracepoint has no number.
pub(crate) fn tracepoint(error: &io::Error) -> Absent {
    match error.kind() {
        io::ErrorKind::NotFound => Absent::NotInThisKernel("".into()),
        io::ErrorKind::PermissionDenied => tracefs(error),
        _ => Absent::NotSupported(format!("its number cannot be read: {error}").into()),
    }
}
