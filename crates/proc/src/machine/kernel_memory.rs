//! Memory of the kernel in files of one number each: huge page pools, compressed devices, balloons,
//! memory of the boot.

use std::cmp::Reverse;
use std::fs;

use pagewise_model::account::{HugetlbPool, ZramDevice};
use pagewise_model::{Absent, Bytes, PageSize, Reading};

use crate::ProcRoot;
use crate::root::NOT_COPIED;
use crate::text::{lines, number};

/// Folder of the pools of huge pages in `/sys`.
const HUGETLB: &str = "kernel/mm/hugepages";

/// The pools of huge pages, one of each size.
pub(crate) fn hugetlb(root: &ProcRoot) -> Reading<Vec<HugetlbPool>> {
    let mut pools: Vec<HugetlbPool> = names(root, HUGETLB)?
        .iter()
        .filter_map(|name| {
            let size = Bytes::kib(number(
                name.strip_prefix("hugepages-")?.strip_suffix("kB")?.as_bytes(),
            )?);
            let count = |file: &str| number(&root.sysfs(&format!("{HUGETLB}/{name}/{file}")).ok()?);
            Some(HugetlbPool {
                size,
                pages: count("nr_hugepages")?,
                free: count("free_hugepages")?,
                reserved: count("resv_hugepages")?,
            })
        })
        .collect();
    pools.sort_by_key(|pool| pool.size);
    Ok(pools)
}

/// Reads the zram devices that use memory.
pub(crate) fn zram(root: &ProcRoot) -> Reading<Vec<ZramDevice>> {
    let devices = names(root, "block")?.into_iter().filter(|name| name.starts_with("zram"));
    let mut found: Vec<ZramDevice> = devices
        .filter_map(|name| device(&name, &root.sysfs(&format!("block/{name}/mm_stat")).ok()?))
        .collect();
    found.sort_by_key(|device| Reverse(device.used));
    Ok(found)
}

/// Parses `mm_stat`: stored bytes, compressed bytes, used memory, and further numbers.
fn device(name: &str, text: &[u8]) -> Option<ZramDevice> {
    let mut numbers =
        text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(number);
    let stored = Bytes(numbers.next()??);
    let used = Bytes(numbers.nth(1)??);
    Some(ZramDevice { name: name.into(), stored, used })
}

/// Folder of the devices of virtio in `/sys`.
const VIRTIO: &str = "bus/virtio/devices";
/// Device ID of a balloon, as the files of `/sys` write it.
const BALLOON: &[u8] = b"0x0005";
/// Number of the feature bit `VIRTIO_BALLOON_F_DEFLATE_ON_OOM`: the guest takes pages back when it
/// is out of memory, and the pages of the balloon stay in `MemTotal`.
const DEFLATE_ON_OOM: usize = 2;

/// Folder of the balloon driver of VMware.
const VMWARE: &str = "module/vmw_balloon";

/// True if the pages of the balloon are part of `MemTotal`. The virtio driver subtracts the pages
/// unless the guest may take them back. The drivers of Hyper-V, Xen and POWER subtract the pages,
/// and the driver of VMware does not.
pub(crate) fn balloon_in_total(root: &ProcRoot) -> Reading<bool> {
    let devices = names(root, VIRTIO).unwrap_or_default();
    let is_balloon = |name: &&String| {
        root.sysfs(&format!("{VIRTIO}/{name}/device"))
            .is_ok_and(|text| text.trim_ascii() == BALLOON)
    };
    match devices.iter().find(is_balloon) {
        None => Ok(root.sysfs_path(VMWARE).exists()),
        Some(name) => {
            let features = root.sysfs(&format!("{VIRTIO}/{name}/features"))?;
            Ok(features.get(DEFLATE_ON_OOM) == Some(&b'1'))
        }
    }
}

/// Names of the entries of a folder of `/sys`.
fn names(root: &ProcRoot, folder: &str) -> Reading<Vec<String>> {
    let entries = fs::read_dir(root.sysfs_path(folder)).map_err(|_| match root.is_live() {
        true => Absent::NotInThisKernel("".into()),
        false => Absent::NotCollected(NOT_COPIED.into()),
    })?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
}

/// True if kernel stacks are part of `VmallocUsed`: `vmallocinfo` then lists areas that a function
/// of `fork` allocated. Without root, `vmallocinfo` cannot be read; the function then returns true
/// on x86-64 and arm64. It does not read the kernel configuration, because few kernels provide
/// `/proc/config.gz`.
pub(crate) fn stacks_in_vmalloc(root: &ProcRoot) -> Reading<bool> {
    match root.machine("vmallocinfo") {
        Ok(text) => Ok(stacks_in(&text)),
        Err(_) if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) => Ok(true),
        Err(absent) => Err(absent),
    }
}

/// Functions that `vmallocinfo` may show as the caller for a kernel stack: inlining moves the
/// allocation into one of its callers.
const STACK_ALLOCATORS: [&[u8]; 4] =
    [b"dup_task_struct", b"copy_process", b"kernel_clone", b"alloc_thread_stack"];

fn stacks_in(text: &[u8]) -> bool {
    let is_stack = |line: &[u8]| {
        let words = line.split(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty());
        let caller = words.nth(2).unwrap_or_default();
        STACK_ALLOCATORS.iter().any(|name| caller.starts_with(name))
    };
    lines(text).any(|(_, line)| is_stack(line))
}

/// The part of `Percpu` that the kernel allocated before the page allocator was available, from the
/// line `percpu: Embedded 53 pages/cpu ..` of the kernel log and the number of CPUs.
pub(crate) fn percpu_at_boot(log: &[u8], page_size: PageSize) -> Option<Bytes> {
    let after = |text: &[u8], mark: &[u8]| {
        let at = memchr::memmem::find(text, mark)?;
        text.get(at + mark.len()..).map(<[u8]>::to_vec)
    };
    let leading = |text: &[u8]| {
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        number(&text[..digits])
    };
    let rest = after(log, b"percpu: Embedded ").or_else(|| after(log, b"PERCPU: Embedded "))?;
    let pages = leading(&rest).filter(|_| rest.iter().take(24).any(|byte| *byte == b'p'))?;
    let cpus = leading(&after(log, b"nr_cpu_ids:")?)?;
    Some(page_size.pages(pages.checked_mul(cpus)?))
}

/// Pages of network buffers: the sum of the words `mem N` of `sockstat`.
pub(crate) fn sockets(text: &[u8], page_size: PageSize) -> Bytes {
    let line_pages = |line: &[u8]| {
        let mut words = line.split(u8::is_ascii_whitespace).skip_while(|word| *word != b"mem");
        words.nth(1).and_then(number).unwrap_or(0)
    };
    lines(text).map(|(_, line)| page_size.pages(line_pages(line))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageSize = PageSize::new(4096).expect("a power of two");

    #[test]
    fn a_compressed_device_takes_its_third_number() {
        let found = device("zram0", b"  4096 100 12288 0 12288 0 0 0 0\n").unwrap();
        assert_eq!((found.stored, found.used), (Bytes(4096), Bytes(12288)));
        assert_eq!(device("zram0", b"4096 100\n"), None);
    }

    #[test]
    fn the_driver_decides_if_a_balloon_is_part_of_the_total() {
        let tree = tempfile::tempdir().unwrap();
        let root = ProcRoot::at(tree.path());
        let write = |name: &str, text: &str| {
            let path = tree.path().join("sysfs").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(balloon_in_total(&root), Ok(false), "Hyper-V and Xen subtract the pages");
        write("module/vmw_balloon/version", "1.5\n");
        assert_eq!(balloon_in_total(&root), Ok(true));
        write("bus/virtio/devices/virtio0/device", "0x0005\n");
        for (features, is_in_total) in [("0100000", false), ("0110000", true)] {
            write("bus/virtio/devices/virtio0/features", features);
            assert_eq!(balloon_in_total(&root), Ok(is_in_total), "{features}");
        }
    }

    #[test]
    fn stacks_are_recognized_by_the_function_that_allocates_them() {
        let line = "0xffff-0xfffe   20480 kernel_clone+0x94/0x3e0 pages=4 vmalloc N0=4\n";
        assert!(stacks_in(line.as_bytes()));
        assert!(!stacks_in(
            b"0xffff-0xfffe 8192 bpf_prog_alloc+0x1/0x2 pages=1 vmalloc\nrubbish\n"
        ));
    }

    #[test]
    fn memory_of_cpus_at_boot_is_that_of_the_log() {
        let log = b"setup_percpu: NR_CPUS:256 nr_cpumask_bits:2 nr_cpu_ids:2 nr_node_ids:1\npercpu: Embedded 53 pages/cpu s185496 r0\n";
        assert_eq!(percpu_at_boot(log, PAGE), Some(PAGE.pages(106)));
        assert_eq!(percpu_at_boot(b"percpu: Embedded x", PAGE), None);
        assert_eq!(percpu_at_boot(b"percpu: Embedded 53 pages/cpu", PAGE), None);
    }

    #[test]
    fn buffers_of_all_protocols_are_added() {
        let text = b"sockets: used 31\nTCP: inuse 3 orphan 0 tw 0 alloc 3 mem 2\nUDP: inuse 0 mem 1\nRAW: inuse 0\n";
        assert_eq!(sockets(text, PAGE), PAGE.pages(3));
    }
}
