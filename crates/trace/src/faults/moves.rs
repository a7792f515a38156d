//! Memory that `mremap` moves or extends. Mapping records do not report such changes, but the
//! tracepoints of the system call do.

use std::collections::HashMap;
use std::ffi::CString;

use pagewise_model::Absent;
use pagewise_sys::system;
use pagewise_sys::tracefs::TraceFs;

use crate::record::PerfSample;
use crate::spaces::Spaces;
use crate::tracepoint::{Tracepoint, TracepointField};

/// `MREMAP_DONTUNMAP`: the old range stays mapped, and is empty.
const DONT_UNMAP: u64 = 4;

/// Fields of the tracepoints with the arguments of a call and its return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallFields {
    arguments: [Argument; 4],
    result: TracepointField,
}

/// Position of an argument: a field of its own, or a word of an array field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Argument {
    Field(TracepointField),
    Word(TracepointField, usize),
}

impl Argument {
    fn read(self, raw: &[u8]) -> Option<u64> {
        match self {
            Argument::Field(field) => field.read(raw),
            Argument::Word(field, at) => field.read_word(at, raw),
        }
    }
}

/// A tracepoint, and the filter of its events.
type ChosenTracepoint = (Tracepoint, Option<CString>);

impl CallFields {
    /// The tracepoints of `mremap`. If the kernel has none, the tracepoints of all system calls
    /// with a filter for `mremap`.
    pub(super) fn find(
        tracefs: &TraceFs,
    ) -> Result<(CallFields, ChosenTracepoint, ChosenTracepoint), Absent> {
        let own = ["enter", "exit"]
            .map(|end| Tracepoint::find(tracefs, &format!("syscalls:sys_{end}_mremap")));
        if let [Ok(enter), Ok(exit)] = own
            && let Some(fields) = CallFields::of_its_own(&enter, &exit)
        {
            return Ok((fields, (enter, None), (exit, None)));
        }
        let [enter, exit] = ["enter", "exit"]
            .map(|end| Tracepoint::find(tracefs, &format!("raw_syscalls:sys_{end}")));
        let (enter, exit) = (enter?, exit?);
        let without = || {
            Absent::NotInThisKernel("tracepoints of system calls: mremap is not followed".into())
        };
        let arguments = enter.field("args").ok_or_else(without)?;
        let result = exit.field("ret").ok_or_else(without)?;
        let arguments = [0, 1, 2, 3].map(|at| Argument::Word(arguments, at));
        let filter = CString::new(format!("id == {}", libc::SYS_mremap)).ok();
        Ok((CallFields { arguments, result }, (enter, filter.clone()), (exit, filter)))
    }

    fn of_its_own(enter: &Tracepoint, exit: &Tracepoint) -> Option<CallFields> {
        let field = |name| enter.field(name).map(Argument::Field);
        let arguments = [field("addr")?, field("old_len")?, field("new_len")?, field("flags")?];
        Some(CallFields { arguments, result: exit.field("ret")? })
    }
}

/// Pending `mremap` calls of threads.
#[derive(Debug, Default)]
pub(super) struct Moves {
    asked: HashMap<u32, [u64; 4]>,
}

impl Moves {
    /// Handles the entry of a call.
    pub(super) fn ask(&mut self, fields: &CallFields, sample: &PerfSample<'_>) {
        let read = |argument: Argument| argument.read(sample.raw);
        let [Some(old), Some(old_length), Some(length), Some(flags)] = fields.arguments.map(read)
        else {
            return;
        };
        self.asked.insert(sample.tid, [old, old_length, length, flags]);
    }

    /// Handles the return of a call.
    pub(super) fn answer(
        &mut self,
        fields: &CallFields,
        sample: &PerfSample<'_>,
        spaces: &mut Spaces,
    ) {
        let Some([old, old_length, length, flags]) = self.asked.remove(&sample.tid) else { return };
        let Some(new) = fields.result.read(sample.raw).filter(|it| it.cast_signed() > 0) else {
            return;
        };
        let page = system::page_size();
        let [old_length, length] = [old_length, length].map(|it| it.checked_next_multiple_of(page));
        let (Some(old_length), Some(length)) = (old_length, length) else { return };
        spaces.moved(sample.pid, old, old_length, new, length, flags & DONT_UNMAP != 0);
    }

    /// Drops the pending call of a thread that has ended.
    pub(super) fn forget(&mut self, tid: u32) {
        self.asked.remove(&tid);
    }
}
