//! Tests with OOM reports of several kernel versions, and with hostile reports.

use pagewise_model::evidence::counter;
use pagewise_model::oom::OomVictim;
use pagewise_model::{Bytes, Pid};
use proptest::prelude::*;

use super::*;

/// A report of a memory cgroup, in the form of Linux 5.10.
const CGROUP: &str = "\
[   99.000001] worker: 2 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[   99.000002] CPU: 1 PID: 812 Comm: worker: 2 Not tainted 5.10.0-28-amd64 #1 Debian 5.10.209-2
[   99.000003] Call Trace:
[   99.000004]  dump_stack+0x6b/0x83
[   99.000005] memory: usage 102400kB, limit 102400kB, failcnt 77
[   99.000006] swap: usage 0kB, limit 9007199254740988kB, failcnt 0
[   99.000007] Memory cgroup stats for /app/web:
[   99.000008] anon 100663296
[   99.000008] file 4096
[   99.000008] shmem 0
[   99.000009] Tasks state (memory values in pages):
[   99.000010] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[   99.000011] [    811]     0   811      600      200    45056        0         -1000 supervisor
[   99.000012] [    812]  1000   812    40000    24576   253952       12             0 worker: 2
[   99.000013] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/app/web,task_memcg=/app/web/w,task=worker: 2,pid=812,uid=1000
[   99.000014] Memory cgroup out of memory: Killed process 812 (worker: 2) total-vm:160000kB, anon-rss:98304kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:248kB oom_score_adj:0
[   99.100000] oom_reaper: reaped process 812 (worker: 2), now anon-rss:0kB, file-rss:4kB, shmem-rss:0kB
";

fn victim_of(report: &OomReport) -> &OomVictim {
    report.victims.first().unwrap()
}

#[test]
fn a_report_of_a_cgroup_has_asker_limit_table_and_victim() {
    let reports = parse(CGROUP.as_bytes());
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    let asker = report.asker.as_ref().unwrap();
    assert_eq!((asker.name.clone(), asker.pid), ("worker: 2".into(), Some(Pid(812))));
    assert_eq!(report.limited, Some("/app/web".into()));
    assert_eq!(report.victim_cgroup, Some("/app/web/w".into()));
    let memory = report.memory.unwrap();
    assert_eq!((memory.limit, memory.failures), (Some(Bytes::kib(102_400)), 77));
    assert_eq!(report.swap.unwrap().limit, None);
    assert_eq!(counter(&report.counters, "anon"), Some(100_663_296));
    assert_eq!(report.table.len(), 2);
    let row = &report.table[1];
    assert_eq!((row.rss, row.swap, row.adj), (24576, 12, 0));
    assert_eq!((row.page_tables, row.name.clone()), (Bytes(253_952), "worker: 2".into()));
    let victim = victim_of(report);
    assert_eq!((victim.pid, victim.name.clone()), (Pid(812), "worker: 2".into()));
    assert_eq!(victim.memory, Some([Bytes::mib(96), Bytes::ZERO, Bytes::ZERO]));
    assert_eq!(victim.left_after_reaper, Some([Bytes::ZERO, Bytes::kib(4), Bytes::ZERO]));
    assert_eq!(report.page_size, PageSize::new(4096));
    assert_eq!((report.damaged, report.truncated), (0, false));
    assert!((report.at_seconds.unwrap() - 99.000_001).abs() < 1e-9);
}

/// A report of the whole machine, in the form of Linux 6.12.
const MACHINE: &str = "\
<4>[    7.500000] [    T61] grow invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=0
[    7.500001] [    T61] CPU: 0 UID: 0 PID: 61 Comm: grow Not tainted 6.12.43+deb12-cloud-amd64 #1
[    7.500002] [    T61] Mem-Info:
[    7.500003] [    T61] active_anon:100 inactive_anon:50000 isolated_anon:0
[    7.500003] [    T61]  active_file:12 inactive_file:30 isolated_file:0
[    7.500003] [    T61]  slab_reclaimable:900 slab_unreclaimable:3000
[    7.500004] [    T61] Node 0 active_anon:400kB inactive_anon:200000kB active_file:48kB all_unreclaimable? yes
[    7.500005] [    T61] Node 0 DMA free:916kB boost:0kB min:40kB low:52kB high:64kB reserved_highatomic:0KB present:15992kB managed:15360kB mlocked:0kB
[    7.500006] [    T61] lowmem_reserve[]: 0 200 200 200
[    7.500007] [    T61] Node 0 DMA32 free:1500kB boost:0kB min:1400kB low:1800kB high:2200kB reserved_highatomic:0KB present:245760kB managed:218000kB mlocked:0kB
[    7.500008] [    T61] 44 total pagecache pages
[    7.500009] [    T61] 0 pages in swap cache
[    7.500010] [    T61] Free swap  = 8kB
[    7.500011] [    T61] Total swap = 1024kB
[    7.500012] [    T61] 65438 pages RAM
[    7.500013] [    T61] 7098 pages reserved
[    7.500014] [    T61] Tasks state (memory values in pages):
[    7.500015] [    T61] [  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
[    7.500016] [    T61] [     61]     0    61    60000    50010    50000       10         0   450560        7             0 grow
[    7.500017] [    T61] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=grow,pid=61,uid=0
[    7.500018] [    T61] Out of memory: Killed process 61 (grow) total-vm:240000kB, anon-rss:200000kB, file-rss:40kB, shmem-rss:0kB, UID:0 pgtables:440kB oom_score_adj:0
";

#[test]
fn a_report_of_the_machine_has_zones_swap_and_the_kinds_of_pages() {
    let reports = parse(MACHINE.as_bytes());
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(report.limited, None);
    assert_eq!(report.constraint, Some("CONSTRAINT_NONE".into()));
    let zones: Vec<_> = report.zones.iter().map(|it| (it.free, it.min, it.managed)).collect();
    let kib = Bytes::kib;
    assert_eq!(zones, [(kib(916), kib(40), kib(15360)), (kib(1500), kib(1400), kib(218_000))]);
    assert_eq!(report.page_size, PageSize::new(4096), "active_anon in pages and in kB");
    assert_eq!(counter(&report.counters, "ram"), Some(65438 * 4096));
    assert_eq!(counter(&report.counters, "slab_unreclaimable"), Some(3000 * 4096));
    assert_eq!((report.swap_total, report.swap_free), (Some(kib(1024)), Some(kib(8))));
    let row = &report.table[0];
    assert_eq!((row.rss, row.rss_kinds, row.swap), (50010, Some([50000, 10, 0]), 7));
    assert_eq!(row.page_tables, Bytes(450_560));
    assert_eq!(report.asker.as_ref().unwrap().pid, Some(Pid(61)));
}

#[test]
fn a_cut_anywhere_leaves_a_report_or_none_and_no_panic() {
    for text in [CGROUP, MACHINE] {
        for cut in 0..text.len() {
            for part in [&text[..cut], &text[cut..]] {
                let reports = parse(part.as_bytes());
                assert!(reports.len() <= 1, "{part}");
            }
        }
        let half = text.find("Tasks state").unwrap();
        let report = parse(&text.as_bytes()[..half]).remove(0);
        assert!(report.truncated && report.victims.is_empty());
        let start = text[..half].rfind('\n').unwrap();
        let report = parse(&text.as_bytes()[start..]).remove(0);
        assert!(report.truncated && report.asker.is_none());
        assert_eq!(report.victims.len(), 1);
    }
}

#[test]
fn other_messages_between_the_lines_change_nothing() {
    let noise = "[   99.000000] usb 1-1: new device [ 77] 0 1 2\n";
    let with: String = CGROUP.lines().flat_map(|line| [line, "\n", noise]).collect();
    assert_eq!(parse(with.as_bytes()), parse(CGROUP.as_bytes()));
}

#[test]
fn a_kill_without_a_report_is_one_of_its_own() {
    let kill = "[   99.2] Memory cgroup out of memory: Killed process 900 (other) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:5\n";
    let reports = parse(format!("{CGROUP}{kill}").as_bytes());
    assert_eq!(reports.len(), 2);
    assert_eq!(victim_of(&reports[1]).pid, Pid(900));
    assert!(reports[1].asker.is_none() && reports[1].table.is_empty());
}

#[test]
fn a_cgroup_that_is_killed_as_a_whole_is_one_report() {
    let more = "\
[   99.2] Tasks in /app/web are going to be killed due to memory.oom.group set
[   99.2] Memory cgroup out of memory: Killed process 812 (worker: 2) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0
[   99.2] Memory cgroup out of memory: Killed process 813 (worker: 3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0
";
    let reports = parse(format!("{CGROUP}{more}").as_bytes());
    assert_eq!(reports.len(), 1);
    assert!(reports[0].kills_all);
    let pids: Vec<_> = reports[0].victims.iter().map(|it| it.pid.0).collect();
    assert_eq!(pids, [812, 813]);
}

#[test]
fn names_that_imitate_lines_of_the_log_are_only_names() {
    let evil = ") total-vm:1kB";
    let line = format!(
        "[    1.0] Out of memory: Killed process 7 ({evil}) total-vm:4kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:-5"
    );
    let report = parse(line.as_bytes()).remove(0);
    assert_eq!(victim_of(&report).name, evil.into());
    assert_eq!(victim_of(&report).adj, Some(-5));
    let line = "[    1.0] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=0,cpuset=/,mems_allowed=0-1,oom_memcg=/a,b,task_memcg=/a,b/c,task=x,pid=1,uid=2,pid=7,uid=0";
    let report = parse(line.as_bytes()).remove(0);
    assert_eq!(report.limited, Some("/a,b".into()));
    assert_eq!(report.victim_cgroup, Some("/a,b/c".into()));
    assert_eq!(report.nodes, Some("0-1".into()));
    let asker = "[    1.0] a invoked oom-killer: b invoked oom-killer: gfp_mask=0x1(GFP_X), order=3, oom_score_adj=-7";
    let report = parse(asker.as_bytes()).remove(0);
    let asker = report.asker.unwrap();
    assert_eq!((asker.name, asker.order, asker.adj), ("a invoked oom-killer: b".into(), 3, -7));
}

#[test]
fn a_table_without_its_heading_is_read_by_its_sums() {
    let rows = "\
Tasks state (memory values in pages):
[     61]     0    61    60000    50010    50000       10         0   450560        7             0 grow
[     62]     0    62      600      200    45056        0         -1000 7 zip
";
    let report = parse(rows.as_bytes()).remove(0);
    let read: Vec<_> =
        report.table.iter().map(|it| (it.swap, it.adj, it.name.escaped().into_owned())).collect();
    assert_eq!(read, [(7, 0, "grow".to_owned()), (0, -1000, "7 zip".to_owned())]);
}

#[test]
fn no_killable_process_is_a_report_of_its_own_kind() {
    let text = "[    1.0] a invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=-1000\n[    1.0] Out of memory and no killable processes...\n";
    let report = parse(text.as_bytes()).remove(0);
    assert!(report.no_victim && !report.truncated && report.victims.is_empty());
}

proptest! {
    #[test]
    fn lines_in_any_order_make_no_panic(picks in prop::collection::vec(0_usize..40, 0..60), cut in 0_usize..200) {
        let lines: Vec<&str> = CGROUP.lines().chain(MACHINE.lines()).collect();
        let text: String = picks.iter().filter_map(|at| lines.get(*at)).map(|line| {
            let end = (0..=cut.min(line.len())).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
            format!("{}\n", &line[..end])
        }).collect();
        let _ = parse(text.as_bytes());
    }

    #[test]
    fn no_bytes_make_it_panic(text: Vec<u8>) {
        let mut all = CGROUP.as_bytes().to_vec();
        all.extend_from_slice(&text);
        all.extend_from_slice(MACHINE.as_bytes());
        let _ = parse(&all);
        let _ = parse(&text);
    }
}
