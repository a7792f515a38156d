//! Cells of the terminal. Nothing is written outside of it.

use ratatui::buffer::Buffer;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::palette::{Paint, Palette};

/// The cells of a frame.
pub(super) struct Canvas<'b> {
    buffer: &'b mut Buffer,
    palette: Palette,
}

/// Number of columns of a text.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

impl<'b> Canvas<'b> {
    pub(super) fn new(buffer: &'b mut Buffer, palette: Palette) -> Canvas<'b> {
        Canvas { buffer, palette }
    }

    /// Columns and lines.
    pub(super) const fn size(&self) -> (u16, u16) {
        (self.buffer.area.width, self.buffer.area.height)
    }

    /// Number of columns from a column to the end of the line.
    pub(super) const fn rest(&self, x: u16) -> u16 {
        self.size().0.saturating_sub(x)
    }

    /// Writes the start of a text into at most `room` columns; returns the number of columns. A
    /// text that does not fit ends with an ellipsis.
    pub(super) fn put(&mut self, x: u16, y: u16, room: u16, text: &str, paint: Paint) -> u16 {
        let style = self.palette.style(paint);
        self.put_styled(x, y, room, text, style)
    }

    fn put_styled(&mut self, x: u16, y: u16, room: u16, text: &str, style: Style) -> u16 {
        let (columns, lines) = self.size();
        let room = room.min(columns.saturating_sub(x));
        if y >= lines || room == 0 {
            return 0;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(room), style);
        if width(text) > usize::from(room) {
            self.buffer.set_stringn(x + room - 1, y, "…", 1, style);
            return room;
        }
        end - x
    }

    /// Writes a text at the right end of `room` columns.
    pub(super) fn put_right(&mut self, x: u16, y: u16, room: u16, text: &str, paint: Paint) {
        let used = u16::try_from(width(text)).unwrap_or(room).min(room);
        self.put(x + room - used, y, used, text, paint);
    }

    /// Gives a whole line a style, after its text.
    pub(super) fn paint_line(&mut self, y: u16, paint: Paint) {
        let (columns, _) = self.size();
        self.paint(0, y, columns, paint);
    }

    /// Gives columns of a line a style in place of their own.
    pub(super) fn paint(&mut self, x: u16, y: u16, room: u16, paint: Paint) {
        let style = self.palette.style(paint);
        for column in x..x.saturating_add(room) {
            if let Some(cell) = self.buffer.cell_mut((column, y)) {
                cell.set_style(Style::reset().patch(style));
            }
        }
    }
}
