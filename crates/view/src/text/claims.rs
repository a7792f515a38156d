//! Claims: the verdict first, then what was said, and below what it stands on. Wrapped, never cut.

use pagewise_model::lab::{Claim, Verdict};

use super::page::{Ink, Page};
use crate::words::{clean, width};

/// Between two columns.
const GAP: usize = 2;

pub(super) fn draw(page: &mut Page<'_>, claims: &[Claim]) {
    page.heading("Claims");
    let indent = page.indent();
    for claim in claims {
        page.hang(indent);
        page.ink(ink(claim.verdict), claim.verdict.words());
        let text = indent + width(Verdict::CannotTell.words()) + GAP;
        page.hang(text);
        page.words(Ink::Bold, &clean(claim.text.as_bytes()), GAP);
        page.newline();
        details(page, claim, text);
    }
    page.hang(indent);
}

/// What a claim stands on, one below the other.
fn details(page: &mut Page<'_>, claim: &Claim, indent: usize) {
    let widest = claim.details().map(|(name, _)| width(name)).max().unwrap_or(0);
    for (name, words) in claim.details() {
        page.hang(indent);
        page.ink(Ink::Dim, name);
        page.hang(indent + widest + GAP);
        page.words(Ink::Plain, &clean(words.as_bytes()), GAP);
        page.newline();
    }
}

const fn ink(verdict: Verdict) -> Ink {
    match verdict {
        Verdict::Agrees => Ink::Green,
        Verdict::CannotTell => Ink::Yellow,
        Verdict::Disagrees => Ink::Red,
    }
}
