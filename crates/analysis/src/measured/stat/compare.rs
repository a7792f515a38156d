//! Comparison of two commands whose runs were interleaved.

use pagewise_model::report::{
    Audience, CellValue, Fact, FactsShape, NamedFacts, Paragraph, ReportBlock,
};
use pagewise_stats::{Interval, Ratio, ratio_of_medians};

use super::WALL;
use super::rows::{StatRow, StatRows};
use crate::blocks::facts_of;
use crate::explain::fact;

/// Ratio of the median of the first command to the median of the second command.
pub(super) fn ratio(one: &StatRow, other: &StatRow) -> Option<Ratio> {
    ratio_of_medians(&one.values(), &other.values())
}

/// Conclusion from the confidence interval of the ratio of medians: first command to second
/// command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntervalVerdict {
    Less,
    More,
    /// Both ends of the interval are exactly 1.
    Same,
    CannotTell,
}

impl IntervalVerdict {
    pub(super) fn from_interval(interval: Option<Interval>) -> IntervalVerdict {
        match interval {
            Some(Interval { low: 1.0, high: 1.0 }) => IntervalVerdict::Same,
            Some(interval) if interval.high < 1.0 => IntervalVerdict::Less,
            Some(interval) if interval.low > 1.0 => IntervalVerdict::More,
            _ => IntervalVerdict::CannotTell,
        }
    }

    /// Describes the conclusion in words that suit the metric.
    pub(super) fn describe(self, name: &str) -> &'static str {
        match self {
            IntervalVerdict::Less if name == WALL => "faster",
            IntervalVerdict::More if name == WALL => "slower",
            IntervalVerdict::Less => "less",
            IntervalVerdict::More => "more",
            IntervalVerdict::Same => "the same",
            IntervalVerdict::CannotTell => "cannot tell",
        }
    }
}

/// Builds `ratio` of the wall times, `ratios` of every metric that has a ratio, and a sentence.
pub(super) fn blocks(one: &StatRows, other: &StatRows) -> Vec<ReportBlock> {
    let mut all = Vec::new();
    let mut blocks = Vec::new();
    for row in one.iter() {
        let Some(ratio) = other.named(&row.name).and_then(|other| ratio(row, other)) else {
            continue;
        };
        let facts = facts(&row.name, &ratio);
        all.push(CellValue::Record(
            facts.iter().map(|f| (f.key.clone(), f.value.clone())).collect(),
        ));
        if row.name == WALL {
            blocks.push(ReportBlock::Text(sentence(&ratio)));
            blocks.push(ReportBlock::Facts(for_programs("ratio", facts)));
        }
    }
    let all = fact("ratios", "ratios", CellValue::List(all), "");
    blocks.push(ReportBlock::Facts(for_programs("", vec![all])));
    blocks
}

fn for_programs(key: &'static str, facts: Vec<Fact>) -> NamedFacts {
    NamedFacts { audience: Audience::Programs, ..facts_of(key, "", FactsShape::Line, facts) }
}

fn facts(name: &str, ratio: &Ratio) -> Vec<Fact> {
    let end = |end: fn(Interval) -> f64| {
        ratio.interval.map_or(CellValue::None, |interval| CellValue::Number(end(interval)))
    };
    vec![
        fact("name", "metric", CellValue::text(name.to_owned()), ""),
        fact("median", "ratio", CellValue::Number(ratio.median), ""),
        fact("low", "from", end(|interval| interval.low), ""),
        fact("high", "to", end(|interval| interval.high), ""),
        fact(
            "verdict",
            "",
            CellValue::text(IntervalVerdict::from_interval(ratio.interval).describe(name)),
            "",
        ),
    ]
}

fn sentence(ratio: &Ratio) -> Paragraph {
    let text = |words: &'static str| CellValue::text(words);
    let pieces = match (IntervalVerdict::from_interval(ratio.interval), ratio.interval) {
        (_, None) => vec![text(
            "Too few runs to tell which is faster: use at least five of each, better ten.",
        )],
        (IntervalVerdict::CannotTell | IntervalVerdict::Same, Some(Interval { low, high })) => {
            vec![
                text("No difference found: A takes "),
                CellValue::Number(ratio.median),
                text(" times the time of B; the true ratio lies between "),
                CellValue::Number(low),
                text(" and "),
                CellValue::Number(high),
                text(" (95 %)."),
            ]
        }
        (verdict, Some(Interval { low, high })) => vec![
            text(if verdict == IntervalVerdict::Less {
                "A is faster: it takes "
            } else {
                "A is slower: it takes "
            }),
            CellValue::Number(ratio.median),
            text(" times the time of B ("),
            CellValue::Number(low),
            text(" to "),
            CellValue::Number(high),
            text(" with 95 % confidence)."),
        ],
    };
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}
