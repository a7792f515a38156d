//! What a page fault was, from what the CPU and the kernel say of it.

use pagewise_model::faults::Kind;
use pagewise_model::mapping::Quadrant;

/// What a fault wanted: the error code that the CPU gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorCode(pub(super) u64);

impl ErrorCode {
    /// `X86_PF_PROT`: a page was there, and did not allow it.
    fn is_protection(self) -> bool {
        self.0 & 1 != 0
    }

    /// `X86_PF_WRITE`
    fn is_write(self) -> bool {
        self.0 & 2 != 0
    }
}

/// What is known of a fault when it is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// None where only the end of the fault was told.
    pub(super) code: Option<ErrorCode>,
    /// None where the address is in no mapping that is known.
    pub(super) quadrant: Option<Quadrant>,
    /// Whether the kernel counted it as major.
    pub(super) major: bool,
    /// Whether a huge page was allocated for it, or the mapping has no others.
    pub(super) huge: bool,
}

pub(super) fn kind(facts: &Facts) -> Kind {
    use Quadrant::{PrivateAnonymous, PrivateFile, SharedAnonymous, SharedFile};
    let Facts { code, quadrant, major, huge } = *facts;
    if major {
        return Kind::Major;
    }
    if huge {
        return Kind::Huge;
    }
    let Some(quadrant) = quadrant else { return Kind::Unknown };
    let Some(code) = code else {
        return match quadrant {
            PrivateAnonymous | SharedAnonymous => Kind::Anonymous,
            PrivateFile | SharedFile => Kind::File,
        };
    };
    match (code.is_protection(), code.is_write(), quadrant) {
        (true, true, PrivateAnonymous | PrivateFile) => Kind::CopyOnWrite,
        (true, true, SharedAnonymous | SharedFile) => Kind::WriteProtect,
        (true, false, _) => Kind::Unknown,
        (false, false, PrivateAnonymous) => Kind::Zero,
        (false, true, PrivateFile) => Kind::CopyOnWrite,
        (false, true, PrivateAnonymous) | (false, _, SharedAnonymous) => Kind::Anonymous,
        (false, false, PrivateFile) | (false, _, SharedFile) => Kind::File,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fault_was_follows_from_its_code_and_its_mapping() {
        use Quadrant::{PrivateAnonymous, PrivateFile, SharedAnonymous, SharedFile};
        const READ: u64 = 4;
        const WRITE: u64 = 6;
        const WRITE_PROTECTED: u64 = 7;
        const FETCH: u64 = 0x14;
        for (code, quadrant, expected) in [
            (WRITE, PrivateAnonymous, Kind::Anonymous),
            (READ, PrivateAnonymous, Kind::Zero),
            (WRITE_PROTECTED, PrivateAnonymous, Kind::CopyOnWrite),
            (READ, PrivateFile, Kind::File),
            (FETCH, PrivateFile, Kind::File),
            (WRITE, PrivateFile, Kind::CopyOnWrite),
            (WRITE_PROTECTED, PrivateFile, Kind::CopyOnWrite),
            (WRITE, SharedFile, Kind::File),
            (WRITE_PROTECTED, SharedFile, Kind::WriteProtect),
            (READ, SharedAnonymous, Kind::Anonymous),
            (5, PrivateFile, Kind::Unknown),
        ] {
            let facts = |major, huge| Facts {
                code: Some(ErrorCode(code)),
                quadrant: Some(quadrant),
                major,
                huge,
            };
            assert_eq!(kind(&facts(false, false)), expected, "{code:#x} {quadrant:?}");
            assert_eq!(kind(&facts(true, true)), Kind::Major);
            assert_eq!(kind(&facts(false, true)), Kind::Huge);
        }
        let of = |quadrant| kind(&Facts { code: None, quadrant, major: false, huge: false });
        assert_eq!(of(Some(PrivateFile)), Kind::File);
        assert_eq!(of(Some(SharedAnonymous)), Kind::Anonymous);
        assert_eq!(of(None), Kind::Unknown);
    }
}
