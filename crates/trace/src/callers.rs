//! Callers of a function: found by frame pointers, which the kernel follows, or by unwind tables,
//! which this module follows.

use pagewise_model::bounds::MemoryLimit;
use pagewise_sys::perf_ring::Carries;

use crate::record::PerfSample;
use crate::spaces::Spaces;
use crate::unwind::Unwinder;

/// Method of finding callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Frame pointers, for at most this number of callers: cheap, but wrong for code that is built
    /// without frame pointers.
    FramePointers(u16),
    /// Unwind tables, with this number of stack bytes (at most 65528), which the kernel copies for
    /// each event.
    Tables(u16),
}

/// Finds the callers of a sampled event by the method in [`Callers`].
#[derive(Debug)]
pub struct Finder {
    callers: Callers,
    unwinder: Unwinder,
    found: Vec<u64>,
}

impl Finder {
    /// Returns a finder for one of the two methods. On machines other than x86-64, unwind tables
    /// are not supported, and the finder uses frame pointers. The unwind tables take at most a
    /// quarter of the memory limit.
    pub fn new(callers: Callers, limit: MemoryLimit) -> Finder {
        const MAX_FRAMES: u16 = 127;
        let is_understood = Unwinder::carries(8).registers != 0;
        let callers = if is_understood { callers } else { Callers::FramePointers(MAX_FRAMES) };
        Finder { callers, unwinder: Unwinder::within(limit.bytes() / 4), found: Vec::new() }
    }

    /// Contents that samples must have for this method.
    pub fn carries(&self) -> Carries {
        match self.callers {
            Callers::FramePointers(callers) => Carries { callers, ..Carries::default() },
            Callers::Tables(stack) => Unwinder::carries(stack),
        }
    }

    /// Returns the instruction pointer in user mode, then the return addresses of its callers: the
    /// input of [`crate::RecordedStacks::number`].
    pub fn find(&mut self, spaces: &Spaces, sample: &PerfSample<'_>) -> &[u64] {
        if let Callers::Tables(_) = self.callers {
            return self.unwinder.unwind(spaces, sample);
        }
        self.found.clear();
        self.found.extend(sample.callers());
        &self.found
    }

    /// Number of stacks that are known to be incomplete; `None` for frame pointers, whose gaps are
    /// unknown.
    pub fn cut(&self) -> Option<u64> {
        match self.callers {
            Callers::FramePointers(_) => None,
            Callers::Tables(_) => Some(self.unwinder.cut()),
        }
    }
}
