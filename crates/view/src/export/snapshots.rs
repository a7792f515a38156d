//! The snapshots that heap exports write, in order of time: an empty one at the beginning, the
//! recorded ones, the peak and the end.

use pagewise_model::heap::{HeapAmount, HeapRecording};

/// Time of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotTime {
    /// Before anything was recorded.
    Begin,
    /// A recorded snapshot.
    Moment,
    /// The peak of the live bytes.
    Peak,
    /// When the recording ended.
    End,
}

/// Live bytes and memory use at one time point.
#[derive(Clone, Debug)]
pub(super) struct ExportSnapshot {
    pub(super) what: SnapshotTime,
    pub(super) time_ns: u64,
    /// Live bytes: no fewer than those of the sites together.
    pub(super) bytes: u64,
    /// Bytes held by the allocator beyond them; `None` if unknown.
    pub(super) extra: Option<u64>,
    /// Resident memory.
    pub(super) resident: Option<u64>,
    /// Number of allocations before it.
    pub(super) allocations: u64,
    /// Live bytes by site, if they were stored: only existing sites, each once.
    pub(super) sites: Option<Vec<(usize, u64)>>,
}

/// All snapshots, in order of time.
pub(super) fn snapshots(recording: &HeapRecording) -> Vec<ExportSnapshot> {
    let mut moments: Vec<ExportSnapshot> =
        recording.moments.iter().map(|moment| of_moment(recording, moment)).collect();
    moments.sort_by_key(|snapshot| snapshot.time_ns);
    let end_ns = moments.last().map_or(0, |last| last.time_ns).max(recording.took_ns);
    let peak = peak(recording, &moments, end_ns);
    let after = moments.partition_point(|snapshot| snapshot.time_ns <= peak.time_ns);
    // The number of allocations decides if a snapshot at the time of the peak is before or after
    // it.
    let at = moments[..after]
        .iter()
        .rposition(|snapshot| {
            snapshot.time_ns < peak.time_ns || snapshot.allocations <= peak.allocations
        })
        .map_or(0, |last| last + 1);
    let all = |of: &dyn Fn(&pagewise_model::heap::AllocationSite) -> HeapAmount| {
        let sites = recording.sites.iter().enumerate().map(|(at, site)| (at, of(site).bytes));
        sites.filter(|(_, bytes)| *bytes > 0).collect::<Vec<_>>()
    };
    let leaked = all(&|site| site.leaked());
    let end = ExportSnapshot {
        what: SnapshotTime::End,
        time_ns: end_ns,
        bytes: sum(&leaked).max(recording.totals.leaked.bytes),
        extra: None,
        resident: None,
        allocations: recording.totals.allocated.blocks,
        sites: Some(leaked),
    };
    let begin = ExportSnapshot {
        what: SnapshotTime::Begin,
        time_ns: 0,
        bytes: 0,
        extra: None,
        resident: None,
        allocations: 0,
        sites: None,
    };
    moments.insert(at, peak);
    moments.insert(0, begin);
    moments.push(end);
    moments
}

fn of_moment(
    recording: &HeapRecording,
    moment: &pagewise_model::heap::HeapSnapshot,
) -> ExportSnapshot {
    let sites = moment.tree.as_ref().map(|tree| {
        let mut seen = std::collections::HashSet::new();
        let sites = tree.sites.iter().filter_map(|(at, amount)| {
            let at = usize::try_from(*at).ok().filter(|at| *at < recording.sites.len())?;
            seen.insert(at).then_some((at, amount.bytes))
        });
        sites.collect::<Vec<_>>()
    });
    let others = moment.tree.as_ref().map_or(0, |tree| tree.others.bytes);
    let of_sites = sites.as_deref().map_or(0, sum).saturating_add(others);
    // The tree is stored a little later than the sums, so its sum can be larger.
    let bytes = moment.live.bytes.max(of_sites);
    ExportSnapshot {
        what: SnapshotTime::Moment,
        time_ns: moment.time_ns,
        bytes,
        extra: moment.held.as_ref().ok().map(|held| held.0.saturating_sub(bytes)),
        resident: moment.resident.as_ref().ok().map(pagewise_model::heap::ResidentBytes::rss),
        allocations: moment.allocated.blocks,
        sites,
    }
}

/// The peak. Values that only snapshots have are those of the nearest snapshot.
fn peak(recording: &HeapRecording, moments: &[ExportSnapshot], end_ns: u64) -> ExportSnapshot {
    let highest = moments.iter().rev().max_by_key(|snapshot| snapshot.bytes);
    let time_ns = match &recording.peak_at_ns {
        Ok(at) => (*at).min(end_ns),
        Err(_) => highest.map_or(end_ns, |highest| highest.time_ns),
    };
    let next = moments.iter().min_by_key(|snapshot| snapshot.time_ns.abs_diff(time_ns));
    let sites = recording.sites.iter().enumerate().map(|(at, site)| (at, site.at_peak.bytes));
    let sites: Vec<_> = sites.filter(|(_, bytes)| *bytes > 0).collect();
    let bytes = sum(&sites).max(recording.totals.peak.bytes);
    let held = next.and_then(|next| Some(next.bytes.saturating_add(next.extra?)));
    ExportSnapshot {
        what: SnapshotTime::Peak,
        time_ns,
        bytes,
        extra: held.map(|held| held.saturating_sub(bytes)),
        resident: None,
        allocations: next.map_or(0, |next| next.allocations),
        sites: Some(sites),
    }
}

/// The bytes of sites together.
pub(super) fn sum(sites: &[(usize, u64)]) -> u64 {
    sites.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}
