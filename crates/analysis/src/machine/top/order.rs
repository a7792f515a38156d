//! Filter and order of rows.

use std::cmp::Ordering;

use pagewise_model::top::{TopColumn, TopKey, TopQuery, TopRow};
use pagewise_model::{Absent, Reading};

use crate::cells::float;

/// A filter for rows that contain a text; ASCII case is ignored.
pub(super) struct RowFilter {
    wanted: Vec<u8>,
}

impl RowFilter {
    pub(super) fn new(filter: &str) -> RowFilter {
        RowFilter { wanted: filter.trim().to_ascii_lowercase().into_bytes() }
    }

    /// True if the filter is empty, or if the row contains the filter's text.
    pub(super) fn matches(&self, row: &TopRow) -> bool {
        if self.wanted.is_empty() {
            return true;
        }
        let key = match &row.key {
            TopKey::Process(key) => return self.matches_process(row, key.pid.0),
            TopKey::Group(name) | TopKey::Cgroup(name) => name,
        };
        self.is_in(key.as_bytes())
    }

    fn matches_process(&self, row: &TopRow, pid: u32) -> bool {
        let line = [row.name.as_bytes(), b" ", row.arguments.as_bytes()].concat();
        self.is_in(&line)
            || self.is_in(row.user.as_bytes())
            || pid.to_string().as_bytes() == self.wanted
    }

    fn is_in(&self, text: &[u8]) -> bool {
        text.windows(self.wanted.len()).any(|part| part.eq_ignore_ascii_case(&self.wanted))
    }
}

/// Sorts rows by the column and direction of the query. Rows without a value are last in both
/// directions.
pub(super) fn sort(rows: &mut [TopRow], query: &TopQuery) {
    rows.sort_by(|a, b| compare(a, b, query));
}

pub(super) fn compare(a: &TopRow, b: &TopRow, query: &TopQuery) -> Ordering {
    let descends = query.sort.about().ascending == query.reversed;
    let turn = |order: Ordering| if descends { order.reverse() } else { order };
    let order = match query.sort {
        TopColumn::Name => turn(a.name.cmp(&b.name).then_with(|| a.arguments.cmp(&b.arguments))),
        TopColumn::User => turn(a.user.cmp(&b.user)),
        column => match (number(a, column), number(b, column)) {
            (Some(a), Some(b)) => turn(a.total_cmp(&b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        },
    };
    order.then_with(|| a.key.cmp(&b.key))
}

fn number(row: &TopRow, column: TopColumn) -> Option<f64> {
    let bytes = |reading: &Reading<pagewise_model::Bytes>| {
        reading.as_ref().ok().map(|bytes| float(bytes.0))
    };
    match column {
        TopColumn::Pid => match row.key {
            TopKey::Process(key) => Some(f64::from(key.pid.0)),
            TopKey::Group(_) | TopKey::Cgroup(_) => Some(float(row.processes)),
        },
        // If the PSS of a large process was not read for lack of time, RSS replaces it, so that the
        // row does not move to the end.
        TopColumn::Pss if matches!(row.pss, Err(Absent::NotCollected(_))) => bytes(&row.rss),
        TopColumn::Pss => bytes(&row.pss),
        TopColumn::Uss => bytes(&row.uss),
        TopColumn::Rss => bytes(&row.rss),
        TopColumn::Swap => bytes(&row.swap),
        TopColumn::Current => bytes(&row.current),
        TopColumn::Limit => row.limit.as_ref().ok()?.map(|bytes| float(bytes.0)),
        TopColumn::Growth | TopColumn::Trend => row.growth.as_ref().ok().map(|&it| signed(it)),
        TopColumn::Minor => row.minor.as_ref().ok().copied(),
        TopColumn::Major => row.major.as_ref().ok().copied(),
        TopColumn::Pressure => row.pressure.as_ref().ok().copied(),
        TopColumn::OomRank => row.oom_rank.as_ref().ok().map(|&rank| float(rank)),
        TopColumn::Name | TopColumn::User => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "equal doubles are equal for an order of rows")]
const fn signed(number: i64) -> f64 {
    number as f64
}
