//! Who called: by frame pointers, which the kernel follows, or by unwind tables, which we do.

use pagewise_model::bounds::MemoryLimit;
use pagewise_sys::perf_ring::Carries;

use crate::record::Sample;
use crate::spaces::Spaces;
use crate::unwind::Unwinder;

/// How callers are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// By frame pointers, at most so many: cheap, and wrong for code that is built without.
    FramePointers(u16),
    /// By unwind tables, in so many bytes of the stack, at most 65528: these the kernel copies for each event.
    Tables(u16),
}

/// Finds callers.
#[derive(Debug)]
pub struct Finder {
    callers: Callers,
    unwinder: Unwinder,
    found: Vec<u64>,
}

impl Finder {
    /// Finds them in one of two ways. Where tables are not understood, on machines other than x86-64, by frame pointers.
    /// It keeps tables in a part of the memory limit.
    pub fn new(callers: Callers, limit: MemoryLimit) -> Finder {
        const MOST: u16 = 127;
        let is_understood = Unwinder::carries(8).registers != 0;
        let callers = if is_understood { callers } else { Callers::FramePointers(MOST) };
        Finder { callers, unwinder: Unwinder::within(limit.bytes() / 4), found: Vec::new() }
    }

    /// What samples must carry for that.
    pub fn carries(&self) -> Carries {
        match self.callers {
            Callers::FramePointers(callers) => Carries { callers, ..Carries::default() },
            Callers::Tables(stack) => Unwinder::carries(stack),
        }
    }

    /// Where the program was, then the return addresses of its callers: what [`crate::Stacks::number`] takes.
    pub fn find(&mut self, spaces: &Spaces, sample: &Sample<'_>) -> &[u64] {
        if let Callers::Tables(_) = self.callers {
            return self.unwinder.unwind(spaces, sample);
        }
        self.found.clear();
        self.found.extend(sample.callers());
        &self.found
    }

    /// How many stacks are known not to be whole. What frame pointers leave out is not known.
    pub fn cut(&self) -> Option<u64> {
        match self.callers {
            Callers::FramePointers(_) => None,
            Callers::Tables(_) => Some(self.unwinder.cut()),
        }
    }
}
