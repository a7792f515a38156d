//! The help: all keys, and the meanings of the columns.

use pagewise_model::top::TopColumn;

use super::canvas::{Canvas, width};
use crate::keys::{KEY_GROUPS, KeyGroup};
use crate::palette::Paint;
use crate::sgr::StyledLine;
use crate::state::TopState;

/// Width of the column of keys and names of table columns, in characters.
const KEY_WIDTH: usize = 11;

pub(super) fn draw(canvas: &mut Canvas<'_>, state: &TopState, first: usize) {
    let (columns, height) = canvas.size();
    let lines = lines(state);
    let visible = usize::from(height.saturating_sub(1));
    for (line, y) in lines.iter().skip(first).take(visible).zip(0..) {
        let mut x = 0;
        for (paint, word) in &line.words {
            x += canvas.put(x, y, canvas.rest(x), word, *paint);
        }
    }
    let more = lines.len() > first + visible;
    let text = if more {
        "↓ more; any other key closes the help"
    } else {
        "any other key closes the help"
    };
    canvas.put(0, height - 1, columns, text, Paint::Dim);
}

/// All lines of the help, wrapped to the width of the terminal.
pub(super) fn lines(state: &TopState) -> Vec<StyledLine> {
    let columns = usize::from(state.size.0);
    let mut lines = Vec::new();
    for (title, group, keys) in KEY_GROUPS {
        if *group == KeyGroup::Replay && !state.is_replay() {
            continue;
        }
        heading(&mut lines, title);
        for key in *keys {
            entry(&mut lines, key.shown, key.help, columns);
        }
    }
    heading(&mut lines, "Columns");
    for column in TopColumn::ALL {
        let about = column.about();
        entry(&mut lines, about.label, about.meaning, columns);
    }
    entry(
        &mut lines,
        super::cells::ABSENT,
        "The value is unknown: the page of the process states the reason.",
        columns,
    );
    entry(
        &mut lines,
        super::cells::OUTDATED,
        "PSS and USS of an earlier sample: the process has changed since, and reading it again \
         waits for its share of CPU time.",
        columns,
    );
    lines
}

fn heading(lines: &mut Vec<StyledLine>, title: &str) {
    if !lines.is_empty() {
        lines.push(StyledLine::default());
    }
    lines.push(StyledLine { words: vec![(Paint::Bold, title.to_owned())] });
}

fn entry(lines: &mut Vec<StyledLine>, name: &str, text: &str, columns: usize) {
    let room = columns.saturating_sub(KEY_WIDTH + 3).max(10);
    let padding = " ".repeat(KEY_WIDTH.saturating_sub(width(name)) + 1);
    let mut words = vec![(Paint::Bold, format!("  {name}{padding}"))];
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > room {
            words.push((Paint::Plain, std::mem::take(&mut line)));
            lines.push(StyledLine { words: std::mem::take(&mut words) });
            words.push((Paint::Plain, " ".repeat(KEY_WIDTH + 3)));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    words.push((Paint::Plain, line));
    lines.push(StyledLine { words });
}
