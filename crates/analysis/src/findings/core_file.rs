//! Findings about a core file: the signal that ended the process, and memory that the file lacks.

use pagewise_model::core_dump::{CoreSignal, CoreThread, SignalCause};
use pagewise_model::report::{CellValue, Finding, Severity};
use pagewise_model::{AddrRange, Backing, Bytes, Mapping};

use super::{FindingRule, bytes, fact, finding, size};
use crate::cells::text;
use crate::explain::ExplainSubject;
use crate::explain::core::{CoreCoverage, location, mapping_at, signal_text};
use crate::pools::PoolKind;

/// Rules of this module. Findings of the same severity are reported in this order.
pub(super) const RULES: &[FindingRule] = &[
    FindingRule::Snapshot(stack_overflow),
    FindingRule::Snapshot(crash),
    FindingRule::Snapshot(truncated),
    FindingRule::Snapshot(filtered),
];

const SIGABRT: u32 = 6;
const SIGBUS: u32 = 7;
const SIGSEGV: u32 = 11;

/// An access below this address is an access to a member through a null pointer. The value is
/// `vm.mmap_min_addr` of most machines.
const NEAR_NULL: u64 = 1 << 16;
/// Number of bytes: a stack is full if fewer bytes of it lie below the stack pointer.
const NEAR_FULL: u64 = 1 << 16;
/// Maximum number of bytes from the faulting address to the stack pointer, and from the faulting
/// address to the stack above this address. A larger frame can reach beyond the guard.
const NEAR_STACK: u64 = 1 << 20;

/// The signal that ended the process, its thread, and the address of the fault.
struct FaultContext<'a> {
    signal: &'a CoreSignal,
    thread: &'a CoreThread,
    address: u64,
}

fn fault<'a>(coverage: &'a CoreCoverage<'_>) -> Option<FaultContext<'a>> {
    let signal = coverage.dump.signal.as_ref()?;
    let thread = coverage.dump.threads.iter().find(|thread| thread.tid == signal.tid)?;
    match signal.cause {
        SignalCause::Address(address) => Some(FaultContext { signal, thread, address }),
        SignalCause::Sender { .. } | SignalCause::Kernel => None,
    }
}

/// Finds the stack that a thread overflowed: the faulting address is near the stack pointer, and is
/// below the stack or in its guard.
fn overflowed_stack<'a>(
    subject: &'a ExplainSubject<'_>,
    fault: &FaultContext<'_>,
) -> Option<&'a Mapping> {
    let near_pointer = fault.thread.stack_pointer.abs_diff(fault.address) <= NEAR_STACK;
    if fault.signal.number != SIGSEGV || !near_pointer {
        return None;
    }
    // A guard belongs to the pool of its stack, so the first accessible mapping at or above the
    // faulting address determines the pool.
    let above = subject.mappings.partition_point(|mapping| mapping.range.end <= fault.address);
    let accessible = |index: &usize| !subject.mappings[*index].prot.is_none();
    let index = (above..subject.mappings.len()).take(2).find(accessible)?;
    let stack = &subject.mappings[index];
    let kind = subject.pools.pool_of(index).kind;
    let is_stack = matches!(kind, PoolKind::MainStack | PoolKind::ThreadStack)
        // If the stack pointer is outside the stack, only a guard below the stack identifies the
        // stack.
        || stack.prot.write && stack.backing() == Backing::Anonymous && is_guard(subject, index);
    // If the stack pointer is not near the end of the stack, the stack did not overflow.
    let is_full = fault.thread.stack_pointer < stack.range.start.saturating_add(NEAR_FULL);
    let below = stack.range.start.checked_sub(fault.address);
    (is_stack && is_full && below.is_some_and(|below| (1..=NEAR_STACK).contains(&below)))
        .then_some(stack)
}

/// True if a mapping without access rights ends at the start of the mapping with this index.
fn is_guard(subject: &ExplainSubject<'_>, index: usize) -> bool {
    let start = subject.mappings[index].range.start;
    let below = index.checked_sub(1).map(|below| &subject.mappings[below]);
    below.is_some_and(|below| below.range.end == start && below.prot.is_none())
}

fn stack_overflow(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let coverage = subject.coverage.as_ref()?;
    let fault = fault(coverage)?;
    let stack = overflowed_stack(subject, &fault)?;
    Some(finding(
        "stack-overflow",
        Severity::Critical,
        [
            text("Stack overflow: thread "),
            thread_id(fault.thread),
            text(" used all "),
            bytes(stack.size()),
            text(" of its stack and then accessed the address below it."),
        ],
        [
            size("stack", "stack", stack.size()),
            fact("stack_start", "which starts at", CellValue::Address(stack.range.start), ""),
            fact("fault_address", "address", CellValue::Address(fault.address), ""),
            fact(
                "stack_pointer",
                "stack pointer",
                CellValue::Address(fault.thread.stack_pointer),
                "",
            ),
            fact("location", "in", location(subject, fault.thread.instruction), ""),
        ],
        debugger(
            subject,
            coverage,
            " shows the calls: look for recursion and large local arrays. A larger stack (`ulimit -s`, \
             pthread_attr_setstacksize) helps only if the depth has a bound.",
        ),
    ))
}

/// Reports the signal that ended the process.
fn crash(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let coverage = subject.coverage.as_ref()?;
    let signal = coverage.dump.signal.as_ref()?;
    let thread = coverage.dump.threads.iter().find(|thread| thread.tid == signal.tid)?;
    let fault = fault(coverage);
    if fault.as_ref().is_some_and(|fault| overflowed_stack(subject, fault).is_some()) {
        return None;
    }
    let mut claim = vec![
        CellValue::text(signal_text(signal.number)),
        text(" ended it: thread "),
        thread_id(thread),
    ];
    let mut evidence = vec![
        fact("signal", "signal", CellValue::text(signal_text(signal.number)), ""),
        fact("location", "in", location(subject, thread.instruction), ""),
    ];
    match &fault {
        Some(fault) => {
            claim.extend(access(subject, fault));
            let address = CellValue::Address(fault.address);
            evidence.push(fact("fault_address", "address", address, ""));
        }
        None => claim.extend(received(signal, thread)),
    }
    let next_step = debugger(subject, coverage, " shows the calls of this thread.");
    Some(finding("crash", Severity::Critical, claim, evidence, next_step))
}

fn thread_id(thread: &CoreThread) -> CellValue {
    // Only quantities have thousands separators; a TID is not a quantity.
    CellValue::text(thread.tid.to_string())
}

/// Describes the cause of a signal that has no faulting address.
fn received(signal: &CoreSignal, thread: &CoreThread) -> Vec<CellValue> {
    match signal.cause {
        SignalCause::Sender { pid, .. } if signal.number == SIGABRT && pid == thread.tid => {
            vec![text(" called abort, as a failed assertion and the C library's heap checks do.")]
        }
        SignalCause::Sender { pid, uid } => {
            vec![text(" received it from PID "), CellValue::text(format!("{pid} (uid {uid})."))]
        }
        SignalCause::Kernel if signal.number == SIGSEGV && signal.code.is_some() => vec![text(
            " used an address that no mapping can have (not canonical): a damaged pointer. The core \
             does not record the address.",
        )],
        SignalCause::Kernel | SignalCause::Address(_) => vec![text(" received it.")],
    }
}

/// Describes the faulting address: the mapping that contains it, or the nearest mappings.
fn access(subject: &ExplainSubject<'_>, fault: &FaultContext<'_>) -> Vec<CellValue> {
    let address = CellValue::Address(fault.address);
    let mut claim = match fault.signal.number {
        SIGSEGV | SIGBUS => vec![text(" accessed address "), address, text(", ")],
        _ => return vec![text(" executed the instruction at "), address, text(".")],
    };
    let mappings = subject.mappings;
    let name = |index: usize| CellValue::Name(subject.pools.known_as(index, &mappings[index]));
    match mapping_at(mappings, fault.address) {
        _ if fault.address < NEAR_NULL => claim.push(text("near 0: a null pointer.")),
        Some(index) if fault.signal.number == SIGBUS => {
            claim.extend([
                text("in "),
                name(index),
                text(": its file ends before, or cannot be read."),
            ]);
        }
        Some(index) => {
            let rights = rights(&mappings[index]);
            claim.extend([text("in "), name(index), text(", "), text(rights), text(".")]);
        }
        None => claim.extend(unmapped(subject, fault.address, name)),
    }
    claim
}

const fn rights(mapping: &Mapping) -> &'static str {
    let prot = mapping.prot;
    match (prot.read, prot.write, prot.exec) {
        (false, false, false) => "which allows no access",
        (true, false, _) => "which cannot be written",
        (_, true, false) => "which cannot be executed",
        _ => "which does not allow this access",
    }
}

/// Describes an address that is in no mapping, and the distances to the nearest mappings.
fn unmapped(
    subject: &ExplainSubject<'_>,
    address: u64,
    name: impl Fn(usize) -> CellValue,
) -> Vec<CellValue> {
    let mappings = subject.mappings;
    let above = mappings.partition_point(|mapping| mapping.range.start <= address);
    let below = above.checked_sub(1).map(|index| (address - mappings[index].range.end, index));
    let above = mappings.get(above).map(|mapping| (mapping.range.start - address, above));
    let mut claim = vec![text("which is not mapped")];
    match (below, above) {
        (Some((distance, index)), above) if above.is_none_or(|(other, _)| distance <= other) => {
            claim.extend([
                text(": "),
                bytes(Bytes(distance)),
                text(" behind the end of "),
                name(index),
            ]);
        }
        (_, Some((distance, index))) => {
            claim.extend([text(": "), bytes(Bytes(distance)), text(" below "), name(index)]);
        }
        _ => {}
    }
    claim.push(text("."));
    claim
}

/// Returns the command `gdb PROGRAM FILE`, and the information that the command shows.
fn debugger(
    subject: &ExplainSubject<'_>,
    coverage: &CoreCoverage<'_>,
    shows: &'static str,
) -> Vec<CellValue> {
    let exe = subject.snapshot.process.exe.as_ref();
    let program = exe.map_or_else(|_| text("PROGRAM"), |exe| CellValue::Name(exe.clone()));
    vec![
        text("`gdb -batch -ex backtrace "),
        program,
        text(" "),
        CellValue::Name(coverage.dump.file.clone()),
        text("`"),
        text(shows),
    ]
}

/// Reports a core file that is shorter than its headers require.
fn truncated(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let coverage = subject.coverage.as_ref()?;
    let missing = coverage.missing();
    let dumped: Bytes = coverage.dumped.iter().copied().sum();
    (!missing.is_zero()).then(|| {
        finding(
            "truncated-core",
            Severity::Warning,
            [
                text("The core file is truncated: "),
                bytes(missing),
                text(" of "),
                bytes(dumped),
                text(" of dumped memory are missing."),
            ],
            [size("missing", "missing", missing), size("dumped", "dumped", dumped)],
            vec![text(
                "Raise the limit (`ulimit -c unlimited`; ProcessSizeMax and ExternalSizeMax in coredump.conf), \
                 and check the free space where core files are written.",
            )],
        )
    })
}

/// Minimum share of data that was not dumped, for a finding. Programs exclude smaller parts, such
/// as keys, themselves (MADV_DONTDUMP).
const MUCH_LEFT_OUT: f64 = 1.0 / 16.0;

/// Reports writable anonymous memory that was not dumped.
fn filtered(subject: &ExplainSubject<'_>) -> Option<Finding> {
    let coverage = subject.coverage.as_ref()?;
    let is_data = |m: &Mapping| m.prot.write && m.backing() == Backing::Anonymous;
    let left_out = subject.mappings.iter().zip(&coverage.dumped);
    let left_out: Vec<(AddrRange, Bytes)> = left_out
        .filter(|(mapping, _)| is_data(mapping))
        .map(|(mapping, dumped)| (mapping.range, mapping.size().saturating_sub(*dumped)))
        .filter(|(_, left_out)| !left_out.is_zero())
        .collect();
    let (largest, _) = *left_out.iter().max_by_key(|(_, bytes)| *bytes)?;
    let total: Bytes = left_out.iter().map(|(_, bytes)| *bytes).sum();
    let all: Bytes = subject.mappings.iter().filter(|m| is_data(m)).map(Mapping::size).sum();
    if total.fraction_of(all)? < MUCH_LEFT_OUT {
        return None;
    }
    Some(finding(
        "filtered-core",
        Severity::Warning,
        [
            bytes(total),
            text(" of "),
            bytes(all),
            text(" of writable anonymous memory was not dumped: data of the program is missing."),
        ],
        [
            size("left_out", "left out", total),
            fact("mappings", "mappings", CellValue::Count(left_out.len() as u64), ""),
            fact("largest", "the largest at", CellValue::Address(largest.start), ""),
        ],
        vec![text(
            "`echo 0x33 >/proc/PID/coredump_filter` restores the kernel's default for a running process and its \
             children. Memory that the program excludes with MADV_DONTDUMP stays out.",
        )],
    ))
}
