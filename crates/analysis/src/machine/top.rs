//! The table of processes or cgroups that `pagewise top` shows, from the last sweeps. A sweep is
//! one reading of all processes.

mod events;
mod history;
mod machine;
mod members;
mod order;
mod recorded;
mod replay;
mod rows;
mod tree;

use pagewise_model::sweep::SweepProcess;
use pagewise_model::top::{OutdatedProcesses, TopColumn, TopQuery, TopRow, TopSubject, TopTable};
use pagewise_model::{Absent, Reading};

pub use history::{MAX_SAMPLES, TopHistory};
pub use recorded::recorded_process;
pub use replay::ReplayCursor;

/// Builds the table that answers a query; `None` before the first sweep.
///
/// # Complexity
/// O(n log n) in the number of processes or cgroups.
pub fn table(history: &TopHistory, query: &TopQuery) -> Option<TopTable> {
    let sweep = history.current()?;
    let members = members::select(sweep, query);
    let (mut rows, missing) = match query.subject {
        TopSubject::Cgroups => rows::of_cgroups(history, sweep, query),
        TopSubject::Processes => match query.grouping {
            Some(grouping) => (rows::of_groups(history, sweep, &members, grouping), None),
            None => (rows::of_processes(history, sweep, &members), None),
        },
    };
    let columns = columns(query, &rows);
    let all = rows.len();
    let is_tree = query.tree && query.grouping.is_none();
    if is_tree {
        rows = tree::arrange(sweep, rows, query);
    } else {
        let filter = order::RowFilter::new(&query.filter);
        rows.retain(|row| filter.matches(row));
        order::sort(&mut rows, query);
    }
    Some(TopTable {
        unix_ns: sweep.time.unix_ns,
        filtered: u64::try_from(all - rows.len()).unwrap_or(u64::MAX),
        rows,
        missing,
        unreadable: unreadable(&members),
        postponed: postponed(&members),
        outdated: outdated(&members, sweep.time.boot_ns),
        columns,
        machine: machine::facts(history, sweep),
        events: events::of_history(history, sweep.time.boot_ns),
    })
}

/// Returns the number of processes whose PSS could not be read for lack of permission, and the
/// reason.
fn unreadable(members: &[&SweepProcess]) -> Option<(u64, Absent)> {
    let mut reasons = members.iter().filter_map(|it| match &it.pss {
        Err(Absent::NotPermitted(needs)) => Some(Absent::NotPermitted(needs.clone())),
        _ => None,
    });
    let first = reasons.next()?;
    Some((1 + u64::try_from(reasons.count()).unwrap_or(u64::MAX - 1), first))
}

/// Number of processes whose PSS was not read yet.
fn postponed(members: &[&SweepProcess]) -> u64 {
    let is_postponed = |it: &&&SweepProcess| matches!(it.pss, Err(Absent::NotCollected(_)));
    u64::try_from(members.iter().filter(is_postponed).count()).unwrap_or(u64::MAX)
}

/// Returns the number of processes whose values are of an earlier sweep, and the age of the oldest
/// value.
fn outdated(members: &[&SweepProcess], now_ns: u64) -> OutdatedProcesses {
    let ages = members.iter().filter_map(|it| it.outdated_ns(now_ns));
    ages.fold(OutdatedProcesses::default(), |sum, age_ns| OutdatedProcesses {
        count: sum.count + 1,
        oldest_ns: sum.oldest_ns.max(age_ns),
    })
}

/// Returns the columns that apply to the rows and have a value in at least one row. A table without
/// rows keeps all columns that apply, so that its heading is complete.
fn columns(query: &TopQuery, rows: &[TopRow]) -> Vec<TopColumn> {
    let applies = |column: TopColumn| match query.subject {
        TopSubject::Processes => !matches!(column, TopColumn::Current | TopColumn::Limit),
        TopSubject::Cgroups => column != TopColumn::User,
    };
    let has_value =
        |column: TopColumn| rows.is_empty() || rows.iter().any(|row| is_known(row, column));
    let is_kept = |column: TopColumn| match column {
        TopColumn::Pressure | TopColumn::OomRank | TopColumn::Swap | TopColumn::Limit => {
            has_value(column)
        }
        _ => true,
    };
    TopColumn::ALL.into_iter().filter(|it| applies(*it) && is_kept(*it)).collect()
}

fn is_known(row: &TopRow, column: TopColumn) -> bool {
    fn known<T>(reading: &Reading<T>) -> bool {
        reading.is_ok()
    }
    match column {
        TopColumn::Pid | TopColumn::User | TopColumn::Name | TopColumn::Trend => true,
        TopColumn::Pss => known(&row.pss),
        TopColumn::Uss => known(&row.uss),
        TopColumn::Rss => known(&row.rss),
        TopColumn::Swap => known(&row.swap),
        TopColumn::Current => known(&row.current),
        TopColumn::Limit => matches!(row.limit, Ok(Some(_))),
        TopColumn::Growth => known(&row.growth),
        TopColumn::Minor => known(&row.minor),
        TopColumn::Major => known(&row.major),
        TopColumn::Pressure => known(&row.pressure),
        TopColumn::OomRank => known(&row.oom_rank),
    }
}

#[cfg(test)]
mod tests;
