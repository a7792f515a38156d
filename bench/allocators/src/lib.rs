//! Comparisons between allocators: all in one process, interleaved, round after round, since
//! machines are noisy.
//!
//! Read the ratios: each is the median of the ratios within a round, which noise that lasts longer
//! than a round does not change. Traps: LLVM deletes a `malloc` whose memory is unused, so pointers
//! go through [`black_box`]; the first touch of a page costs more than everything else, so cold and
//! warm rounds are different benchmarks.

pub mod malloc;

pub use std::hint::black_box;
use std::time::Instant;

/// A competitor: its name, and one round of it, which returns its nanoseconds for a unit of work.
pub struct BenchRunner<'a> {
    name: String,
    round: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> BenchRunner<'a> {
    /// A competitor whose `round` does `units` units of work, and is timed from outside.
    pub fn new(name: &str, units: usize, mut round: impl FnMut() + 'a) -> BenchRunner<'a> {
        BenchRunner::timed(name, move || nanoseconds(&mut round) / units as f64)
    }

    /// A competitor that times itself: `round` returns nanoseconds for a unit of work.
    pub fn timed(name: &str, round: impl FnMut() -> f64 + 'a) -> BenchRunner<'a> {
        BenchRunner { name: name.to_owned(), round: Box::new(round) }
    }

    /// Runs one round: nanoseconds for a unit of work.
    pub fn round(&mut self) -> f64 {
        (self.round)()
    }
}

/// Duration of `work`.
pub fn nanoseconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64() * 1e9
}

/// Nanoseconds for a unit of work, of each runner in each round.
pub struct BenchResults {
    names: Vec<String>,
    rounds: Vec<Vec<f64>>,
}

/// Runs all in turn, `rounds` times after one that does not count, and prints a row for each: the
/// median, the median absolute deviation, and the median of the ratios to the first runner of the
/// same round.
pub fn race(title: &str, rounds: usize, mut runners: Vec<BenchRunner<'_>>) -> BenchResults {
    runners.iter_mut().for_each(|runner| _ = (runner.round)());
    let round = |_| runners.iter_mut().map(|runner| (runner.round)()).collect();
    let rounds: Vec<Vec<f64>> = (0..rounds).map(round).collect();
    let names = runners.into_iter().map(|runner| runner.name).collect();
    let results = BenchResults { names, rounds };
    results.print(title);
    results
}

impl BenchResults {
    fn print(&self, title: &str) {
        println!("\n{title} ({} interleaved rounds)", self.rounds.len());
        println!("{:<36}{:>12}{:>9}{:>9}", "", "ns a unit", "MAD", "ratio");
        for (at, name) in self.names.iter().enumerate() {
            let own: Vec<f64> = self.rounds.iter().map(|round| round[at]).collect();
            let mid = median(&own);
            let spread = median(&own.iter().map(|value| (value - mid).abs()).collect::<Vec<_>>());
            println!("{name:<36}{mid:>12.2}{spread:>9.2}{:>8.2}x", self.ratio(at, 0));
        }
    }

    fn ratio(&self, of: usize, to: usize) -> f64 {
        median(&self.rounds.iter().map(|round| round[of] / round[to]).collect::<Vec<_>>())
    }

    fn index(&self, name: &str) -> usize {
        let found = self.names.iter().position(|known| known == name);
        found.unwrap_or_else(|| panic!("no measurement is called {name}"))
    }

    /// Says whether `name` took at most `most` times what `peer` did.
    pub fn goal(&self, name: &str, most: f64, peer: &str) {
        let ratio = self.ratio(self.index(name), self.index(peer));
        verdict(ratio <= most, &format!("{name} <= {most}x {peer}: {ratio:.2}x"));
    }

    /// Says whether `name` took at most `most` times what the best of the others did; names that
    /// begin with `not` are floors or our own, and do not count.
    pub fn goal_of_best(&self, name: &str, most: f64, not: &[&str]) {
        let counts = |peer: &&String| *peer != name && !not.iter().any(|not| peer.starts_with(not));
        let time = |peer: &&String| self.ratio(self.index(peer), 0);
        let peers = self.names.iter().filter(counts);
        let best = peers.min_by(|a, b| time(a).total_cmp(&time(b)));
        self.goal(name, most, best.expect("a race has peers"));
    }
}

/// Says whether a goal was met.
pub fn verdict(met: bool, goal: &str) {
    println!("goal {}: {goal}", if met { "met" } else { "MISSED" });
}

/// The middle value; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
