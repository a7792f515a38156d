//! Numbers of faults over time, in bounded memory: the spans double in length when there would be
//! too many.

use pagewise_model::faults::{FaultKind, TimeLine};

/// Maximum number of spans.
const MAX_SPANS: u64 = 128;
/// Initial length of a span, in nanoseconds.
const MIN_SPAN_NANOS: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct FaultTimes {
    begin: u64,
    line: TimeLine,
}

impl FaultTimes {
    pub(super) fn from(begin: u64) -> FaultTimes {
        FaultTimes { begin, line: TimeLine { span_ns: MIN_SPAN_NANOS, spans: Vec::new() } }
    }

    pub(super) fn note(&mut self, time: u64, kind: FaultKind, count: u64) {
        let since = time.saturating_sub(self.begin);
        while since / self.line.span_ns >= MAX_SPANS {
            self.double();
        }
        let at = usize::try_from(since / self.line.span_ns).expect("less than the most spans");
        if at >= self.line.spans.len() {
            self.line.spans.resize(at + 1, Default::default());
        }
        self.line.spans[at][kind.index()] += count;
    }

    fn double(&mut self) {
        self.line.span_ns *= 2;
        let pairs = self.line.spans.chunks(2);
        self.line.spans = pairs
            .map(|pair| {
                let mut both = pair[0];
                let other = pair.get(1).copied().unwrap_or_default();
                both.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
                both
            })
            .collect();
    }

    /// The time line, with empty spans up to the end.
    pub(super) fn finish(mut self, took: u64) -> TimeLine {
        if took > 0 {
            self.note(self.begin.saturating_add(took - 1), FaultKind::Unknown, 0);
        }
        self.line
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_the_line_stays_short(
            times in prop::collection::vec(0_u64..1 << 50, 0..200),
        ) {
            let mut line = FaultTimes::from(7);
            times.iter().for_each(|time| line.note(7 + time, FaultKind::Major, 2));
            let line = line.finish(1 << 50);
            prop_assert!(line.spans.len() as u64 <= MAX_SPANS);
            for (at, span) in (0_u64..).zip(&line.spans) {
                let within = |time: &&u64| **time / line.span_ns == at;
                let expected = 2 * times.iter().filter(within).count() as u64;
                prop_assert_eq!(span[FaultKind::Major.index()], expected);
            }
        }
    }
}
