//! `pagewise/measure.h`: probes.

use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewise_measure::events::choose;
use pagewise_measure::probe::{CodeProbe, Cost, MEMORY, ProbeOptions, ProbeScope};
use pagewise_model::Reading;
use pagewise_model::measured::{Count, MetricUnit};

use crate::failure::{Failure, c_string, call};

/// A `PW_*` of the header, and what it sets.
struct MeasureFlag {
    bit: c_uint,
    set: fn(&mut ProbeOptions),
}

const FLAGS: &[MeasureFlag] = &[
    MeasureFlag { bit: 1, set: |options| options.whose = ProbeScope::Process },
    MeasureFlag { bit: 2, set: |options| options.in_kernel = true },
    MeasureFlag { bit: 4, set: |options| options.usage = false },
    MeasureFlag { bit: 8, set: |options| options.memory = true },
    MeasureFlag { bit: 16, set: |options| options.subtract = true },
];

/// `pw_value`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PwValue {
    value: f64,
    count: i64,
    enabled: u64,
    running: u64,
    absent: *const c_char,
    unit: i32,
    user_mode_only: i32,
}

const _: () = assert!(size_of::<PwValue>() == 48 && offset_of!(PwValue, count) == 8);
const _: () =
    assert!(offset_of!(PwValue, absent) == 32 && offset_of!(PwValue, user_mode_only) == 44);

impl PwValue {
    const NONE: PwValue = PwValue {
        value: 0.0,
        count: 0,
        enabled: 0,
        running: 0,
        absent: ptr::null(),
        unit: 0,
        user_mode_only: 0,
    };

    fn counted(count: &Count) -> Reading<PwValue> {
        let (enabled, running) = count.share.map_or((0, 0), |share| (share.enabled, share.running));
        let (value, count) = (count.estimate()?, i64::try_from(count.value).unwrap_or(i64::MAX));
        Ok(PwValue { value, count, enabled, running, ..PwValue::NONE })
    }

    #[expect(clippy::cast_precision_loss, reason = "no change of memory is above 2^53")]
    fn changed(bytes: i64) -> PwValue {
        PwValue { value: bytes as f64, count: bytes, ..PwValue::NONE }
    }
}

/// `enum pw_unit`.
fn unit(unit: MetricUnit) -> i32 {
    match unit {
        MetricUnit::Count => 0,
        MetricUnit::Nanos => 1,
        MetricUnit::Bytes => 2,
    }
}

/// Cost of a region, and the reasons that were returned.
#[derive(Debug)]
struct Shown {
    cost: Cost,
    reasons: Vec<OnceCell<CString>>,
}

impl Shown {
    fn new(cost: Cost, names: &[CString]) -> Shown {
        Shown { cost, reasons: vec![OnceCell::new(); names.len()] }
    }

    /// The value of the name at an index: first what is counted, then the changes of memory.
    fn value(&self, index: usize) -> PwValue {
        let counted = self.cost.iter().nth(index);
        let (reading, unit, user_mode_only) = match counted {
            Some((quantity, value)) => {
                let value = value.as_ref().map_err(Clone::clone).and_then(PwValue::counted);
                (value, unit(quantity.unit), quantity.user_mode_only)
            }
            None => (self.change(index - self.cost.iter().count()), unit(MetricUnit::Bytes), false),
        };
        let value = reading.unwrap_or_else(|absent| {
            let reason = self.reasons[index].get_or_init(|| c_string(&absent.to_string()));
            PwValue { absent: reason.as_ptr(), ..PwValue::NONE }
        });
        PwValue { unit, user_mode_only: user_mode_only.into(), ..value }
    }

    fn change(&self, line: usize) -> Reading<PwValue> {
        let (_, change) = &self.cost.memory().as_ref().map_err(Clone::clone)?[line];
        change.clone().map(PwValue::changed)
    }
}

/// Identifier of a thread of this process, never reused. Unlike that of the standard library it
/// allocates no memory, which would look like a leak in a C program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThreadToken(u64);

impl ThreadToken {
    fn this() -> ThreadToken {
        static THREADS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static THIS: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        ThreadToken(THIS.with(|this| *this))
    }
}

/// `pw_probe`.
#[derive(Debug)]
pub struct CProbe {
    probe: CodeProbe,
    owner: ThreadToken,
    names: Vec<CString>,
    overhead: Shown,
    last: Option<Shown>,
}

impl CProbe {
    fn open(options: &ProbeOptions) -> Result<CProbe, Failure> {
        let probe = CodeProbe::open(options)?;
        let quantities = probe.quantities().iter().map(|quantity| c_string(&quantity.name));
        let lines = MEMORY.iter().filter(|_| options.memory).map(|line| c_string(line.name()));
        let names: Vec<CString> = quantities.chain(lines).collect();
        let overhead = Shown::new(probe.overhead().clone(), &names);
        Ok(CProbe { probe, owner: ThreadToken::this(), names, overhead, last: None })
    }

    /// Index of the value that has a name.
    fn index(&self, name: &CStr) -> Result<usize, Failure> {
        let index = self.names.iter().position(|known| known.as_c_str() == name);
        let unknown = || format!("the probe was not opened with {}", name.to_string_lossy());
        index.ok_or_else(|| Failure::new(libc::ENOENT, unknown()))
    }

    fn is_ours(&self) -> bool {
        self.owner == ThreadToken::this()
    }
}

/// The probe behind a pointer, for the thread that opened it.
///
/// # Safety
/// `probe` is NULL, or came from `pw_probe_open` and was not closed.
unsafe fn ours<'a>(probe: *mut CProbe) -> Result<&'a mut CProbe, Failure> {
    // SAFETY: not NULL here means a probe that is open; only its thread goes on to change it, one
    // call at a time.
    let found = unsafe { probe.as_ref() }.ok_or_else(|| Failure::invalid("the probe is NULL"))?;
    if !found.is_ours() {
        return Err(Failure::new(libc::EPERM, "the probe belongs to another thread"));
    }
    // SAFETY: the probe is live and belongs to this thread, as was checked.
    unsafe { probe.as_mut() }.ok_or_else(|| Failure::invalid("the probe is NULL"))
}

/// The string behind a pointer.
///
/// # Safety
/// `text` is NULL, or a string that lives and does not change meanwhile.
unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a CStr, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller passes a string; it is not NULL.
    Ok(unsafe { CStr::from_ptr(text) })
}

/// Writes a result to an address of the caller, without a read of the old value.
///
/// # Safety
/// `place` is NULL or may be written.
unsafe fn write<T>(place: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller passes a writable address; it is not NULL.
    unsafe { place.write(value) };
    Ok(())
}

/// The options that a caller has chosen.
fn options(events: Option<&CStr>, flags: c_uint) -> Result<ProbeOptions, Failure> {
    let mut options = ProbeOptions::default();
    if let Some(events) = events {
        let events = events.to_str().map_err(|_| Failure::invalid("events is not UTF-8"))?;
        options.events = choose(events)?;
    }
    let unknown = FLAGS.iter().fold(flags, |left, flag| left & !flag.bit);
    if unknown != 0 {
        return Err(Failure::invalid(format!("flags has bits of no meaning: {unknown:#x}")));
    }
    FLAGS.iter().filter(|flag| flags & flag.bit != 0).for_each(|flag| (flag.set)(&mut options));
    Ok(options)
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// The pointers are NULL or what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_open(
    probe: *mut *mut CProbe,
    events: *const c_char,
    flags: c_uint,
) -> c_int {
    call(|| {
        // SAFETY: the header requires a writable address, or NULL.
        unsafe { write(probe, ptr::null_mut(), "probe") }?;
        // SAFETY: the header requires a string if it is not NULL.
        let events = (!events.is_null()).then(|| unsafe { CStr::from_ptr(events) });
        let opened = Box::new(CProbe::open(&options(events, flags)?)?);
        // SAFETY: the header requires a writable address, or NULL.
        unsafe { write(probe, Box::into_raw(opened), "probe") }
    })
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// `probe` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_start(probe: *mut CProbe) -> c_int {
    call(|| {
        // SAFETY: the header requires a live probe, or NULL.
        let probe = unsafe { ours(probe) }?;
        Ok(probe.probe.start()?)
    })
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// `probe` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_stop(probe: *mut CProbe) -> c_int {
    call(|| {
        // SAFETY: the header requires a live probe, or NULL.
        let probe = unsafe { ours(probe) }?;
        probe.last = Some(Shown::new(probe.probe.stop()?, &probe.names));
        Ok(())
    })
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// The pointers are NULL or what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_read(
    probe: *mut CProbe,
    name: *const c_char,
    value: *mut PwValue,
) -> c_int {
    call(|| {
        // SAFETY: the header requires a live probe, or NULL.
        let probe = unsafe { ours(probe) }?;
        let last = probe.last.as_ref().ok_or_else(|| Failure::invalid("no region has ended"))?;
        // SAFETY: the header requires a valid name and a writable value, or NULL.
        unsafe { show(probe, last, name, value) }
    })
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// The pointers are NULL or what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_overhead(
    probe: *mut CProbe,
    name: *const c_char,
    value: *mut PwValue,
) -> c_int {
    call(|| {
        // SAFETY: the header requires a live probe, or NULL.
        let probe = unsafe { ours(probe) }?;
        // SAFETY: the header requires a valid name and a writable value, or NULL.
        unsafe { show(probe, &probe.overhead, name, value) }
    })
}

/// Writes the value of a name.
///
/// # Safety
/// The pointers are NULL or what the header says.
unsafe fn show(
    probe: &CProbe,
    shown: &Shown,
    name: *const c_char,
    value: *mut PwValue,
) -> Result<(), Failure> {
    // SAFETY: the caller passes a string, or NULL.
    let name = unsafe { string(name, "name") }?;
    let found = shown.value(probe.index(name)?);
    // SAFETY: the caller passes an address for a value, or NULL.
    unsafe { write(value, found, "value") }
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// `probe` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_name(probe: *const CProbe, index: usize) -> *const c_char {
    // SAFETY: the header requires a live probe, or NULL; names never change.
    let names = unsafe { probe.as_ref() }.map(|probe| &probe.names);
    names.and_then(|names| names.get(index)).map_or(ptr::null(), |name| name.as_ptr())
}

/// See `pagewise/measure.h`.
///
/// # Safety
/// `probe` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pw_probe_close(probe: *mut CProbe) {
    let closed = call(|| {
        // SAFETY: the header requires a live probe, or NULL.
        unsafe { ours(probe) }.map(|_| ())
    });
    if closed == 0 {
        // SAFETY: it came from `Box::into_raw`, is not NULL, and its owner, the only thread that
        // may use it, closes it now.
        drop(unsafe { Box::from_raw(probe) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../include/pagewise/measure.h");

    #[test]
    fn flags_are_those_of_the_header() {
        let defined = HEADER.lines().filter_map(|line| {
            let (_, value) = line.strip_prefix("#define PW_")?.split_once(' ')?;
            value.split_once('u')?.0.parse::<c_uint>().ok()
        });
        let bits: Vec<c_uint> = FLAGS.iter().map(|flag| flag.bit).collect();
        assert_eq!(defined.collect::<Vec<_>>(), bits);
    }

    #[test]
    fn units_are_those_of_the_header() {
        for (name, of) in [
            ("COUNT", MetricUnit::Count),
            ("NANOSECONDS", MetricUnit::Nanos),
            ("BYTES", MetricUnit::Bytes),
        ] {
            assert!(HEADER.contains(&format!("PW_{name} = {}", unit(of))), "{name}");
        }
    }

    #[test]
    fn a_counter_that_took_turns_is_scaled_and_one_that_never_ran_is_absent() {
        let count = |enabled, running| {
            let share = Some(pagewise_model::measured::Share { enabled, running });
            PwValue::counted(&Count { value: 10, share })
        };
        let scaled = count(100, 25).unwrap();
        assert_eq!((scaled.value, scaled.count, scaled.running), (40.0, 10, 25));
        assert!(count(100, 0).is_err());
    }
}
