//! The heap over time in HTML: a time line, and the call stacks of each snapshot that has some. A
//! script draws them from the data that are embedded here: numbers in columns, call stacks as a
//! tree, each name once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;

use pagewise_model::heap::{
    AllocationSite, HeapAmount, HeapRecording, HeapSnapshot, ResidentBytes,
};
use pagewise_model::report::{Audience, Chart};
use pagewise_model::traced::Frame;

use super::HtmlPage;
use crate::json::push_string;
use crate::words::clean;

pub(super) const CSS: &str = include_str!("heap.css");
pub(super) const JS: &str = include_str!("heap.js");

/// Index for a missing parent or name.
const NONE: i64 = -1;

impl HtmlPage<'_> {
    /// The interactive heap view; without a script, a chart.
    pub(super) fn heap(
        &mut self,
        recording: &HeapRecording,
        chart: Option<&Chart>,
    ) -> io::Result<()> {
        self.html.push_str("<noscript>\n");
        chart.into_iter().for_each(|chart| self.chart(chart));
        self.html.push_str(
            "<p>Moments and their call stacks are shown by a script, which does not run here. The tables need none.</p>\n\
             </noscript>\n",
        );
        self.section("The heap over time", Audience::Everyone);
        self.html.push_str("<div id=\"heap\"></div>\n");
        self.html.push_str("<script type=\"application/json\" id=\"heap-data\">\n{");
        self.moments(&recording.moments)?;
        let tree = FlameTree::from_recording(recording);
        self.numbers("parents", tree.parents.iter().copied())?;
        self.numbers("frames", tree.frames.iter().map(|at| i64::from(*at)))?;
        self.sites(recording, &tree)?;
        self.names(recording)?;
        self.trees(recording)?;
        let totals = &recording.totals;
        let peak_at = recording.peak_at_ns.as_ref().ok().map_or("null".into(), u64::to_string);
        let _ = writeln!(
            self.html,
            "\"peakAt\":{peak_at},\"peak\":[{},{}],\"leaked\":[{},{}],\"took\":{},\"cut\":{}}}",
            totals.peak.bytes,
            totals.peak.blocks,
            totals.leaked.bytes,
            totals.leaked.blocks,
            recording.took_ns,
            recording.ending == pagewise_model::heap::HeapEnding::CutOff,
        );
        self.html.push_str("</script>\n");
        self.end_section();
        self.flush()
    }

    /// A member of the data: numbers.
    fn numbers(&mut self, key: &str, numbers: impl Iterator<Item = i64>) -> io::Result<()> {
        self.column(key, numbers.map(Some))
    }

    /// A member of the data: numbers, and `null` for what is not known.
    pub(super) fn column<T: std::fmt::Display>(
        &mut self,
        key: &str,
        values: impl Iterator<Item = Option<T>>,
    ) -> io::Result<()> {
        let _ = write!(self.html, "\"{key}\":[");
        for (at, value) in values.enumerate() {
            if at > 0 {
                self.html.push(',');
            }
            let _ = match value {
                Some(value) => write!(self.html, "{value}"),
                None => write!(self.html, "null"),
            };
            if self.html.len() > 1 << 16 {
                self.flush()?;
            }
        }
        self.html.push_str("],\n");
        Ok(())
    }

    fn moments(&mut self, moments: &[HeapSnapshot]) -> io::Result<()> {
        let resident = |moment: &HeapSnapshot, of: fn(&ResidentBytes) -> u64| {
            moment.resident.as_ref().ok().map(of)
        };
        self.column("times", moments.iter().map(|it| Some(it.time_ns)))?;
        self.column("live", moments.iter().map(|it| Some(it.live.bytes)))?;
        self.column("liveBlocks", moments.iter().map(|it| Some(it.live.blocks)))?;
        self.column("allocations", moments.iter().map(|it| Some(it.allocated.blocks)))?;
        self.column("held", moments.iter().map(|it| it.held.as_ref().ok().map(|held| held.0)))?;
        self.column("resident", moments.iter().map(|it| resident(it, ResidentBytes::rss)))?;
        self.column("RssAnon", moments.iter().map(|it| resident(it, |it| it.anonymous)))?;
        self.column("RssFile", moments.iter().map(|it| resident(it, |it| it.file)))?;
        self.column("RssShmem", moments.iter().map(|it| resident(it, |it| it.shmem)))?;
        self.column("VmSwap", moments.iter().map(|it| resident(it, |it| it.swap)))
    }

    fn sites(&mut self, recording: &HeapRecording, tree: &FlameTree) -> io::Result<()> {
        self.numbers("nodes", tree.of_site.iter().copied())?;
        let kinds = recording.sites.iter().map(|site| format!("\"{}\"", site.kind.word()));
        if recording
            .sites
            .iter()
            .any(|site| site.kind != pagewise_model::heap::AllocationKind::Heap)
        {
            self.column("kinds", kinds.map(Some))?;
        }
        type Of = fn(&AllocationSite) -> HeapAmount;
        let amounts: [(&str, Of); 3] = [
            ("Allocated", |site| site.allocated),
            ("Peak", |site| site.at_peak),
            ("Leaked", AllocationSite::leaked),
        ];
        for (name, of) in amounts {
            let sites = || recording.sites.iter().map(of);
            self.column(&format!("bytes{name}"), sites().map(|amount| Some(amount.bytes)))?;
            self.column(&format!("blocks{name}"), sites().map(|amount| Some(amount.blocks)))?;
        }
        self.column("temporary", recording.sites.iter().map(|site| Some(site.temporary)))
    }

    /// The names of frames, each once: function, file of code, source and line.
    fn names(&mut self, recording: &HeapRecording) -> io::Result<()> {
        let mut names: HashMap<String, i64> = HashMap::new();
        let mut listed: Vec<String> = Vec::new();
        let mut number = |text: Option<&[u8]>| {
            let Some(text) = text.filter(|text| !text.is_empty()) else { return NONE };
            let name = clean(text).into_owned();
            *names.entry(name.clone()).or_insert_with(|| {
                listed.push(name);
                i64::try_from(listed.len()).unwrap_or(0) - 1
            })
        };
        let mut columns: [Vec<i64>; 4] = Default::default();
        for Frame { function, module, line, .. } in &recording.frames {
            columns[0].push(number(function.as_ref().map(String::as_bytes)));
            columns[1].push(number(module.as_ref().map(pagewise_model::Name::as_bytes)));
            columns[2].push(number(line.as_ref().map(|line| line.file.as_bytes())));
            columns[3].push(line.as_ref().map_or(0, |line| i64::from(line.number)));
        }
        for (key, column) in ["functions", "modules", "files", "lines"].iter().zip(columns) {
            self.numbers(key, column.into_iter())?;
        }
        self.column("names", listed.iter().map(|name| Some(embedded(name))))
    }

    /// The trees of snapshots: index of the snapshot, sites and amounts.
    fn trees(&mut self, recording: &HeapRecording) -> io::Result<()> {
        self.html.push_str("\"trees\":[");
        let with = recording.moments.iter().enumerate();
        let with = with.filter_map(|(at, moment)| Some((at, moment.tree.as_ref()?)));
        for (place, (at, tree)) in with.enumerate() {
            if place > 0 {
                self.html.push(',');
            }
            let known = |number: u32| {
                usize::try_from(number).is_ok_and(|number| number < recording.sites.len())
            };
            let sites = || tree.sites.iter().filter(|(site, _)| known(*site));
            let _ = write!(self.html, "{{\"moment\":{at},");
            self.column("sites", sites().map(|(site, _)| Some(*site)))?;
            self.column("bytes", sites().map(|(_, amount)| Some(amount.bytes)))?;
            self.column("blocks", sites().map(|(_, amount)| Some(amount.blocks)))?;
            let others = tree.others;
            let _ = write!(self.html, "\"others\":[{},{}]}}", others.bytes, others.blocks);
        }
        self.html.push_str("],\n");
        Ok(())
    }
}

/// A string of JSON that cannot end the element that it is in.
pub(super) fn embedded(text: &str) -> String {
    let mut out = Vec::new();
    push_string(&mut out, text);
    String::from_utf8_lossy(&out).replace('<', "\\u003c")
}

/// Call stacks as paths in a tree, the outermost calls first.
struct FlameTree {
    /// Distance of each node to its parent; 0 without a parent.
    parents: Vec<i64>,
    frames: Vec<u32>,
    /// The innermost node of each site.
    of_site: Vec<i64>,
}

impl FlameTree {
    fn from_recording(recording: &HeapRecording) -> FlameTree {
        let stack = |site: usize| {
            let at = recording.sites.get(site).and_then(|site| usize::try_from(site.stack).ok());
            let stack = at.and_then(|at| recording.stacks.get(at)).map_or(&[][..], Vec::as_slice);
            let known = |at: &u32| usize::try_from(*at).is_ok_and(|at| at < recording.frames.len());
            stack.iter().rev().copied().filter(known)
        };
        let mut order: Vec<usize> = (0..recording.sites.len()).collect();
        order.sort_unstable_by(|a, b| stack(*a).cmp(stack(*b)));
        let mut tree = FlameTree {
            parents: Vec::new(),
            frames: Vec::new(),
            of_site: vec![NONE; recording.sites.len()],
        };
        // Nodes of the path before this one, the outermost first.
        let mut path: Vec<usize> = Vec::new();
        for site in order {
            let same = path.iter().zip(stack(site));
            let same = same.take_while(|(node, at)| tree.frames[**node] == *at).count();
            path.truncate(same);
            for at in stack(site).skip(same) {
                let node = tree.frames.len();
                let back = path.last().map_or(0, |parent| node - parent);
                tree.parents.push(i64::try_from(back).unwrap_or(0));
                tree.frames.push(at);
                path.push(node);
            }
            let leaf = path.last().map_or(NONE, |node| i64::try_from(*node).unwrap_or(NONE));
            tree.of_site[site] = leaf;
        }
        tree
    }
}
