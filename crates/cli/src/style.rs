//! Colours and text styles of the programs' output.

use anstyle::{AnsiColor, Effects, Style};

pub const GOOD: Style = AnsiColor::Green.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);
pub const WARNING: Style = AnsiColor::Yellow.on_default();
pub const HINT: Style = AnsiColor::Cyan.on_default();
pub const TITLE: Style = Style::new().bold();
pub const FAINT: Style = Style::new().dimmed();

/// Styles text if colours are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    pub enabled: bool,
}

impl Paint {
    /// Returns text in a style, if colours are enabled.
    pub fn paint(self, style: Style, text: impl std::fmt::Display) -> String {
        if self.enabled { format!("{style}{text}{style:#}") } else { text.to_string() }
    }
}

/// Returns a text without colours.
pub fn strip(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}
