//! `--help` as wide as the terminal.

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser};

use super::terminal::{hang, width};

/// The width where there is no terminal.
const WIDTH: usize = 100;

/// Parses the arguments of this process, or prints help or an error and ends it.
pub fn parse<P: Parser>() -> P {
    parse_from(std::env::args_os())
}

/// The same with other arguments, the name of the program first.
pub fn parse_from<P: Parser>(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> P {
    let mut command = command::<P>();
    let mut matches = command.try_get_matches_from_mut(words).unwrap_or_else(|error| error.exit());
    P::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Returns the command line of a program, for this terminal.
pub fn command<P: CommandFactory>() -> Command {
    let mut command = P::command();
    let Some(width) = width() else { return fitted(command, WIDTH) };
    // Usages of subcommands begin with the program.
    command.build();
    with_usage(fitted(command, width), width)
}

/// Has the texts of a command and its subcommands fit into a width.
fn fitted(mut command: Command, width: usize) -> Command {
    // What clap breaks it does not indent.
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(filled(&text, width));
    }
    command.term_width(width).mut_subcommands(|subcommand| fitted(subcommand, width))
}

/// Breaks usages that are too wide, which clap does not.
fn with_usage(mut command: Command, width: usize) -> Command {
    const TITLE: &str = "Usage: ";
    let usage = command.render_usage().to_string();
    if usage.lines().any(|line| line.chars().count() > width) {
        let lines: Vec<_> = usage.lines().map(|line| hang(line, width, TITLE.len() + 2)).collect();
        let usage = lines.join("\n");
        command = command.override_usage(usage.strip_prefix(TITLE).unwrap_or(&usage).to_owned());
    }
    command.mut_subcommands(|subcommand| with_usage(subcommand, width))
}

/// Fills paragraphs. Lines that are indented stay lines; those of two columns have the second below itself.
fn filled(text: &str, width: usize) -> String {
    let mut out = Vec::new();
    let mut paragraph = String::new();
    let end = |paragraph: &mut String, out: &mut Vec<String>| {
        if !paragraph.is_empty() {
            out.push(hang(&std::mem::take(paragraph), width, 0));
        }
    };
    for line in text.lines() {
        if line.is_empty() || line.starts_with(' ') {
            end(&mut paragraph, &mut out);
            out.push(indented(line, width));
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

fn indented(line: &str, width: usize) -> String {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let Some((first, second)) = text.split_once("  ") else {
        let indent = if indent > width / 2 { 6 } else { indent };
        return hang(&format!("{:indent$}{text}", ""), width, indent + 4);
    };
    let second = second.trim_start_matches(' ');
    let column = line.chars().count() - second.chars().count();
    if column <= width / 2 {
        return hang(line, width, column);
    }
    let first = hang(&format!("{:indent$}{first}", ""), width, indent + 4);
    format!("{first}\n{}", hang(&format!("{:1$}{second}", "", indent + 4), width, indent + 4))
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
    fn what_fits_is_not_changed_but_for_paragraphs() {
        let expected = TEXT.replace("here\nand", "here and");
        assert_eq!(filled(TEXT, 100), expected);
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
        assert_eq!(filled(TEXT, 40), expected);
    }
}
