//! Models of the replacement policies of a cache: the misses of each policy in a sequence of
//! accesses, and the part of the measured times that the misses do not explain.
//!
//! A model has one set. It counts the accesses of a sequence that miss when the sequence is
//! repeated.

/// A replacement policy of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePolicy {
    /// Replaces the line that was used longest ago.
    Lru,
    /// Replaces the line that was filled longest ago.
    Fifo,
    /// Replaces a random line.
    Random,
    /// Uses a binary tree of bits over the ways; each bit points away from the half that was used
    /// last.
    TreePlru,
    /// Selects the group of four ways that was used longest ago, and replaces the line in the way
    /// to which the tree of this group points.
    LruOfTrees,
    /// Selects the group to which a tree of four groups points, and replaces the line in this group
    /// that was used longest ago.
    TreeOfLrus,
    /// Replaces the first way whose bit is clear. The bit of a way is set when the way is used;
    /// when all bits are set, all bits except the last one set are cleared.
    BitPlru,
    /// Replaces a line of the maximum age. An age has two bits: a new line gets the second-highest
    /// age, a used line age 0, and all lines age until one has the maximum age.
    Srrip,
}

/// All policies, with their names.
pub(crate) const POLICIES: &[(&str, CachePolicy)] = &[
    ("LRU", CachePolicy::Lru),
    ("FIFO", CachePolicy::Fifo),
    ("random", CachePolicy::Random),
    ("tree-PLRU", CachePolicy::TreePlru),
    ("LRU of 4-way tree-PLRU", CachePolicy::LruOfTrees),
    ("4-way tree-PLRU of LRU", CachePolicy::TreeOfLrus),
    ("bit-PLRU", CachePolicy::BitPlru),
    ("SRRIP", CachePolicy::Srrip),
];

/// Number of ways of a group, or number of groups of a tree, in policies with groups.
const FOUR: usize = 4;

/// The age at which SRRIP replaces a line, and the age of a new line.
const OLD: u64 = 3;
const NEW: u64 = 2;

/// A set of a cache.
struct SimpleCacheSet {
    policy: CachePolicy,
    lines: Vec<Option<usize>>,
    /// For each way, depending on the policy: time of its last use or of its fill, its age, or its
    /// bit.
    marks: Vec<u64>,
    /// Time of the last use of each group.
    groups: Vec<u64>,
    /// Trees: true for a node whose right half was used less recently. A tree of n ways has the
    /// nodes 1 to n - 1.
    trees: Vec<Vec<bool>>,
    clock: u64,
    random: fastrand::Rng,
}

impl SimpleCacheSet {
    fn new(policy: CachePolicy, ways: usize) -> SimpleCacheSet {
        let groups = ways.div_ceil(FOUR);
        let tree = |leaves: usize| vec![false; leaves.next_power_of_two().max(2)];
        SimpleCacheSet {
            policy,
            lines: vec![None; ways],
            marks: vec![0; ways],
            groups: vec![0; groups],
            trees: match policy {
                CachePolicy::LruOfTrees => vec![tree(FOUR); groups],
                CachePolicy::TreeOfLrus => vec![tree(FOUR)],
                _ => vec![tree(ways)],
            },
            clock: 0,
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// Accesses a line; returns true if it missed.
    fn access(&mut self, line: usize) -> bool {
        self.clock += 1;
        if let Some(way) = self.lines.iter().position(|held| *held == Some(line)) {
            self.used(way, false);
            return false;
        }
        let empty = self.lines.iter().position(Option::is_none);
        let way = empty.unwrap_or_else(|| self.victim());
        self.lines[way] = Some(line);
        self.used(way, true);
        true
    }

    /// Number of ways of a group under `TreeOfLrus`, which has four groups.
    fn per_group(&self) -> usize {
        self.lines.len().div_ceil(FOUR)
    }

    fn used(&mut self, way: usize, filled: bool) {
        match self.policy {
            CachePolicy::Random => {}
            CachePolicy::Fifo if !filled => {}
            CachePolicy::Lru | CachePolicy::Fifo => self.marks[way] = self.clock,
            CachePolicy::TreePlru => point_away(&mut self.trees[0], way),
            CachePolicy::LruOfTrees => {
                self.groups[way / FOUR] = self.clock;
                point_away(&mut self.trees[way / FOUR], way % FOUR);
            }
            CachePolicy::TreeOfLrus => {
                self.marks[way] = self.clock;
                let group = way / self.per_group();
                point_away(&mut self.trees[0], group);
            }
            CachePolicy::BitPlru => {
                self.marks[way] = 1;
                if self.marks.iter().all(|bit| *bit == 1) {
                    self.marks.fill(0);
                    self.marks[way] = 1;
                }
            }
            CachePolicy::Srrip => self.marks[way] = if filled { NEW } else { 0 },
        }
    }

    /// Returns the way to replace. Called only if all ways are full.
    fn victim(&mut self) -> usize {
        let ways = self.lines.len();
        match self.policy {
            CachePolicy::Lru | CachePolicy::Fifo => oldest(&self.marks),
            CachePolicy::Random => self.random.usize(..ways),
            CachePolicy::TreePlru => pointed_to(&self.trees[0], ways),
            CachePolicy::LruOfTrees => {
                let group = oldest(&self.groups);
                let first = group * FOUR;
                first + pointed_to(&self.trees[group], FOUR.min(ways - first))
            }
            CachePolicy::TreeOfLrus => {
                let size = self.per_group();
                let first = pointed_to(&self.trees[0], ways.div_ceil(size)) * size;
                first + oldest(&self.marks[first..(first + size).min(ways)])
            }
            CachePolicy::BitPlru => oldest(&self.marks),
            CachePolicy::Srrip => {
                let age = self.marks.iter().copied().max().unwrap_or(OLD);
                self.marks.iter_mut().for_each(|mark| *mark += OLD.saturating_sub(age));
                self.marks.iter().position(|mark| *mark == OLD).unwrap_or(0)
            }
        }
    }
}

/// Index of the first of the smallest marks.
fn oldest(marks: &[u64]) -> usize {
    (0..marks.len()).min_by_key(|way| marks[*way]).unwrap_or(0)
}

/// Turns the nodes above a leaf so that they point to the other half.
fn point_away(tree: &mut [bool], leaf: usize) {
    let mut node = leaf + tree.len();
    while node > 1 {
        let is_right = node % 2 == 1;
        node /= 2;
        tree[node] = !is_right;
    }
}

/// The leaf that the nodes lead to. The path never enters a half without leaves.
fn pointed_to(tree: &[bool], leaves: usize) -> usize {
    let (mut node, mut width) = (1, tree.len());
    while node < tree.len() {
        width /= 2;
        let right = 2 * node + 1;
        let first = right * width - tree.len();
        node = if tree[node] && first < leaves { right } else { 2 * node };
    }
    node - tree.len()
}

/// Number of repetitions of a sequence before misses are counted, and number of repetitions that
/// are counted.
const WARM: usize = 20;
const COUNTED: usize = 40;

/// Share of the accesses that miss when a sequence of lines is repeated.
pub(crate) fn misses(policy: CachePolicy, ways: usize, sequence: &[usize]) -> f64 {
    let mut set = SimpleCacheSet::new(policy, ways);
    let mut round = || sequence.iter().filter(|line| set.access(**line)).count();
    (0..WARM).for_each(|_| _ = round());
    let missed: usize = (0..COUNTED).map(|_| round()).sum();
    share(missed, COUNTED * sequence.len())
}

fn share(of: usize, all: usize) -> f64 {
    crate::bench::count(of as u64) / crate::bench::count(all.max(1) as u64)
}

/// Share of the variance of the times that a straight line through the misses leaves unexplained: 0
/// if each miss costs the same, 1 if misses explain nothing, or if more misses take less time.
pub(crate) fn unexplained(misses: &[f64], times: &[f64]) -> f64 {
    let mean =
        |values: &[f64]| values.iter().sum::<f64>() / crate::bench::count(values.len() as u64);
    let (x, y) = (mean(misses), mean(times));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        misses.iter().zip(times).map(|(a, b)| of(a - x, b - y)).sum()
    };
    let (xx, yy, xy) = (sum(&|a, _| a * a), sum(&|_, b| b * b), sum(&|a, b| a * b));
    if xx * yy > 0.0 && xy > 0.0 { 1.0 - xy * xy / (xx * yy) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sequence: &[usize], ways: usize) -> Vec<f64> {
        POLICIES.iter().map(|(_, policy)| misses(*policy, ways, sequence)).collect()
    }

    #[test]
    fn data_that_fits_never_misses() {
        let twelve: Vec<usize> = (0..12).chain([3, 3, 0, 7]).collect();
        assert_eq!(all(&twelve, 12), [0.0; 8]);
    }

    #[test]
    fn one_line_too_many_in_turn_always_misses_by_age_and_seldom_by_chance() {
        let nine: Vec<usize> = (0..9).collect();
        let share = |policy| misses(policy, 8, &nine);
        assert_eq!((share(CachePolicy::Lru), share(CachePolicy::Fifo)), (1.0, 1.0));
        assert!(share(CachePolicy::Random) < 0.5, "{}", share(CachePolicy::Random));
    }

    #[test]
    fn use_keeps_a_line_except_in_a_queue() {
        // Line 0 is used between any two other lines, so only FIFO replaces it.
        let sequence = [0, 1, 0, 2, 0, 3, 0, 4, 0, 5];
        let misses_zero = |policy| {
            let mut set = SimpleCacheSet::new(policy, 4);
            (0..50).flat_map(|_| sequence).filter(|line| set.access(*line) && *line == 0).count()
        };
        assert_eq!(misses_zero(CachePolicy::Lru), 1);
        assert_eq!(misses_zero(CachePolicy::TreePlru), 1);
        assert!(misses_zero(CachePolicy::Fifo) > 10);
    }

    #[test]
    fn a_tree_knows_the_older_half_not_the_oldest_line() {
        let given_up = |policy| {
            let mut set = SimpleCacheSet::new(policy, 4);
            [0, 1, 2, 3, 0, 4].into_iter().for_each(|line| _ = set.access(line));
            (0..4).find(|line| !set.lines.contains(&Some(*line)))
        };
        assert_eq!(
            (given_up(CachePolicy::Lru), given_up(CachePolicy::TreePlru)),
            (Some(1), Some(2))
        );
        assert_eq!(
            (given_up(CachePolicy::Fifo), given_up(CachePolicy::BitPlru)),
            (Some(0), Some(1))
        );
    }

    #[test]
    fn a_tree_points_away_from_what_was_used() {
        let mut tree = vec![false; 4];
        for (used, next) in [(0, 2), (2, 1), (1, 3), (3, 0)] {
            point_away(&mut tree, used);
            assert_eq!(pointed_to(&tree, 4), next);
        }
        // Three leaves: the third has no sibling.
        point_away(&mut tree, 0);
        point_away(&mut tree, 2);
        point_away(&mut tree, 0);
        assert_eq!(pointed_to(&tree, 3), 2);
    }

    #[test]
    fn groups_of_a_tree_with_four_ways_are_one_tree() {
        let sequence = [0, 1, 2, 3, 4, 0, 2, 5, 1, 3, 0, 4];
        assert_eq!(
            misses(CachePolicy::LruOfTrees, 4, &sequence),
            misses(CachePolicy::TreePlru, 4, &sequence)
        );
        assert_eq!(
            misses(CachePolicy::TreeOfLrus, 4, &sequence),
            misses(CachePolicy::TreePlru, 4, &sequence)
        );
    }

    #[test]
    fn each_policy_explains_its_own_times_best() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut sequence = |_| (0..60).map(|_| random.usize(..16)).collect();
        let sequences: Vec<Vec<usize>> = (0..24).map(&mut sequence).collect();
        let of = |policy| sequences.iter().map(|s| misses(policy, 12, s)).collect();
        let all: Vec<Vec<f64>> = POLICIES.iter().map(|(_, policy)| of(*policy)).collect();
        for (truth, missed) in all.iter().enumerate() {
            let times: Vec<f64> = missed.iter().map(|share| 4.0 + 10.0 * share).collect();
            for (other, missed) in all.iter().enumerate() {
                let left = unexplained(missed, &times);
                assert_eq!(left < 1e-9, truth == other, "{other} leaves {left} of {truth}");
            }
        }
    }

    #[test]
    fn a_model_that_explains_nothing_leaves_the_whole_variance() {
        assert_eq!(unexplained(&[1.0, 1.0], &[1.0, 2.0]), 1.0);
        assert_eq!(unexplained(&[1.0, 2.0], &[2.0, 1.0]), 1.0);
        assert_eq!(unexplained(&[], &[]), 1.0);
    }
}
