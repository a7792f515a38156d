//! How two commands compare whose runs took turns.

use pagewise_model::report::{Audience, Block, Fact, Facts, Paragraph, Shape, Value};
use pagewise_stats::{Interval, Ratio, ratio_of_medians};

use super::WALL;
use super::rows::{Row, Rows};
use crate::blocks::facts_of;
use crate::explain::fact;

/// The number of a metric of the first command over that of the second.
pub(super) fn ratio(one: &Row, other: &Row) -> Option<Ratio> {
    ratio_of_medians(&one.values(), &other.values())
}

/// What an interval says of the first command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Less,
    More,
    /// Not a difference in any round.
    Same,
    CannotTell,
}

impl Verdict {
    pub(super) fn of(interval: Option<Interval>) -> Verdict {
        match interval {
            Some(Interval { low: 1.0, high: 1.0 }) => Verdict::Same,
            Some(interval) if interval.high < 1.0 => Verdict::Less,
            Some(interval) if interval.low > 1.0 => Verdict::More,
            _ => Verdict::CannotTell,
        }
    }

    /// In words that fit the metric.
    pub(super) fn words(self, name: &str) -> &'static str {
        match self {
            Verdict::Less if name == WALL => "faster",
            Verdict::More if name == WALL => "slower",
            Verdict::Less => "less",
            Verdict::More => "more",
            Verdict::Same => "the same",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

/// `ratio` of the wall times, `ratios` of every metric that has one, and a sentence.
pub(super) fn blocks(one: &Rows, other: &Rows) -> Vec<Block> {
    let mut all = Vec::new();
    let mut blocks = Vec::new();
    for row in one.iter() {
        let Some(ratio) = other.named(&row.name).and_then(|other| ratio(row, other)) else {
            continue;
        };
        let facts = facts(&row.name, &ratio);
        all.push(Value::Record(facts.iter().map(|f| (f.key.clone(), f.value.clone())).collect()));
        if row.name == WALL {
            blocks.push(Block::Text(sentence(&ratio)));
            blocks.push(Block::Facts(for_programs("ratio", facts)));
        }
    }
    let all = fact("ratios", "ratios", Value::List(all), "");
    blocks.push(Block::Facts(for_programs("", vec![all])));
    blocks
}

fn for_programs(key: &'static str, facts: Vec<Fact>) -> Facts {
    Facts { audience: Audience::Programs, ..facts_of(key, "", Shape::Line, facts) }
}

fn facts(name: &str, ratio: &Ratio) -> Vec<Fact> {
    let end = |end: fn(Interval) -> f64| {
        ratio.interval.map_or(Value::None, |interval| Value::Number(end(interval)))
    };
    vec![
        fact("name", "metric", Value::text(name.to_owned()), ""),
        fact("median", "ratio", Value::Number(ratio.median), ""),
        fact("low", "from", end(|interval| interval.low), ""),
        fact("high", "to", end(|interval| interval.high), ""),
        fact("verdict", "", Value::text(Verdict::of(ratio.interval).words(name)), ""),
    ]
}

fn sentence(ratio: &Ratio) -> Paragraph {
    let text = |words: &'static str| Value::text(words);
    let pieces = match (Verdict::of(ratio.interval), ratio.interval) {
        (_, None) => vec![text(
            "Cannot tell which is faster from so few runs: it takes five of each, better ten.",
        )],
        (Verdict::CannotTell | Verdict::Same, Some(Interval { low, high })) => vec![
            text("Cannot tell which is faster: A takes "),
            Value::Number(ratio.median),
            text(" times the time of B, and the truth lies between "),
            Value::Number(low),
            text(" and "),
            Value::Number(high),
            text(" (95 %)."),
        ],
        (verdict, Some(Interval { low, high })) => vec![
            text(if verdict == Verdict::Less {
                "A is faster: it takes "
            } else {
                "A is slower: it takes "
            }),
            Value::Number(ratio.median),
            text(" times the time of B ("),
            Value::Number(low),
            text(" to "),
            Value::Number(high),
            text(" with 95 % confidence)."),
        ],
    };
    Paragraph { title: "".into(), pieces, audience: Audience::People }
}
