//! `/proc/<pid>/ksm_stat`.

use pagewise_model::process::KsmStat;

use crate::text::{lines, number};

/// Reads a whole `ksm_stat`; `None` where a line is missing.
pub fn parse(text: &[u8]) -> Option<KsmStat> {
    let line = |name: &str| {
        let after = lines(text).find_map(|(_, line)| line.strip_prefix(name.as_bytes()));
        after.map(|value| value.strip_prefix(b":").unwrap_or(value).trim_ascii())
    };
    let profit =
        line("ksm_process_profit").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    Some(KsmStat {
        merging_pages: number(line("ksm_merging_pages")?)?,
        rmap_items: number(line("ksm_rmap_items")?)?,
        profit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_profit_is_one() {
        let text =
            b"ksm_rmap_items 3\nksm_zero_pages 0\nksm_merging_pages 2\nksm_process_profit -192\n";
        assert_eq!(
            parse(text),
            Some(KsmStat { merging_pages: 2, rmap_items: 3, profit: Some(-192) })
        );
    }
}
