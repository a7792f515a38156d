//! Claims: the verdict first, then the claim, and its details below. Wrapped, never cut.

use pagewise_model::lab::{ClaimVerdict, ExperimentClaim};

use super::page::{Ink, TextPage};
use crate::words::{clean, width};

/// Between two columns.
const GAP: usize = 2;

pub(super) fn draw(page: &mut TextPage<'_>, claims: &[ExperimentClaim]) {
    page.heading("Claims");
    let indent = page.indent();
    for claim in claims {
        page.hang(indent);
        page.ink(ink(claim.verdict), claim.verdict.describe());
        let text = indent + width(ClaimVerdict::CannotTell.describe()) + GAP;
        page.hang(text);
        page.write_words(Ink::Bold, &clean(claim.text.as_bytes()), GAP);
        page.newline();
        details(page, claim, text);
    }
    page.hang(indent);
}

/// Details of a claim, one on each line.
fn details(page: &mut TextPage<'_>, claim: &ExperimentClaim, indent: usize) {
    let widest = claim.details().map(|(name, _)| width(name)).max().unwrap_or(0);
    for (name, words) in claim.details() {
        page.hang(indent);
        page.ink(Ink::Dim, name);
        page.hang(indent + widest + GAP);
        page.write_words(Ink::Plain, &clean(words.as_bytes()), GAP);
        page.newline();
    }
}

const fn ink(verdict: ClaimVerdict) -> Ink {
    match verdict {
        ClaimVerdict::Agrees => Ink::Green,
        ClaimVerdict::CannotTell => Ink::Yellow,
        ClaimVerdict::Disagrees => Ink::Red,
    }
}
