//! Colors that are distinguishable with any color vision. Each meaning also has a shape, a sign or
//! a weight, so that color is never the only difference.

use ratatui::style::{Color, Modifier, Style};

/// Meaning of a text style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Bold,
    Dim,
    /// Headings of columns, and the selected row.
    Reversed,
    /// Memory that grows, and warnings.
    Rising,
    /// Memory that shrinks.
    Falling,
    /// Errors and OOM kills.
    Alarm,
    /// Bars and trends.
    Bar,
    /// Names in reports.
    Accent,
}

/// Conversion of meanings to terminal styles, with or without colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Palette {
    pub(crate) color: bool,
}

// Orange, vermilion, blue and sky blue of the palette of Okabe and Ito, approximated by the 256
// terminal colors. The colors also differ in brightness, and are readable on dark and light
// backgrounds.
const ORANGE: Color = Color::Indexed(172);
const VERMILION: Color = Color::Indexed(166);
const BLUE: Color = Color::Indexed(32);
const SKY: Color = Color::Indexed(38);

impl Palette {
    pub(crate) fn style(self, paint: Paint) -> Style {
        let (color, modifier) = match paint {
            Paint::Plain => (None, Modifier::empty()),
            Paint::Bold => (None, Modifier::BOLD),
            Paint::Dim => (None, Modifier::DIM),
            Paint::Reversed => (None, Modifier::REVERSED),
            Paint::Rising => (Some(ORANGE), Modifier::BOLD),
            Paint::Falling => (Some(BLUE), Modifier::empty()),
            Paint::Alarm => (Some(VERMILION), Modifier::BOLD),
            Paint::Bar => (Some(BLUE), Modifier::empty()),
            Paint::Accent => (Some(SKY), Modifier::empty()),
        };
        let style = Style::new().add_modifier(modifier);
        color.filter(|_| self.color).map_or(style, |color| style.fg(color))
    }
}
