//! A grid of programs: sizes x live blocks x alignment x order of frees x threads x touched or not.
//! Each cell replaces one block after another. The result is the time of the best compared
//! allocator divided by that of our best pool: above 1 ours is faster.
//!
//! `cargo run --release --bin grid [-- --all | --rows] [--only TEXT] [--html FILE]`: without
//! `--all` no alignment of 4096, and one thread only. `--only` runs the cells whose name contains
//! TEXT. `--rows` runs some cells that the grid does not have, and prints the time of each
//! allocator.

mod cell;
mod heat;
mod pool;

use pagewise_bench_allocators::median;

use cell::{GridCell, Order, SizeLaw};
use pool::{Contestant, Maker, contestants};

/// Rounds of each cell, in which all allocators run one after the other.
const ROUNDS: usize = 3;

/// The times of a cell in nanoseconds, one for each contestant; none for those that cannot run it.
struct CellResult {
    cell: GridCell,
    times: Vec<(Contestant, Option<f64>)>,
}

impl CellResult {
    fn measure(cell: GridCell, count: usize) -> CellResult {
        let all = contestants();
        let mut rounds: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
        for _ in 0..count {
            for (times, contestant) in rounds.iter_mut().zip(&all) {
                if contestant.can_run(&cell) {
                    times.push(contestant.time(&cell));
                }
            }
        }
        let time = |times: &Vec<f64>| (!times.is_empty()).then(|| median(times));
        let times = all.into_iter().zip(rounds.iter().map(time)).collect();
        CellResult { cell, times }
    }

    /// The fastest of ours, or of the others.
    fn best(&self, ours: bool) -> Option<(Contestant, f64)> {
        let some = self.times.iter().filter_map(|(who, time)| Some((*who, (*time)?)));
        some.filter(|(who, _)| who.ours == ours).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Time of the best compared allocator for one of ours.
    fn ratio(&self) -> f64 {
        match (self.best(true), self.best(false)) {
            (Some((_, ours)), Some((_, other))) => other / ours,
            _ => f64::NAN,
        }
    }

    fn print(&self) {
        let [ours, other] = [true, false].map(|ours| self.best(ours).expect("each cell has both"));
        println!(
            "{:<58} {:<6}{:>10.1} {:<10}{:>10.1} {:>6.2}",
            self.cell.to_string(),
            ours.0.name,
            ours.1,
            other.0.name,
            other.1,
            self.ratio()
        );
    }
}

/// Cells with at most this number of live bytes.
const MAX_LIVE: usize = 128 << 20;

fn cells(all: bool) -> Vec<GridCell> {
    let aligns: &[usize] = if all { &[8, 64, 4096] } else { &[8, 64] };
    let threads: &[usize] = if all { &[1, 2] } else { &[1] };
    let mut cells = Vec::new();
    for sizes in SizeLaw::ALL {
        for live in [100, 4_000, 100_000, 1_000_000] {
            for align in aligns {
                for order in Order::ALL {
                    for threads in threads {
                        for touched in [false, true] {
                            cells.push(GridCell {
                                sizes: *sizes,
                                live,
                                align: *align,
                                order: *order,
                                threads: *threads,
                                touched,
                            });
                        }
                    }
                }
            }
        }
    }
    cells.retain(|cell| cell.live_bytes() * cell.threads <= MAX_LIVE);
    cells
}

/// Programs for which single pools are made, or that are hard for them.
fn rows() -> Vec<GridCell> {
    use Order::{InOrder, NearlyInOrder, Random};
    use SizeLaw::{Bimodal, Uniform};
    let rows = [
        (Uniform(16, 512), 4096, 8, InOrder, false),
        (Uniform(16, 512), 100_000, 8, InOrder, false),
        (Uniform(64, 2048), 4096, 8, InOrder, false),
        (Uniform(64, 4096), 4096, 8, InOrder, false),
        (Uniform(64, 8192), 4096, 8, InOrder, false),
        (Bimodal, 4096, 8, InOrder, false),
        (Uniform(16, 512), 4096, 64, InOrder, false),
        (Uniform(16, 512), 4096, 8, NearlyInOrder, false),
        (Uniform(60_000, 100_000), 1000, 8, InOrder, false),
        (Uniform(64, 8192), 10_000, 8, Random, false),
        (Uniform(16, 512), 10_000, 64, Random, false),
        (Uniform(16, 512), 300, 8, Random, false),
        (Bimodal, 10_000, 8, Random, false),
        (Uniform(4096, 256 << 10), 256, 4096, Random, false),
        (Uniform(4096, 256 << 10), 256, 4096, Random, true),
    ];
    let cell = |(sizes, live, align, order, touched)| GridCell {
        sizes,
        live,
        align,
        order,
        threads: 1,
        touched,
    };
    rows.map(cell).into()
}

fn print_rows() {
    for cell in rows() {
        let result = CellResult::measure(cell, 7);
        result.print();
        for (who, time) in &result.times {
            if let Some(time) = time {
                print!("  {} {time:.1}", who.name);
            }
        }
        println!();
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--rows") {
        return print_rows();
    }
    let all = arguments.iter().any(|argument| argument == "--all");
    let html = arguments.iter().position(|argument| argument == "--html");
    let html = html.and_then(|at| arguments.get(at + 1));
    let only = arguments.iter().position(|argument| argument == "--only");
    let only = only.and_then(|at| arguments.get(at + 1)).map_or("", String::as_str);
    let mut cells = cells(all);
    cells.retain(|cell| cell.to_string().contains(only));
    println!(
        "{} cells, {ROUNDS} interleaved rounds; nanoseconds for a free and an allocation",
        cells.len()
    );
    let results: Vec<CellResult> = cells
        .into_iter()
        .map(|cell| {
            let result = CellResult::measure(cell, ROUNDS);
            result.print();
            result
        })
        .collect();
    heat::print(&results);
    if let Some(file) = html {
        std::fs::write(file, heat::html(&results)).expect("the file can be written");
    }
    let lost = results.iter().filter(|result| result.ratio() < 1.0 / 1.15).count();
    println!("\nours is slower by more than 15 % in {lost} of {} cells", results.len());
}
