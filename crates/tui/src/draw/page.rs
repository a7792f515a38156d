//! The page of a process or a cgroup.

use super::bottom_line;
use super::canvas::Canvas;
use crate::event::InstrumentEnd;
use crate::keys::KeyGroup;
use crate::layout::PageLayout;
use crate::palette::Paint;
use crate::sgr::StyledLine;
use crate::state::{OpenPage, TopState};

pub(super) fn draw(canvas: &mut Canvas<'_>, state: &TopState, page: &OpenPage) {
    let layout = PageLayout::of(canvas.size());
    let columns = canvas.size().0;
    canvas.put(0, 0, columns, &page.title, Paint::Bold);
    tabs(canvas, page, layout.tab_line);
    status(canvas, page, layout.tab_line + 1);
    let lines = page.lines.iter().skip(page.scroll).take(layout.lines.into());
    for (line, y) in lines.zip(layout.first_line..) {
        styled_line(canvas, line, y);
    }
    bottom_line(canvas, state, layout.bottom_line, KeyGroup::Page);
    position(canvas, page, &layout);
}

fn tabs(canvas: &mut Canvas<'_>, page: &OpenPage, y: u16) {
    let columns = canvas.size().0;
    for span in page.tab_spans(columns) {
        canvas.put(span.x, y, span.width, &span.label, Paint::Plain);
        if span.index == page.tab {
            canvas.paint(span.x, y, span.width, Paint::Reversed);
        }
    }
}

/// The reason why the body is empty or old, or the state of the command.
fn status(canvas: &mut Canvas<'_>, page: &OpenPage, y: u16) {
    let columns = canvas.size().0;
    let (text, paint) = if let Some(pane) = page.selected_command() {
        match pane.end {
            None => {
                (format!("running{} Esc interrupts", ".".repeat(pane.sweeps % 30)), Paint::Rising)
            }
            Some(InstrumentEnd::Failed) => {
                ("failed; its messages are below".to_owned(), Paint::Alarm)
            }
            Some(InstrumentEnd::Interrupted) => ("interrupted".to_owned(), Paint::Rising),
            Some(InstrumentEnd::Done) => return,
        }
    } else if let Some(failure) = &page.failure {
        (failure.clone(), Paint::Alarm)
    } else if page.waits() {
        ("reading the process …".to_owned(), Paint::Dim)
    } else {
        return;
    };
    canvas.put(0, y, columns, &text, paint);
}

fn styled_line(canvas: &mut Canvas<'_>, line: &StyledLine, y: u16) {
    let mut x = 0;
    for (paint, word) in &line.words {
        x += canvas.put(x, y, canvas.rest(x), word, *paint);
    }
}

/// Lines that are not visible.
fn position(canvas: &mut Canvas<'_>, page: &OpenPage, layout: &PageLayout) {
    let visible = usize::from(layout.lines);
    if page.lines.len() <= visible {
        return;
    }
    let last = (page.scroll + visible).min(page.lines.len());
    let text = format!(" {}-{} of {} ", page.scroll + 1, last, page.lines.len());
    let columns = canvas.size().0;
    let width = u16::try_from(text.len()).unwrap_or(columns).min(columns);
    canvas.put_right(columns - width, layout.tab_line + 1, width, &text, Paint::Dim);
}
