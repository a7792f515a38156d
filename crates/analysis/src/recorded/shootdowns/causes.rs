//! Causes of TLB flushes, by the kernel functions on the call stack. The cause is `other` if no
//! function matches.

use pagewise_model::shootdowns::{FlushSite, ShootdownRecording};

use crate::calls::advice;

/// Cause of a TLB flush.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// A system call; `madvise` and `process_madvise` include their advice.
    Call {
        name: String,
        advice: Option<u64>,
    },
    /// A write to a page that had to be copied first, or that was write-protected.
    Write,
    /// A page fault for another reason.
    Fault,
    Numa,
    Ksm,
    Collapse,
    Compaction,
    Reclaim,
    WriteBack,
    Migration,
    Exit,
    KernelCode,
    Other,
    /// The cause is unknown, because the kernel hides the names of its functions.
    Hidden,
}

impl Cause {
    /// Describes the cause in words.
    pub(crate) fn name(&self) -> String {
        let words = match self {
            Cause::Call { name, advice: None } => name,
            Cause::Call { name, advice: Some(number) } => {
                return match advice(*number) {
                    Some(word) => format!("{name}({word})"),
                    None => format!("{name}({number})"),
                };
            }
            Cause::Write => "copy-on-write",
            Cause::Fault => "page fault",
            Cause::Numa => "NUMA balancing",
            Cause::Ksm => "KSM",
            Cause::Collapse => "huge page collapse",
            Cause::Compaction => "compaction",
            Cause::Reclaim => "reclaim",
            Cause::WriteBack => "write-back",
            Cause::Migration => "migration",
            Cause::Exit => "exit",
            Cause::KernelCode => "kernel code patched",
            Cause::Other => "other",
            Cause::Hidden => "unknown",
        };
        words.to_owned()
    }
}

/// Kernel functions that identify a cause if one of them is on the call stack. The first matching
/// row applies, so the rows of work that a page fault or a system call does as a side effect are
/// first.
const FUNCTIONS: &[(&[&str], Cause)] = &[
    (&["ksm_scan_thread", "ksm_do_scan", "try_to_merge_one_page"], Cause::Ksm),
    (
        &[
            "task_numa_work",
            "change_prot_numa",
            "do_numa_page",
            "do_huge_pmd_numa_page",
            "migrate_misplaced_folio",
            "migrate_misplaced_page",
        ],
        Cause::Numa,
    ),
    (&["khugepaged", "khugepaged_do_scan", "collapse_huge_page", "collapse_file"], Cause::Collapse),
    (&["compact_zone", "compact_zone_order", "compact_node", "kcompactd"], Cause::Compaction),
    (
        &[
            "kswapd",
            "balance_pgdat",
            "try_to_free_pages",
            "try_to_free_mem_cgroup_pages",
            "shrink_lruvec",
            "shrink_folio_list",
            "shrink_page_list",
        ],
        Cause::Reclaim,
    ),
    (
        &["do_wp_page", "wp_page_copy", "wp_page_reuse", "do_huge_pmd_wp_page", "hugetlb_wp"],
        Cause::Write,
    ),
    (&["handle_mm_fault", "do_user_addr_fault", "exc_page_fault"], Cause::Fault),
];

/// Rows like those of [`FUNCTIONS`] that apply only outside of system calls.
const OUTSIDE: &[(&[&str], Cause)] = &[
    (&["do_exit"], Cause::Exit),
    (&["folio_mkclean", "page_vma_mkclean_one", "page_mkclean_one"], Cause::WriteBack),
    (&["migrate_pages", "migrate_pages_batch"], Cause::Migration),
    (&["__text_poke", "text_poke_copy", "smp_text_poke_batch_finish"], Cause::KernelCode),
];

/// Prefixes of the names of kernel functions that implement system calls.
const CALLS: &[&str] =
    &["__x64_sys_", "__ia32_sys_", "__arm64_sys_", "__riscv_sys_", "__do_sys_", "__se_sys_"];

/// `MADV_COLD`, `MADV_PAGEOUT`, `MADV_COLLAPSE`: these calls request work that the kernel also does
/// by itself. The cause of their flushes is the call.
const ASKS_FOR_IT: [u64; 3] = [20, 21, 25];

/// Determines the cause of a flush site.
pub(crate) fn cause_of(recording: &ShootdownRecording, site: &FlushSite) -> Cause {
    let open = site.call.and_then(|call| recording.calls.get(call));
    let call = open.map(|call| Cause::Call { name: call.name.clone(), advice: call.advice });
    let Ok(chains) = &recording.chains else { return call.unwrap_or(Cause::Hidden) };
    let chain = chains.get(site.chain).map_or(&[][..], Vec::as_slice);
    // Compilers append `.part.0` or a similar suffix to the names of function parts.
    let plain = |name: &'_ str| name.split('.').next().unwrap_or_default().to_owned();
    let chain: Vec<String> = chain.iter().map(|name| plain(name)).collect();
    let row = |rows: &[(&[&str], Cause)]| {
        let fits = |names: &[&str]| chain.iter().any(|name| names.contains(&name.as_str()));
        rows.iter().find(|(names, _)| fits(names)).map(|(_, cause)| cause.clone())
    };
    let asked = open.and_then(|call| call.advice).is_some_and(|it| ASKS_FOR_IT.contains(&it));
    if let (Some(call), true) = (&call, asked) {
        return call.clone();
    }
    row(FUNCTIONS)
        .or_else(|| call_of(&chain, call))
        .or_else(|| row(OUTSIDE))
        .unwrap_or(Cause::Other)
}

/// Returns the system call on the call stack. Adds the advice if `open`, the call that the thread
/// was executing, is this call.
fn call_of(chain: &[String], open: Option<Cause>) -> Option<Cause> {
    let name = chain.iter().find_map(|name| {
        CALLS.iter().find_map(|start| name.strip_prefix(start)).map(str::to_owned)
    })?;
    match open {
        Some(open @ Cause::Call { .. }) if matches!(&open, Cause::Call { name: known, .. } if *known == name) => {
            Some(open)
        }
        _ => Some(Cause::Call { name, advice: None }),
    }
}
