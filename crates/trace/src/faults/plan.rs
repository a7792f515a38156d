//! Events that report page faults, and their meanings.

use std::ffi::CString;
use std::fs;

use pagewise_model::faults::FaultSource;
use pagewise_model::{Absent, Bytes, Reading};
use pagewise_sys::perf_event::{Mode, PerfEvent, PerfType};
use pagewise_sys::perf_ring::{Carries, Sampling};
use pagewise_sys::system;
use pagewise_sys::tracefs::TraceFs;

use crate::TraceError;
use crate::faults::{FaultsRequest, moves};
use crate::session::SessionEvent;
use crate::tracepoint::{Tracepoint, TracepointField};
use crate::unwind::Unwinder;

/// `PERF_COUNT_SW_PAGE_FAULTS_MIN` and `_MAJ`.
const MINOR: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 5);
const MAJOR: PerfEvent = PerfEvent::new(PerfType::SOFTWARE, 6);

/// Maximum number of callers of a stack: the default of `kernel.perf_event_max_stack`.
const CALLERS: u16 = 127;

const USER_BEGIN: &str = "exceptions:page_fault_user";
const KERNEL_BEGIN: &str = "exceptions:page_fault_kernel";
const ALLOCATION: &str = "kmem:mm_page_alloc";

/// Meaning of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultRole {
    /// A fault begins.
    Begin {
        by_kernel: bool,
        address: TracepointField,
        code: TracepointField,
    },
    /// A fault ends.
    End {
        major: bool,
    },
    /// A huge page is allocated.
    HugePage,
    /// A thread enters `mremap`, or returns from it.
    Moves(moves::CallFields),
    Moved(moves::CallFields),
    /// A fault ends, and its beginning was not reported.
    Whole {
        major: bool,
    },
}

/// Events and what they mean.
#[derive(Debug)]
pub(super) struct FaultPlan {
    pub(super) source: FaultSource,
    pub(super) roles: Vec<FaultRole>,
    pub(super) wanted: Vec<SessionEvent>,
    /// Filters of events, by the index of the event.
    pub(super) filters: Vec<(usize, CString)>,
    pub(super) lacks: Vec<Absent>,
}

impl FaultPlan {
    /// The plan with tracepoints, which need privileges. The first event is that of faults in user
    /// mode.
    pub(super) fn tracepoints(request: &FaultsRequest) -> Result<FaultPlan, TraceError> {
        let denied = |error| TraceError::NotWatched { what: USER_BEGIN.to_owned(), error };
        let tracefs = TraceFs::open().map_err(denied)?;
        let mut plan = FaultPlan::empty(FaultSource::Tracepoints);
        plan.begin(&tracefs, USER_BEGIN, request)?;
        match plan.begin(&tracefs, KERNEL_BEGIN, request) {
            Ok(()) => {}
            Err(TraceError::NoSuchEvent { what }) => plan.lacks.push(Absent::NotInThisKernel(
                format!("{what}: faults in system calls are not reported").into(),
            )),
            Err(error) => return Err(error),
        }
        let ends = Carries { address: true, ..Carries::default() };
        plan.add(FaultRole::End { major: true }, "major-faults", MAJOR, 1, ends);
        plan.add(FaultRole::End { major: false }, "minor-faults", MINOR, 1, ends);
        let minor = plan.wanted.last_mut().expect("it was just added");
        minor.sampling.mode.exclude_user = !request.latency;
        plan.huge_pages(&tracefs);
        if request.mremap {
            plan.moves(&tracefs);
        }
        Ok(plan)
    }

    /// The plan without tracepoints.
    pub(super) fn counters(request: &FaultsRequest, user_only: bool) -> FaultPlan {
        let mut plan = FaultPlan::empty(FaultSource::Counters);
        // Without privileges the rings are too small for copies of stacks.
        let carries = Carries { address: true, callers: CALLERS, ..Carries::default() };
        plan.add(FaultRole::Whole { major: false }, "minor-faults", MINOR, request.every, carries);
        plan.add(FaultRole::Whole { major: true }, "major-faults", MAJOR, 1, carries);
        for wanted in &mut plan.wanted {
            wanted.sampling.mode.exclude_kernel = user_only;
        }
        let needs = |what: &str| Absent::NotPermitted(format!("root ({what})").into());
        plan.lacks.push(needs(
            "without the tracepoint exceptions:page_fault_user it is not known whether a fault wrote: copies on write, \
             reads of the zero page and huge pages are among minor anonymous and minor file",
        ));
        if user_only {
            plan.lacks.push(Absent::NotPermitted(
                "CAP_PERFMON, or kernel.perf_event_paranoid below 2 (faults in system calls, as read(2) into new \
                 memory, are not told)"
                    .into(),
            ));
        }
        if request.latency {
            plan.lacks.push(needs("only the end of a fault is reported, so its time is unknown"));
        }
        plan
    }

    fn empty(source: FaultSource) -> FaultPlan {
        FaultPlan {
            source,
            roles: Vec::new(),
            wanted: Vec::new(),
            filters: Vec::new(),
            lacks: Vec::new(),
        }
    }

    fn begin(
        &mut self,
        tracefs: &TraceFs,
        name: &str,
        request: &FaultsRequest,
    ) -> Result<(), TraceError> {
        let tracepoint = Tracepoint::find_or_fail(tracefs, name)?;
        let field = |field| {
            let no_such = || TraceError::NoSuchEvent { what: format!("{field} of {name}") };
            tracepoint.field(field).ok_or_else(no_such)
        };
        let by_kernel = name == KERNEL_BEGIN;
        let role =
            FaultRole::Begin { by_kernel, address: field("address")?, code: field("error_code")? };
        let carries = Carries { raw: true, callers: CALLERS, ..Unwinder::carries(request.stack) };
        self.add(role, name, tracepoint.event(), request.every, carries);
        Ok(())
    }

    /// Adds allocations of huge pages, unless transparent huge pages are off.
    fn huge_pages(&mut self, tracefs: &TraceFs) {
        let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let size = huge_page().ok().filter(|_| !mode.unwrap_or_default().contains("[never]"));
        let Some(size) = size else { return };
        let order = size.0.checked_div(system::page_size()).unwrap_or(0).max(1).ilog2();
        match Tracepoint::find(tracefs, ALLOCATION) {
            Ok(tracepoint) => {
                // The first caller is the instruction pointer in user mode, which identifies the
                // fault.
                let carries = Carries { callers: 1, ..Carries::default() };
                self.add(FaultRole::HugePage, ALLOCATION, tracepoint.event(), 1, carries);
                let filter = CString::new(format!("order >= {order}"));
                let filter = filter.expect("a number has no NUL");
                self.filters.push((self.roles.len() - 1, filter));
            }
            Err(_) => self.lacks.push(Absent::NotInThisKernel(
                format!("{ALLOCATION}: faults that made a huge page are among minor anonymous")
                    .into(),
            )),
        }
    }

    /// Arguments and result of `mremap`.
    fn moves(&mut self, tracefs: &TraceFs) {
        let raw = Carries { raw: true, ..Carries::default() };
        let found = moves::CallFields::find(tracefs);
        let (fields, enter, exit) = match found {
            Ok(found) => found,
            Err(absent) => return self.lacks.push(absent),
        };
        for (role, (tracepoint, filter)) in
            [(FaultRole::Moves(fields), enter), (FaultRole::Moved(fields), exit)]
        {
            self.add(role, &tracepoint.name, tracepoint.event(), 1, raw);
            self.filters.extend(filter.map(|filter| (self.roles.len() - 1, filter)));
        }
    }

    fn add(&mut self, role: FaultRole, name: &str, event: PerfEvent, every: u64, carries: Carries) {
        let tasks = self.roles.is_empty();
        let mode = Mode::default();
        let sampling = Sampling { event, every, carries, mode, tasks, wake_at: 1 };
        self.roles.push(role);
        self.wanted.push(SessionEvent { name: name.to_owned(), sampling });
    }
}

/// The size of a transparent huge page.
pub(super) fn huge_page() -> Reading<Bytes> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.map(Bytes).ok_or_else(|| Absent::NotInThisKernel("".into()))
}
