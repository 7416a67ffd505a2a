//! Colours.

use anstyle::{AnsiColor, Effects, Style};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
pub(crate) const TITLE: Style = Style::new().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Styles text if colours are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    pub(crate) enabled: bool,
}

impl Paint {
    /// Returns text that shows itself in a style.
    pub(crate) fn paint(self, style: Style, text: impl std::fmt::Display) -> String {
        if self.enabled { format!("{style}{text}{style:#}") } else { text.to_string() }
    }
}
