//! `/proc/zoneinfo`: watermarks and pages of each zone.

use pagewise_model::Name;
use pagewise_model::account::ZoneFigures;

use crate::text::{lines, number};

/// Reads a whole `zoneinfo`. Lines that this parser does not need are ignored.
pub fn parse(text: &[u8]) -> Vec<ZoneFigures> {
    let mut zones: Vec<ZoneFigures> = Vec::new();
    for (_, line) in lines(text) {
        if let Some(zone) = heading(line) {
            zones.push(zone);
        } else if let Some(zone) = zones.last_mut() {
            add_line(zone, line.trim_ascii());
        }
    }
    zones
}

/// `Node 0, zone   Normal`
fn heading(line: &[u8]) -> Option<ZoneFigures> {
    let rest = line.strip_prefix(b"Node ")?;
    let comma = memchr::memchr(b',', rest)?;
    let node = u32::try_from(number(&rest[..comma])?).ok()?;
    let name = rest[comma + 1..].trim_ascii().strip_prefix(b"zone")?.trim_ascii();
    Some(ZoneFigures { node, name: Name::new(name), ..ZoneFigures::default() })
}

fn add_line(zone: &mut ZoneFigures, line: &[u8]) {
    if let Some(list) = line.strip_prefix(b"protection: (") {
        let list = list.strip_suffix(b")").unwrap_or(list);
        zone.protection =
            list.split(|&b| b == b',').filter_map(|it| number(it.trim_ascii())).collect();
        return;
    }
    let Some(blank) = line.iter().position(|&b| b == b' ') else { return };
    let Some(value) = number(&line[blank + 1..]).or_else(|| pages_free(line)) else { return };
    let into = match &line[..blank] {
        b"pages" => &mut zone.free,
        b"min" => &mut zone.min,
        b"low" => &mut zone.low,
        b"high" => &mut zone.high,
        b"present" => &mut zone.present,
        b"managed" => &mut zone.managed,
        b"count:" => {
            zone.per_cpu = zone.per_cpu.saturating_add(value);
            return;
        }
        _ => return,
    };
    *into = value;
}

/// `pages free     3840`
fn pages_free(line: &[u8]) -> Option<u64> {
    number(line.strip_prefix(b"pages free ")?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 49725
  pages free     3840
        boost    0
        min      39
        low      48
        high     57
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 3019, 6347)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count: 7
              high:  0
              batch: 1
              high_min: 24
    cpu: 1
              count: 5
  vm stats threshold: 4
Node 1, zone   Normal
  pages free     9
        min      4
";

    #[test]
    fn a_zone_has_watermarks_and_the_pages_of_all_its_cpus() {
        let zones = parse(TEXT);
        let dma = ZoneFigures {
            node: 0,
            name: "DMA".into(),
            free: 3840,
            min: 39,
            low: 48,
            high: 57,
            present: 3998,
            managed: 3840,
            per_cpu: 12,
            protection: vec![0, 3019, 6347],
        };
        assert_eq!(zones[0], dma);
        assert_eq!((zones[1].node, zones[1].free, zones[1].min), (1, 9, 4));
        assert_eq!(zones.len(), 2);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text: Vec<u8>, tail in "(Node [0-9], zone|protection: \\(|count: [0-9]{0,22}|[ ,0-9\n)]){0,30}") {
            let _ = parse(&[&text[..], b"\n", tail.as_bytes()].concat());
        }
    }
}
