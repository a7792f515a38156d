//! Cells of a frame. Text outside of the frame is not written.

use ratatui::buffer::Buffer;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::palette::{Paint, Palette};

/// The cells of a frame.
pub(super) struct Canvas<'b> {
    buffer: &'b mut Buffer,
    palette: Palette,
}

/// Number of columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

impl<'b> Canvas<'b> {
    pub(super) fn new(buffer: &'b mut Buffer, palette: Palette) -> Canvas<'b> {
        Canvas { buffer, palette }
    }

    /// Number of columns and number of lines.
    pub(super) const fn size(&self) -> (u16, u16) {
        (self.buffer.area.width, self.buffer.area.height)
    }

    /// Number of columns from column `x` to the end of the line.
    pub(super) const fn rest(&self, x: u16) -> u16 {
        self.size().0.saturating_sub(x)
    }

    /// Writes a text into at most `room` columns, and returns the number of columns that were
    /// written. A text that does not fit is cut and ends with an ellipsis.
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

    /// Writes a text right-aligned into `room` columns.
    pub(super) fn put_right(&mut self, x: u16, y: u16, room: u16, text: &str, paint: Paint) {
        let used = u16::try_from(width(text)).unwrap_or(room).min(room);
        self.put(x + room - used, y, used, text, paint);
    }

    /// Sets the style of a whole line.
    pub(super) fn paint_line(&mut self, y: u16, paint: Paint) {
        let (columns, _) = self.size();
        self.paint(0, y, columns, paint);
    }

    /// Replaces the style of `room` columns of a line.
    pub(super) fn paint(&mut self, x: u16, y: u16, room: u16, paint: Paint) {
        let style = self.palette.style(paint);
        for column in x..x.saturating_add(room) {
            if let Some(cell) = self.buffer.cell_mut((column, y)) {
                cell.set_style(Style::reset().patch(style));
            }
        }
    }
}
