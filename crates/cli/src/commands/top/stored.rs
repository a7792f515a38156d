//! A recording of `pagewise record` as a source of sweeps.

use pagewise_analysis::sweeps::is_notable;
use pagewise_model::sweep::{CategorySample, Sweep, SweepEvent};
use pagewise_model::sweep_source::SweepSource;
use pagewise_store::{RecordReader, StoreError};

/// Length of the history of a sweep, in nanoseconds: the sweeps within this time before the sweep.
const HISTORY_NS: u64 = 300_000_000_000;
/// Length, in nanoseconds, of the period that one step of a search for events reads: a jump to a
/// near event reads little.
const PIECE_NS: u64 = 3_600_000_000_000;

/// The sweeps of a recording.
#[derive(Debug)]
pub(crate) struct StoredSweeps(pub(crate) RecordReader);

impl StoredSweeps {
    fn worth_a_jump(
        &self,
        from_ns: u64,
        to_ns: u64,
    ) -> impl DoubleEndedIterator<Item = SweepEvent> {
        let events = self.0.events(from_ns, to_ns).into_iter();
        events.filter(|event| is_notable(&event.event))
    }
}

impl SweepSource for StoredSweeps {
    type Error = StoreError;

    fn span(&mut self) -> Result<Option<(u64, u64)>, StoreError> {
        let spans = self.0.spans();
        let known = || spans.iter().filter_map(|span| span.sweeps.as_ref().ok());
        let first = known().map(|(first, _, _)| first.unix_ns).min();
        Ok(first.zip(known().map(|(_, last, _)| last.unix_ns).max()))
    }

    fn at(&mut self, unix_ns: u64, count: usize) -> Result<Vec<Sweep>, StoreError> {
        let Some(last) = self.0.at(unix_ns)? else { return Ok(Vec::new()) };
        let time = last.time;
        let mut sweeps = Vec::new();
        let mut cursor = self.0.sweeps(time.unix_ns.saturating_sub(HISTORY_NS), time.unix_ns);
        while let Some(sweep) = cursor.next_sweep() {
            // Sweeps with a later time since boot are left out: they are of an earlier boot, whose
            // counters cannot be compared, or the clock was set back before them.
            if sweep.time.boot_ns < time.boot_ns {
                sweeps.push(sweep.clone());
            }
        }
        sweeps.push(last);
        sweeps.drain(..sweeps.len().saturating_sub(count));
        Ok(sweeps)
    }

    fn next(&mut self, unix_ns: u64) -> Result<Option<Sweep>, StoreError> {
        match self.0.next_after(unix_ns)? {
            Some(time) => self.0.at(time.unix_ns),
            None => Ok(None),
        }
    }

    fn events(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<SweepEvent>, StoreError> {
        Ok(self.0.events(from_ns, to_ns))
    }

    fn categories(&mut self, from_ns: u64, to_ns: u64) -> Result<Vec<CategorySample>, StoreError> {
        Ok(self.0.categories(from_ns, to_ns))
    }

    fn next_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, StoreError> {
        let Some((_, last)) = self.span()? else { return Ok(None) };
        let mut from = unix_ns.saturating_add(1);
        while from <= last {
            let to = from.saturating_add(PIECE_NS);
            if let Some(event) = self.worth_a_jump(from, to).next() {
                return Ok(Some(event));
            }
            from = to.saturating_add(1);
        }
        Ok(None)
    }

    fn previous_event(&mut self, unix_ns: u64) -> Result<Option<SweepEvent>, StoreError> {
        let Some((first, _)) = self.span()? else { return Ok(None) };
        let mut to = unix_ns;
        while to > first {
            let from = to.saturating_sub(PIECE_NS);
            if let Some(event) = self.worth_a_jump(from, to - 1).next_back() {
                return Ok(Some(event));
            }
            to = from;
        }
        Ok(None)
    }
}
