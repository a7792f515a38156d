//! Kind of a page fault, from the data of the CPU and the kernel.

use pagewise_model::faults::FaultKind;
use pagewise_model::mapping::Quadrant;

/// Error code of a fault, as the CPU provides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorCode(pub(super) u64);

impl ErrorCode {
    /// `X86_PF_PROT`: the page is present, and its protection forbids the access.
    fn is_protection(self) -> bool {
        self.0 & 1 != 0
    }

    /// `X86_PF_WRITE`
    fn is_write(self) -> bool {
        self.0 & 2 != 0
    }
}

/// Data of a completed fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultFacts {
    /// `None` if only the end of the fault was reported.
    pub(super) code: Option<ErrorCode>,
    /// None where the address is in no known mapping.
    pub(super) quadrant: Option<Quadrant>,
    /// True if the kernel counted it as major.
    pub(super) major: bool,
    /// True if a huge page was allocated for it, or the mapping has no others.
    pub(super) huge: bool,
}

pub(super) fn kind(facts: &FaultFacts) -> FaultKind {
    use Quadrant::{PrivateAnonymous, PrivateFile, SharedAnonymous, SharedFile};
    let FaultFacts { code, quadrant, major, huge } = *facts;
    if major {
        return FaultKind::Major;
    }
    if huge {
        return FaultKind::Huge;
    }
    let Some(quadrant) = quadrant else { return FaultKind::Unknown };
    let Some(code) = code else {
        return match quadrant {
            PrivateAnonymous | SharedAnonymous => FaultKind::Anonymous,
            PrivateFile | SharedFile => FaultKind::File,
        };
    };
    match (code.is_protection(), code.is_write(), quadrant) {
        (true, true, PrivateAnonymous | PrivateFile) => FaultKind::CopyOnWrite,
        (true, true, SharedAnonymous | SharedFile) => FaultKind::WriteProtect,
        (true, false, _) => FaultKind::Unknown,
        (false, false, PrivateAnonymous) => FaultKind::Zero,
        (false, true, PrivateFile) => FaultKind::CopyOnWrite,
        (false, true, PrivateAnonymous) | (false, _, SharedAnonymous) => FaultKind::Anonymous,
        (false, false, PrivateFile) | (false, _, SharedFile) => FaultKind::File,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_fault_follows_from_its_error_code_and_mapping() {
        use Quadrant::{PrivateAnonymous, PrivateFile, SharedAnonymous, SharedFile};
        const READ: u64 = 4;
        const WRITE: u64 = 6;
        const WRITE_PROTECTED: u64 = 7;
        const FETCH: u64 = 0x14;
        for (code, quadrant, expected) in [
            (WRITE, PrivateAnonymous, FaultKind::Anonymous),
            (READ, PrivateAnonymous, FaultKind::Zero),
            (WRITE_PROTECTED, PrivateAnonymous, FaultKind::CopyOnWrite),
            (READ, PrivateFile, FaultKind::File),
            (FETCH, PrivateFile, FaultKind::File),
            (WRITE, PrivateFile, FaultKind::CopyOnWrite),
            (WRITE_PROTECTED, PrivateFile, FaultKind::CopyOnWrite),
            (WRITE, SharedFile, FaultKind::File),
            (WRITE_PROTECTED, SharedFile, FaultKind::WriteProtect),
            (READ, SharedAnonymous, FaultKind::Anonymous),
            (5, PrivateFile, FaultKind::Unknown),
        ] {
            let facts = |major, huge| FaultFacts {
                code: Some(ErrorCode(code)),
                quadrant: Some(quadrant),
                major,
                huge,
            };
            assert_eq!(kind(&facts(false, false)), expected, "{code:#x} {quadrant:?}");
            assert_eq!(kind(&facts(true, true)), FaultKind::Major);
            assert_eq!(kind(&facts(false, true)), FaultKind::Huge);
        }
        let of = |quadrant| kind(&FaultFacts { code: None, quadrant, major: false, huge: false });
        assert_eq!(of(Some(PrivateFile)), FaultKind::File);
        assert_eq!(of(Some(SharedAnonymous)), FaultKind::Anonymous);
        assert_eq!(of(None), FaultKind::Unknown);
    }
}
