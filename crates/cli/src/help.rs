//! `--help` text wrapped to the width of the terminal.

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser};

use super::terminal::{width, wrap_hanging};

/// Columns if standard output is not a terminal.
const WIDTH: usize = 100;

/// Parses the arguments of this process, or prints help or an error and exits.
pub fn parse<P: Parser>() -> P {
    parse_from(std::env::args_os())
}

/// Parses these arguments, of which the first is the program name, or prints help or an error and exits.
pub fn parse_from<P: Parser>(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> P {
    try_parse_from(words).unwrap_or_else(|error| error.exit())
}

/// Parses these arguments, of which the first is the program name. Help is an error, too.
pub fn try_parse_from<P: Parser>(
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<P, clap::Error> {
    let mut command = command::<P>();
    let mut matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Returns the clap command of a program, with help wrapped to this terminal.
pub fn command<P: CommandFactory>() -> Command {
    let mut command = P::command();
    let Some(width) = width() else { return wrap_help(command, WIDTH) };
    // `build` puts the program name in front of the usage of subcommands.
    command.build();
    wrap_usage(wrap_help(command, width), width)
}

/// Wraps the help of a command and its subcommands to a width.
fn wrap_help(mut command: Command, width: usize) -> Command {
    // clap wraps lines of `after_help` without indenting them.
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(wrap_paragraphs(&text, width));
    }
    command.term_width(width).mut_subcommands(|subcommand| wrap_help(subcommand, width))
}

/// Wraps long usage lines, which clap does not.
fn wrap_usage(mut command: Command, width: usize) -> Command {
    const TITLE: &str = "Usage: ";
    let usage = command.render_usage().to_string();
    if usage.lines().any(|line| line.chars().count() > width) {
        let lines: Vec<_> =
            usage.lines().map(|line| wrap_hanging(line, width, TITLE.len() + 2)).collect();
        let usage = lines.join("\n");
        command = command.override_usage(usage.strip_prefix(TITLE).unwrap_or(&usage).to_owned());
    }
    command.mut_subcommands(|subcommand| wrap_usage(subcommand, width))
}

/// Fills paragraphs. Indented lines are kept; if one with two columns is too long, its second column is wrapped.
fn wrap_paragraphs(text: &str, width: usize) -> String {
    let mut out = Vec::new();
    let mut paragraph = String::new();
    let end = |paragraph: &mut String, out: &mut Vec<String>| {
        if !paragraph.is_empty() {
            out.push(wrap_hanging(&std::mem::take(paragraph), width, 0));
        }
    };
    for line in text.lines() {
        if line.is_empty() || line.starts_with(' ') {
            end(&mut paragraph, &mut out);
            out.push(wrap_indented_line(line, width));
        } else {
            if !paragraph.is_empty() {
                paragraph.push(' ');
            }
            paragraph += line;
        }
    }
    end(&mut paragraph, &mut out);
    out.join("\n")
}

fn wrap_indented_line(line: &str, width: usize) -> String {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let Some((first, second)) = text.split_once("  ") else {
        let indent = if indent > width / 2 { 6 } else { indent };
        return wrap_hanging(&format!("{:indent$}{text}", ""), width, indent + 4);
    };
    let second = second.trim_start_matches(' ');
    let column = line.chars().count() - second.chars().count();
    if column <= width / 2 {
        return wrap_hanging(line, width, column);
    }
    let first = wrap_hanging(&format!("{:indent$}{first}", ""), width, indent + 4);
    format!(
        "{first}\n{}",
        wrap_hanging(&format!("{:1$}{second}", "", indent + 4), width, indent + 4)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Examples:
  program one             Does one thing
  program second --option VALUE  Does another

Exit status:
  0  all is well and there is nothing to say

This paragraph is broken here
and ends there.";

    #[test]
    fn fitting_text_is_unchanged_except_for_joined_paragraphs() {
        let expected = TEXT.replace("here\nand", "here and");
        assert_eq!(wrap_paragraphs(TEXT, 100), expected);
    }

    #[test]
    fn narrow_texts_keep_their_columns() {
        let expected = "\
Examples:
  program one             Does one thing
  program second --option VALUE
      Does another

Exit status:
  0  all is well and there is nothing to
     say

This paragraph is broken here and ends
there.";
        assert_eq!(wrap_paragraphs(TEXT, 40), expected);
    }
}
