//! The page that text is written on: indentation, wrapping, styles. It requires text without escape
//! sequences.

use std::io::{self, Write};

use super::Style;
use crate::footnotes::Footnotes;
use crate::words::{Wording, clean, push_cut, split, width};

/// Style of text if color is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Bold,
    Dim,
    Cyan,
    Green,
    Yellow,
    Red,
}

impl Ink {
    /// Parameter of SGR ("select graphic rendition"), the terminal's escape sequence for styles.
    const fn sgr(self) -> &'static str {
        match self {
            Ink::Plain => "",
            Ink::Bold => "1",
            Ink::Dim => "2",
            Ink::Cyan => "36",
            Ink::Green => "32",
            Ink::Yellow => "33",
            Ink::Red => "1;31",
        }
    }
}

/// Number of columns by which text below a heading is indented.
const INDENT: usize = 2;

/// Maximum length of a horizontal line in columns.
const RULE: usize = 80;

/// A page that is being written. Lines are wrapped at `width`, and continue in the column `hang`.
pub(super) struct TextPage<'p> {
    pub(super) style: &'p Style,
    /// Lines that were not passed to `out` yet.
    pub(super) buffer: Vec<u8>,
    out: &'p mut dyn Write,
    width: usize,
    column: usize,
    hang: usize,
    dipped: Ink,
    empty: bool,
}

impl<'p> TextPage<'p> {
    pub(super) fn new(style: &'p Style, out: &'p mut dyn Write) -> TextPage<'p> {
        let width = style.width.max(20);
        TextPage {
            style,
            buffer: Vec::new(),
            out,
            width,
            column: 0,
            hang: 0,
            dipped: Ink::Plain,
            empty: true,
        }
    }

    /// Writes the lines of `buffer` to the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.empty &= self.buffer.is_empty();
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes whole lines to the output. Requires that [`TextPage::flush`] was called after all
    /// earlier lines.
    pub(super) fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        self.out.write_all(lines)
    }

    /// Conversion of values to words in sentences: sizes with a unit, absent values with their
    /// reason.
    pub(super) fn wording(&self) -> Wording<'static> {
        Wording { units: self.style.units, bare: false, notes: None }
    }

    /// Number of columns left on the current line.
    pub(super) fn room(&self) -> usize {
        self.width.saturating_sub(self.column.max(self.hang))
    }

    /// Starts a block. With a title, writes an empty line and the heading, and indents the lines
    /// below it.
    pub(super) fn heading(&mut self, title: &str) {
        self.heading_of_sizes(title, false);
    }

    /// Like [`TextPage::heading`], followed by the unit of sizes if `sizes` is true.
    pub(super) fn heading_of_sizes(&mut self, title: &str, sizes: bool) {
        self.hang(0);
        if title.is_empty() {
            return;
        }
        if !(self.empty && self.buffer.is_empty()) {
            self.newline();
        }
        self.ink_cut(Ink::Bold, &clean(title.as_bytes()));
        if let Some(unit) = self.style.units.name().filter(|_| sizes) {
            self.write_words(Ink::Dim, unit, 2);
        }
        self.newline();
        self.hang(INDENT);
    }

    /// Sets the column in which lines start and continue, but at most half of the width.
    pub(super) fn hang(&mut self, column: usize) {
        self.hang = column.min(self.width / 2);
    }

    /// Column in which lines start.
    pub(super) fn indent(&self) -> usize {
        self.hang
    }

    /// True if at least half of a line is right of the column.
    pub(super) fn is_left_half(&self, column: usize) -> bool {
        column <= self.width / 2
    }

    /// Skips `count` columns.
    pub(super) fn skip(&mut self, count: usize) {
        self.pad_to(self.column.max(self.hang) + count);
    }

    /// Ends the line, and removes spaces at its end.
    pub(super) fn newline(&mut self) {
        while self.buffer.last() == Some(&b' ') {
            self.buffer.pop();
        }
        self.dip(Ink::Plain);
        self.buffer.push(b'\n');
        self.column = 0;
    }

    /// Pads the line with spaces up to `column`.
    pub(super) fn pad_to(&mut self, column: usize) {
        let count = column.min(self.width).saturating_sub(self.column);
        self.buffer.resize(self.buffer.len() + count, b' ');
        self.column += count;
    }

    /// Writes text, which must fit on the current line.
    pub(super) fn ink(&mut self, ink: Ink, words: &str) {
        if words.is_empty() {
            return;
        }
        self.pad_to(self.hang);
        self.dip(ink);
        self.buffer.extend_from_slice(words.as_bytes());
        self.column += width(words);
    }

    /// Writes text, cut to the space that is left on the current line.
    pub(super) fn ink_cut(&mut self, ink: Ink, words: &str) {
        let mut cut = String::new();
        push_cut(&mut cut, words, self.room());
        self.ink(ink, &cut);
    }

    /// Sets the style of the following text, if color is used. [`TextPage::newline`] resets the
    /// style.
    pub(super) fn dip(&mut self, ink: Ink) {
        if !self.style.color || self.dipped == ink {
            return;
        }
        if self.dipped != Ink::Plain {
            self.buffer.extend_from_slice(b"\x1b[0m");
        }
        if ink != Ink::Plain {
            self.buffer.extend_from_slice(b"\x1b[");
            self.buffer.extend_from_slice(ink.sgr().as_bytes());
            self.buffer.push(b'm');
        }
        self.dipped = ink;
    }

    /// Writes `gap` spaces if `needed` columns fit after them; otherwise begins a new line.
    pub(super) fn make_room(&mut self, needed: usize, gap: usize) {
        if self.column <= self.hang {
            return;
        }
        if self.column.saturating_add(gap).saturating_add(needed) > self.width {
            self.newline();
        } else {
            self.skip(gap);
        }
    }

    /// Writes text after `gap` spaces, wrapped at spaces. A word that is wider than a line is
    /// broken.
    pub(super) fn write_words(&mut self, ink: Ink, words: &str, gap: usize) {
        let mut gap = gap;
        for word in words.split(' ') {
            if !word.is_empty() {
                self.word(ink, word, gap);
                gap = 0;
            }
            gap += 1;
        }
    }

    fn word(&mut self, ink: Ink, word: &str, gap: usize) {
        self.make_room(width(word), gap);
        let (mut head, mut rest) = split(word, self.room());
        while !rest.is_empty() {
            self.ink(ink, head);
            self.newline();
            (head, rest) = split(rest, self.room());
        }
        self.ink(ink, head);
    }

    /// Draws a horizontal line of at most [`RULE`] columns.
    pub(super) fn rule(&mut self) {
        self.ink(Ink::Dim, &"─".repeat(self.room().min(RULE)));
        self.newline();
    }

    /// Writes the reasons of the absent values of a block.
    pub(super) fn footnotes(&mut self, notes: &Footnotes<'_>) {
        let indent = self.indent();
        for (mark, reason) in notes.lines() {
            self.hang(indent);
            self.ink(Ink::Dim, mark);
            self.hang(indent + width(mark) + 1);
            self.write_words(Ink::Dim, &reason, 1);
            self.newline();
        }
        self.hang(indent);
    }

    /// Writes a remark below a block, wrapped at spaces.
    pub(super) fn remark(&mut self, words: &str) {
        if !words.is_empty() {
            self.write_words(Ink::Dim, words, 0);
            self.newline();
        }
    }
}
