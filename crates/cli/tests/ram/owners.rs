//! Owners of RAM that a test cannot create on a shared machine, and creates in a virtual machine.

use pagewise_model::Bytes;
use serde_json::Value;

use super::fixture::machine::machine;
use super::fixture::number;

/// Fills a pool of huge pages, and 16 MiB of a compressed device with bytes that do not compress.
const SCRIPT: &str = "\
out=$PAGEWISE_RESULTS
echo 8 >/proc/sys/vm/nr_hugepages
cat /proc/sys/vm/nr_hugepages >$out/huge
if echo 32M >/sys/block/zram0/disksize; then
    dd if=/dev/urandom of=/dev/zram0 bs=1M count=16 2>/dev/null && sync && echo yes >$out/zram
fi
pagewise system --json --for 0s >$out/system
";

fn owner(report: &Value, id: &str) -> u64 {
    let owners = report["owners"].as_array().unwrap();
    owners.iter().find(|it| it["id"] == id).map_or(0, |it| it["bytes"].as_u64().unwrap())
}

#[test]
fn huge_page_pools_and_compressed_devices_are_owners() {
    let Some(mut machine) = machine(SCRIPT) else { return };
    machine.memory = Bytes::mib(448);
    machine.modules = ["lzo", "lzo_rle", "zram"].map(str::to_owned).to_vec();
    let result = machine.run(&|| false).unwrap();
    assert!(result.success(), "{}", result.failure());
    let text = |name: &str| String::from_utf8_lossy(result.file(name).unwrap_or_default());
    let report: Value = serde_json::from_str(&text("system")).unwrap();
    let pages: u64 = text("huge").trim().parse().unwrap();
    assert!(pages > 0, "the kernel has given no huge page");
    assert_eq!(owner(&report, "hugetlb"), pages * (2 << 20), "{report}");
    if text("zram").trim() == "yes" {
        let used = owner(&report, "zram");
        assert!((16 << 20..=18 << 20).contains(&used), "{used}");
    } else {
        eprintln!("the kernel has no zram");
    }
    let total = number(&report, "total");
    let lost = report["unaccounted"].as_i64().unwrap().unsigned_abs();
    assert!(lost <= total / 100, "{report}");
}
