//! The single lines of a report of the OOM killer.

use memchr::memmem;
use pagewise_model::fragmentation::BootCounter;
use pagewise_model::oom::{OomAsker, OomReport, OomTableRow, OomUsage, OomVictim, OomZone};
use pagewise_model::{Bytes, Name, PageSize, Pid};

use super::{MAX_COUNTERS, MAX_ROWS, OpenReport, ReportSection};
use crate::text::{kilobytes, number};

/// Minimum page size in bytes. A smaller quotient of bytes and pages is not a page size.
const SMALLEST_PAGE: u64 = 4 << 10;
/// Minimum limit in bytes that means "no limit": cgroup v1 and v2 print the largest number of whole
/// pages.
const UNLIMITED: u64 = 1 << 60;

/// Returns the text after the first occurrence of `mark`.
fn after<'t>(text: &'t [u8], mark: &str) -> Option<&'t [u8]> {
    memmem::find(text, mark.as_bytes()).map(|at| &text[at + mark.len()..])
}

/// Returns the texts before and after the last occurrence of `mark`.
fn around_last<'t>(text: &'t [u8], mark: &str) -> Option<(&'t [u8], &'t [u8])> {
    memmem::rfind(text, mark.as_bytes()).map(|at| (&text[..at], &text[at + mark.len()..]))
}

/// The text up to the next blank or comma.
fn word(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|b| b.is_ascii_whitespace() || *b == b',');
    &text[..end.unwrap_or(text.len())]
}

fn signed(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

fn pid(text: &[u8]) -> Option<Pid> {
    number(text).and_then(|pid| u32::try_from(pid).ok()).map(Pid)
}

/// `a process invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0`
pub(super) fn asker(text: &[u8]) -> Option<OomAsker> {
    let (name, rest) = around_last(text, " invoked oom-killer: ")?;
    let gfp = after(rest, "gfp_mask=").map(|it| {
        let end = memmem::find(it, b", ").unwrap_or(it.len());
        &it[..end]
    });
    Some(OomAsker {
        name: Name::new(name),
        pid: None,
        gfp: Name::new(gfp.unwrap_or_default()),
        order: after(rest, "order=").and_then(|it| signed(word(it))).unwrap_or(0),
        adj: after(rest, "oom_score_adj=").and_then(|it| signed(word(it))).unwrap_or(0),
    })
}

/// Returns true for a line that only reports contain, even if the beginning of the report is
/// missing.
pub(super) fn is_part(text: &[u8]) -> bool {
    killed(text).is_some()
        || text.starts_with(b"oom-kill:constraint=")
        || text.starts_with(b"Tasks state (memory values in pages):")
        || text.starts_with(b"Memory cgroup stats for ")
        || no_victim(text)
}

fn no_victim(text: &[u8]) -> bool {
    text.starts_with(b"Out of memory and no killable processes")
}

/// `oom_reaper: reaped process 7 (a), now anon-rss:0kB, file-rss:4kB, shmem-rss:0kB`. The kernel
/// may print this line within the next report.
pub(super) fn reaper(text: &[u8], open: Option<&mut OomReport>, done: &mut [OomReport]) -> bool {
    let Some(rest) = text.strip_prefix(b"oom_reaper: ") else { return false };
    let read = rest.strip_prefix(b"reaped process ").and_then(|rest| {
        let id = pid(word(rest))?;
        let (_, sizes) = around_last(rest, "), now ")?;
        Some((id, three_sizes(sizes)?))
    });
    if let Some((id, left)) = read {
        let reports = open.into_iter().chain(done.iter_mut().rev());
        let victim = reports.flat_map(|it| &mut it.victims).find(|it| it.pid == id);
        if let Some(victim) = victim {
            victim.left_after_reaper = Some(left);
        }
    }
    true
}

/// `anon-rss:1kB, file-rss:2kB, shmem-rss:3kB`
fn three_sizes(text: &[u8]) -> Option<[Bytes; 3]> {
    let size = |name: &str| kilobytes_word(after(text, name)?);
    Some([size("anon-rss:")?, size("file-rss:")?, size("shmem-rss:")?])
}

/// `12kB`
fn kilobytes_word(text: &[u8]) -> Option<Bytes> {
    kilobytes(word(text)).map(Bytes)
}

impl OpenReport {
    pub(super) fn line(&mut self, text: &[u8]) {
        let has_ended = self.section == ReportSection::Ended;
        // Messages about failed allocations can follow a report. They contain lines that look like
        // the beginning of a report.
        if !has_ended && self.beginning(text) {
            return;
        }
        if self.middle(text) || self.end(text) || has_ended {
            return;
        }
        if let ReportSection::Table { has_kinds } = self.section {
            self.row(text, has_kinds);
        } else if self.section == ReportSection::CgroupCounters {
            self.counter(text);
        } else {
            self.machine(text);
        }
    }

    fn beginning(&mut self, text: &[u8]) -> bool {
        if text.starts_with(b"CPU: ") {
            // A process name can contain any text, so the first ` PID: ` in the line counts.
            let id = after(text, " PID: ").and_then(|rest| pid(word(rest)));
            if let Some(asker) = self.report.asker.as_mut().filter(|asker| asker.pid.is_none()) {
                asker.pid = id;
            }
            return true;
        }
        for (start, is_swap, is_total) in [
            ("memory: usage ", false, false),
            ("memory+swap: usage ", true, true),
            ("swap: usage ", true, false),
        ] {
            if text.starts_with(start.as_bytes()) {
                let read = usage(text);
                self.report.damaged += u64::from(read.is_none());
                let report = &mut self.report;
                let into = if is_swap { &mut report.swap } else { &mut report.memory };
                *into = read.or(*into);
                report.swap_is_total |= is_total;
                return true;
            }
        }
        if let Some(rest) = text.strip_prefix(b"Memory cgroup stats for ") {
            let name = rest.trim_ascii_end();
            let name = name.strip_suffix(b":").unwrap_or(name);
            self.report.limited.get_or_insert_with(|| Name::new(name));
            self.section = ReportSection::CgroupCounters;
            return true;
        }
        false
    }

    fn middle(&mut self, text: &[u8]) -> bool {
        if text.starts_with(b"Tasks state (memory values in pages):") {
            self.section = ReportSection::Table { has_kinds: false };
            return true;
        }
        if text.starts_with(b"[  pid  ]") {
            self.has_heading = true;
            self.section = ReportSection::Table { has_kinds: after(text, "rss_anon").is_some() };
            return true;
        }
        if let Some(rest) = text.strip_prefix(b"oom-kill:constraint=") {
            self.constraint(rest);
            return true;
        }
        if text.starts_with(b"Tasks in ") && after(text, "due to memory.oom.group set").is_some() {
            self.report.kills_all = true;
            return true;
        }
        false
    }

    /// `CONSTRAINT_MEMCG,..,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=c,pid=7,uid=0`
    fn constraint(&mut self, rest: &[u8]) {
        let report = &mut self.report;
        report.constraint = Some(Name::new(word(rest)));
        report.nodes = after(rest, ",mems_allowed=").map(|it| {
            let end = memmem::find(it, b",oom_memcg=").or_else(|| memmem::find(it, b",global_oom"));
            Name::new(&it[..end.unwrap_or_else(|| word(it).len())])
        });
        let limited = after(rest, ",oom_memcg=")
            .and_then(|it| memmem::find(it, b",task_memcg=").map(|end| &it[..end]));
        report.limited = limited.map(Name::new).or_else(|| report.limited.take());
        let task = around_last(rest, ",uid=").and_then(|(rest, _)| around_last(rest, ",pid="));
        report.damaged += u64::from(task.is_none());
        report.victim_cgroup = task.and_then(|(rest, _)| {
            let (_, it) = around_last(rest, ",task_memcg=")?;
            memmem::find(it, b",task=").map(|end| Name::new(&it[..end]))
        });
        self.section = ReportSection::Ended;
    }

    fn end(&mut self, text: &[u8]) -> bool {
        if no_victim(text) {
            self.report.no_victim = true;
            self.section = ReportSection::Ended;
            return true;
        }
        let Some(rest) = killed(text) else { return false };
        let victims = &mut self.report.victims;
        match victim(rest) {
            // The log can contain the line of a process twice if its whole cgroup is killed.
            Some(victim) if victims.iter().any(|it| it.pid == victim.pid) => {}
            Some(victim) if victims.len() < MAX_ROWS => victims.push(victim),
            _ => self.report.damaged += 1,
        }
        self.section = ReportSection::Ended;
        true
    }

    /// `[   1234]     0  1234    26000    25600   253952        0             0 name`
    fn row(&mut self, text: &[u8], has_kinds: bool) {
        if !text.starts_with(b"[") {
            return;
        }
        match table_row(text, has_kinds, self.has_heading) {
            Some(row) if self.report.table.len() < MAX_ROWS => self.report.table.push(row),
            _ => self.report.damaged += 1,
        }
    }

    /// `inactive_anon 4096`
    fn counter(&mut self, text: &[u8]) {
        let mut words = text.trim_ascii().splitn(2, |&b| b == b' ');
        let (Some(name), Some(count)) = (words.next(), words.next().and_then(number)) else {
            return;
        };
        let is_name =
            name.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_');
        if is_name && self.report.counters.len() < MAX_COUNTERS {
            self.report.counters.push(BootCounter { name: Name::new(name), count });
        }
    }

    /// A line of the memory of the whole machine.
    fn machine(&mut self, text: &[u8]) {
        let report = &mut self.report;
        if let Some(rest) = text.strip_prefix(b"Free swap  = ") {
            report.swap_free = kilobytes_word(rest);
        } else if let Some(rest) = text.strip_prefix(b"Total swap = ") {
            report.swap_total = kilobytes_word(rest);
        } else if let Some(rest) = text.strip_prefix(b"Node ") {
            self.node(rest);
        } else if let Some(zone) = zone(0, text) {
            // Kernels without NUMA print no node.
            self.add_zone(zone);
        } else if let Some((count, name)) = pages_line(text) {
            self.add_page_counter(name, count);
        } else {
            for pair in text.split(|&b| b == b' ').filter_map(|it| split_pair(it)) {
                if let Some(count) = number(pair.1) {
                    self.add_page_counter(pair.0, count);
                }
            }
        }
    }

    /// `0 active_anon:4936kB ..` of a node, or `0 DMA free:15360kB .. min:64kB ..` of a zone.
    fn node(&mut self, rest: &[u8]) {
        let mut words = rest.split(|&b| b == b' ');
        let node = words.next().and_then(number).and_then(|node| u32::try_from(node).ok());
        let (Some(node), Some(second)) = (node, words.next()) else { return };
        if let Some((name, value)) = split_pair(second) {
            if name == b"active_anon"
                && let Some(active) = kilobytes(value)
            {
                self.compare(active, "active_anon");
            }
        } else {
            let at = rest.len() - second.len() - words.map(|word| word.len() + 1).sum::<usize>();
            if let Some(zone) = zone(node, &rest[at..]) {
                self.add_zone(zone);
            }
        }
    }

    fn add_zone(&mut self, zone: OomZone) {
        if self.report.zones.len() < MAX_COUNTERS {
            self.report.zones.push(zone);
        }
    }
}

/// `DMA free:15360kB boost:0kB min:64kB .. managed:15360kB ..`
fn zone(node: u32, text: &[u8]) -> Option<OomZone> {
    let name = word(text);
    let size = |name: &str| after(text, name).and_then(kilobytes_word);
    let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_alphanumeric);
    is_name.then(|| {
        Some(OomZone {
            node,
            name: Name::new(name),
            free: size(" free:")?,
            min: size(" min:")?,
            managed: size(" managed:").unwrap_or_default(),
        })
    })?
}

/// `name:value`
fn split_pair(word: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', word).filter(|at| *at > 0)?;
    let (name, value) = (&word[..colon], &word[colon + 1..]);
    name.iter().all(|b| b.is_ascii_lowercase() || *b == b'_').then_some((name, value))
}

/// `262014 pages RAM`
fn pages_line(text: &[u8]) -> Option<(u64, &'static [u8])> {
    let blank = memchr::memchr(b' ', text)?;
    let count = number(&text[..blank])?;
    let name: &[u8] = match &text[blank + 1..] {
        b"pages RAM" => b"ram",
        b"pages reserved" => b"reserved",
        b"pages in swap cache" => b"swap_cache",
        b"total pagecache pages" => b"page_cache",
        b"pages hwpoisoned" => b"poisoned",
        _ => return None,
    };
    Some((count, name))
}

/// `.. usage 102400kB, limit 102400kB, failcnt 7`
fn usage(text: &[u8]) -> Option<OomUsage> {
    let limit = kilobytes_word(after(text, "limit ")?)?;
    Some(OomUsage {
        usage: kilobytes_word(after(text, "usage ")?)?,
        limit: Some(limit).filter(|limit| limit.0 < UNLIMITED),
        failures: after(text, "failcnt ").and_then(|it| number(word(it))).unwrap_or(0),
    })
}

/// The text after `Killed process ` in a line of the OOM killer.
fn killed(text: &[u8]) -> Option<&[u8]> {
    let is_oom = [
        "Out of memory: ",
        "Memory cgroup out of memory: ",
        "Out of memory (oom_kill_allocating_task): ",
    ];
    let rest = is_oom.iter().find_map(|start| text.strip_prefix(start.as_bytes()))?;
    rest.strip_prefix(b"Killed process ")
}

/// `7 (a name) total-vm:104000kB, anon-rss:1kB, file-rss:2kB, shmem-rss:3kB, UID:0 pgtables:248kB
/// oom_score_adj:0`
fn victim(rest: &[u8]) -> Option<OomVictim> {
    let open = memchr::memchr(b'(', rest)?;
    let id = pid(&rest[..open])?;
    // A line that is cut off may lack the end of the name.
    let (name, sizes) = around_last(&rest[open + 1..], ") total-vm:").unwrap_or((b"", b""));
    let size = |name: &str| after(sizes, name).and_then(kilobytes_word);
    Some(OomVictim {
        pid: id,
        name: Name::new(name),
        memory: three_sizes(sizes),
        page_tables: size("pgtables:"),
        adj: after(sizes, "oom_score_adj:").and_then(|it| signed(word(it))),
        uid: after(sizes, "UID:")
            .and_then(|it| number(word(it)))
            .and_then(|it| u32::try_from(it).ok()),
        left_after_reaper: None,
    })
}

/// Parses a row of the process table. `has_kinds` is true if the heading has columns for kinds of
/// pages, and `is_sure` is true if the heading was read.
fn table_row(text: &[u8], has_kinds: bool, is_sure: bool) -> Option<OomTableRow> {
    let close = memchr::memchr(b']', text)?;
    let id = pid(&text[1..close])?;
    let mut rest = text[close + 1..].trim_ascii_start();
    let mut next = || {
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        let (found, tail) = rest.split_at(end);
        let value = signed(found)?;
        rest = tail.trim_ascii_start();
        Some(value)
    };
    let positive = |value: i64| u64::try_from(value).ok();
    let (uid, _group) = (positive(next()?)?, next()?);
    let (_size, rss) = (next()?, positive(next()?)?);
    let fifth = positive(next()?)?;
    let sixth = positive(next()?)?;
    let seventh = next()?;
    // Without a heading, three columns are kinds of pages if their sum is the RSS.
    let eighth = if has_kinds || !is_sure { next() } else { None };
    let kinds = positive(seventh).map(|it| [fifth, sixth, it]);
    let are_kinds = has_kinds
        || (!is_sure
            && eighth.is_some()
            && kinds.is_some_and(|it| {
                it.iter().try_fold(0_u64, |sum, it| sum.checked_add(*it)) == Some(rss)
            }));
    let (rss_kinds, page_tables, swap, adj) = if are_kinds {
        (kinds, positive(eighth?)?, positive(next()?)?, next()?)
    } else {
        (None, fifth, sixth, seventh)
    };
    // If the row has no columns for kinds of pages, the eighth number is the beginning of the name.
    let name = match eighth.filter(|_| !are_kinds) {
        Some(number) => [number.to_string().as_bytes(), b" ", rest].concat(),
        None => rest.to_vec(),
    };
    Some(OomTableRow {
        pid: id,
        uid: u32::try_from(uid).ok()?,
        rss,
        rss_kinds,
        page_tables: Bytes(page_tables),
        swap,
        adj,
        name: Name::new(name.trim_ascii_end()),
    })
}

/// Computes the page size from the memory of a victim in pages (its row of the process table) and
/// in bytes.
pub(super) fn page_size(report: &OomReport) -> Option<PageSize> {
    report.victims.iter().find_map(|victim| {
        let bytes: Bytes = victim.memory?.into_iter().sum();
        let row = report.table.iter().find(|row| row.pid == victim.pid && row.rss > 0)?;
        // Pages may have been freed between both lines, so the quotient is rounded.
        let quotient = bytes.0.checked_div(row.rss)?;
        let nearest = quotient.checked_next_power_of_two()?;
        let size = if nearest - quotient > quotient - nearest / 2 { nearest / 2 } else { nearest };
        PageSize::new(size).filter(|it| it.bytes() >= SMALLEST_PAGE)
    })
}

/// Adds the counters that the log has in pages.
pub(super) fn add_pages(report: &mut OomReport, pages: &[(Name, u64)], size: PageSize) {
    let counters = pages
        .iter()
        .map(|(name, count)| BootCounter { name: name.clone(), count: size.pages(*count).0 });
    report.counters.extend(counters);
}
