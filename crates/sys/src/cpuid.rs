//! The `cpuid` instruction of x86: identification and features of the CPU. A hypervisor can change
//! the values.

/// The registers EAX, EBX, ECX and EDX that `cpuid` returns for a leaf; `None` for a leaf that the
/// CPU does not have, and on other CPUs than x86.
pub fn leaf(leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
    // The first leaf of each range returns the number of the last one.
    let [last, ..] = ask(leaf & RANGE, 0)?;
    (leaf <= last).then(|| ask(leaf, subleaf)).flatten()
}

/// True if a hypervisor runs this machine: it sets a bit that no physical CPU sets.
pub fn is_virtual() -> bool {
    leaf(1, 0).is_some_and(|[_, _, features, _]| features & 1 << 31 != 0)
}

/// True if QEMU translates the instructions of this machine. Such a CPU has no caches and no TLB
/// whose effects can be measured.
pub fn is_emulated() -> bool {
    let name = is_virtual().then(|| ask(HYPERVISOR, 0)).flatten();
    name.is_some_and(|[_, b, c, d]| [b, c, d].map(u32::to_le_bytes).concat() == EMULATOR)
}

/// First leaf of the hypervisor range, which contains a name, and the name of QEMU without
/// virtualization.
const HYPERVISOR: u32 = 0x4000_0000;
const EMULATOR: &[u8] = b"TCGTCGTCGTCG";

/// Basic leaves begin at 0, extended ones at 0x8000_0000.
const RANGE: u32 = 0x8000_0000;

#[cfg(target_arch = "x86_64")]
fn ask(leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
    #[allow(unused_unsafe, reason = "the call is safe with newer compilers")]
    // SAFETY: every x86-64 has the instruction, and it touches no memory.
    let answer = unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) };
    Some([answer.eax, answer.ebx, answer.ecx, answer.edx])
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(_: u32, _: u32) -> Option<[u32; 4]> {
    None
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    #[test]
    fn the_vendor_is_the_one_that_the_kernel_names() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let line = cpuinfo.lines().find(|line| line.starts_with("vendor_id")).unwrap();
        let [_, b, c, d] = leaf(0, 0).unwrap();
        let name = [b, d, c].map(u32::to_le_bytes).concat();
        assert_eq!(line.split(": ").nth(1).unwrap().as_bytes(), name);
    }

    #[test]
    fn a_machine_is_virtual_if_the_kernel_says_so() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap();
        assert_eq!(is_virtual(), flags.split_whitespace().any(|flag| flag == "hypervisor"));
    }

    #[test]
    fn a_leaf_past_the_last_has_no_answer() {
        assert_eq!(leaf(0x7fff_ffff, 0), None);
        assert_eq!(leaf(0xffff_ffff, 0), None);
    }
}
