//! The page that text is written on: indentation, wrapping, ink. Takes only clean words.

use std::io::{self, Write};

use super::Style;
use crate::footnotes::Footnotes;
use crate::words::{Wording, clean, push_cut, split, width};

/// Style of words if color is used.
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
    /// The parameter of SGR, the terminal's "select graphic rendition".
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

/// Indentation below a heading.
const INDENT: usize = 2;

/// Maximum length of a line across the page.
const RULE: usize = 80;

/// A page being written. Lines break before `width`; broken lines go on at `hang`.
pub(super) struct TextPage<'p> {
    pub(super) style: &'p Style,
    /// The lines so far that `out` does not have yet.
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

    /// Hands the lines so far to the writer.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.empty &= self.buffer.is_empty();
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Hands whole lines to the writer; all lines before must have been flushed.
    pub(super) fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        self.out.write_all(lines)
    }

    /// Values in sentences: sizes with their unit, missing ones with their reason.
    pub(super) fn wording(&self) -> Wording<'static> {
        Wording { units: self.style.units, bare: false, notes: None }
    }

    /// Number of columns left on this line.
    pub(super) fn room(&self) -> usize {
        self.width.saturating_sub(self.column.max(self.hang))
    }

    /// Starts a block. With a title, writes an empty line and the heading, and indents the lines
    /// below it.
    pub(super) fn heading(&mut self, title: &str) {
        self.heading_of_sizes(title, false);
    }

    /// [`TextPage::heading`], with the unit if the block has sizes without a unit beside them.
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

    /// Sets where lines start and go on. Leaves at least half of the width.
    pub(super) fn hang(&mut self, column: usize) {
        self.hang = column.min(self.width / 2);
    }

    /// Start column of lines.
    pub(super) fn indent(&self) -> usize {
        self.hang
    }

    /// True if a column leaves half of a line to what is written from there on.
    pub(super) fn is_left_half(&self, column: usize) -> bool {
        column <= self.width / 2
    }

    /// Leaves `count` columns empty.
    pub(super) fn skip(&mut self, count: usize) {
        self.pad_to(self.column.max(self.hang) + count);
    }

    /// Ends the line, without the blanks at its end.
    pub(super) fn newline(&mut self) {
        while self.buffer.last() == Some(&b' ') {
            self.buffer.pop();
        }
        self.dip(Ink::Plain);
        self.buffer.push(b'\n');
        self.column = 0;
    }

    /// Pads the line with blanks up to `column`.
    pub(super) fn pad_to(&mut self, column: usize) {
        let count = column.min(self.width).saturating_sub(self.column);
        self.buffer.resize(self.buffer.len() + count, b' ');
        self.column += count;
    }

    /// Writes words that fit on this line.
    pub(super) fn ink(&mut self, ink: Ink, words: &str) {
        if words.is_empty() {
            return;
        }
        self.pad_to(self.hang);
        self.dip(ink);
        self.buffer.extend_from_slice(words.as_bytes());
        self.column += width(words);
    }

    /// Writes words, cut to the rest of this line.
    pub(super) fn ink_cut(&mut self, ink: Ink, words: &str) {
        let mut cut = String::new();
        push_cut(&mut cut, words, self.room());
        self.ink(ink, &cut);
    }

    /// Sets the style of the text that follows, if color is used. [`TextPage::newline`] resets it.
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

    /// Makes sure that `needed` columns follow, after a gap or on a new line.
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

    /// Writes words, wrapped at spaces; a word that is wider than a line is broken.
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

    /// A line across the page, of at most [`RULE`] columns.
    pub(super) fn rule(&mut self) {
        self.ink(Ink::Dim, &"─".repeat(self.room().min(RULE)));
        self.newline();
    }

    /// Writes the reasons of the missing values of this block.
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

    /// Writes a remark below a block, wrapped.
    pub(super) fn remark(&mut self, words: &str) {
        if !words.is_empty() {
            self.write_words(Ink::Dim, words, 0);
            self.newline();
        }
    }
}
