//! Draws the state of the screen into a frame.

mod canvas;
mod cells;
mod help;
mod page;
mod table;

use ratatui::Frame;

use crate::keys::{KeyGroup, UserCommand, hints};
use crate::palette::Paint;
use crate::state::{MIN_COLUMNS, MIN_LINES, TopOverlay, TopState};
use canvas::Canvas;

/// Draws the state of the screen into a frame.
pub fn draw(frame: &mut Frame<'_>, state: &TopState) {
    let mut canvas = Canvas::new(frame.buffer_mut(), state.palette);
    let (columns, lines) = canvas.size();
    if columns < MIN_COLUMNS || lines < MIN_LINES {
        canvas.put(0, 0, columns, "The terminal is too small.", Paint::Plain);
        return;
    }
    match (state.overlay, &state.page) {
        (TopOverlay::Help(first), _) => help::draw(&mut canvas, state, first),
        (_, Some(page)) => page::draw(&mut canvas, state, page),
        (_, None) => table::draw(&mut canvas, state),
    }
}

/// Number of lines of the help at the width of the terminal.
pub(crate) fn help_lines(state: &TopState) -> usize {
    help::lines(state).len()
}

/// Draws the bottom line: a message, the filter that is edited, or the most important keys.
fn bottom_line(canvas: &mut Canvas<'_>, state: &TopState, y: u16, screen: KeyGroup) {
    let width = canvas.size().0;
    if state.overlay == TopOverlay::Filter {
        let used = canvas.put(0, y, width, "Filter: ", Paint::Bold);
        let room = canvas.rest(used);
        let filter = cells::end_of(&state.query.filter, room.saturating_sub(1));
        let x = used + canvas.put(used, y, room, filter, Paint::Plain);
        canvas.put(x, y, canvas.rest(x), " ", Paint::Reversed);
        return;
    }
    if let Some(message) = &state.message {
        canvas.put(0, y, width, message, Paint::Bold);
        return;
    }
    let (help, others): (Vec<_>, Vec<_>) = hints(screen, state.is_replay())
        .into_iter()
        .partition(|it| it.command == UserCommand::Help);
    // Keys that do not fit are omitted; the help lists them.
    let mut end = width;
    for binding in help {
        let needed = hint_width(binding.shown, binding.word);
        end = width.saturating_sub(needed);
        hint(canvas, end, y, binding.shown, binding.word);
    }
    let mut x = 0;
    for binding in others {
        let key = binding.shown.split(' ').next().unwrap_or_default();
        let word = match binding.word {
            "cgroups" if state.shows_cgroups() => "processes",
            word => word,
        };
        let needed = hint_width(key, word);
        if x + needed + GAP <= end {
            hint(canvas, x, y, key, word);
            x += needed + GAP;
        }
    }
}

/// Number of columns between two keys of the bottom line.
const GAP: u16 = 2;

fn hint_width(key: &str, word: &str) -> u16 {
    u16::try_from(canvas::width(key) + 1 + canvas::width(word)).unwrap_or(u16::MAX / 2)
}

fn hint(canvas: &mut Canvas<'_>, x: u16, y: u16, key: &str, word: &str) {
    let x = x + canvas.put(x, y, canvas.rest(x), key, Paint::Bold) + 1;
    canvas.put(x, y, canvas.rest(x), word, Paint::Dim);
}
