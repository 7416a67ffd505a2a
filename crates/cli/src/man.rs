//! Man pages of a program: pages written by hand, and one page per command, generated from its clap definition.
//!
//! Options are rendered from the definition that `--help` uses, so a page has exactly the options of `--help`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{fs, io};

use clap::{Args, Command};
use clap_mangen::Man;
use oci_hooks_files::fs::{PathContext as _, PathError};

/// Date in the footer of the pages, updated when their content changes.
const DATE: &str = "2026-11-21";

/// Write the man pages of the program and its commands
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct ManArgs {
    /// Directory of man pages, such as /usr/local/share/man
    directory: PathBuf,
}

impl ManArgs {
    /// Writes the man pages of `program`, each into the directory of its section.
    pub fn run(&self, pages: &ManPages, program: Command) -> Result<(), PathError> {
        for (name, text) in pages.pages(program) {
            let section = name.rsplit('.').next().unwrap_or_default();
            let directory = self.directory.join(format!("man{section}"));
            fs::create_dir_all(&directory).with_path("create", &directory)?;
            let path = directory.join(name);
            fs::write(&path, text).with_path("write", &path)?;
        }
        Ok(())
    }
}

/// The man pages of a program.
#[derive(Debug)]
pub struct ManPages {
    pub program: &'static str,
    /// Name of the manual, in the header of each page.
    pub manual: &'static str,
    /// File names and texts of the pages written by hand; the page of the program is first.
    pub written: &'static [(&'static str, &'static str)],
    /// Text after the options in the page of each command, in roff.
    pub global_options: &'static str,
    /// The last section of each command's page, in roff.
    pub see_also: &'static str,
}

impl ManPages {
    /// Returns all pages, by file name.
    pub fn pages(&self, program: Command) -> BTreeMap<String, String> {
        let program = program.disable_help_subcommand(true);
        let shown = program.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let commands = shown.map(|subcommand| {
            let name = format!("{}-{}", self.program, subcommand.get_name());
            (format!("{name}.1"), self.subcommand(subcommand.clone(), name))
        });
        let written = self.written.iter().map(|(name, text)| (*name, *text));
        commands.chain(written.map(|(name, text)| (name.to_owned(), text.to_owned()))).collect()
    }

    /// Returns a page of the sections about the command line, which the page of the program must contain.
    pub fn command_line_page(&self, program: Command) -> String {
        let program = program.disable_help_subcommand(true);
        let help = HelpSections::of(&program);
        let values = values(&program);
        let man = self.page(program);
        render(|out| {
            man.render_title(out)?;
            man.render_name_section(out)?;
            out.write_all(synopsis(&man, &values).as_bytes())?;
            man.render_subcommands_section(out)?;
            man.render_options_section(out)?;
            out.write_all(help.sections.as_bytes())
        })
    }

    /// Returns the page of a subcommand. The subcommand was not built as part of the program, so it has no
    /// global options, which are on the program's page.
    fn subcommand(&self, subcommand: Command, name: String) -> String {
        let help = HelpSections::of(&subcommand);
        let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
        let about = escape(&about);
        let values = values(&subcommand);
        let bin_name = format!("{} {}", self.program, subcommand.get_name());
        let man = self.page(subcommand.bin_name(bin_name).display_name(name));
        render(|out| {
            man.render_title(out)?;
            man.render_name_section(out)?;
            out.write_all(synopsis(&man, &values).as_bytes())?;
            writeln!(out, ".SH DESCRIPTION\n{about}.")?;
            out.write_all(help.description.as_bytes())?;
            man.render_options_section(out)?;
            out.write_all(self.global_options.as_bytes())?;
            out.write_all(help.sections.as_bytes())?;
            out.write_all(self.see_also.as_bytes())
        })
    }

    fn page(&self, command: Command) -> Man {
        // No version in the footer, so a new version does not change the pages.
        Man::new(command).date(DATE).source("oci-hooks").manual(self.manual)
    }
}

/// Returns the text that `clap_mangen` writes in a synopsis for options with values and for arguments after `--`, each
/// with its replacement.
fn values(command: &Command) -> Vec<(String, String)> {
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    let with_value = options.filter(|arg| arg.get_action().takes_values());
    let entry = |arg: &clap::Arg| {
        let name = match (arg.get_long(), arg.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, short) => format!("-{} ", short.unwrap_or_default()),
        };
        let value = match arg.get_value_names() {
            Some(names) => names.join(" "),
            None => arg.get_id().as_str().to_uppercase().replace('_', "-"),
        };
        let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        let value = format!("\\fI{}\\fR", escape(&value));
        let value = if is_optional { format!("[={value}]") } else { format!(" {value}") };
        let option = format!("\\fB{}\\fR", escape(&name));
        (option.clone(), option + &value)
    };
    let after_dashes = command.get_positionals().filter(|arg| arg.is_last_set());
    let after_dashes = after_dashes.filter_map(|arg| {
        let name = format!("\\fI{}\\fR", escape(arg.get_value_names()?.first()?));
        Some((format!("[{name}]"), format!("[\\fB\\-\\-\\fR {name} ...]")))
    });
    with_value.map(entry).chain(after_dashes).collect()
}

/// Returns the synopsis with the values of options, which `clap_mangen` omits.
fn synopsis(man: &Man, values: &[(String, String)]) -> String {
    let mut out = Vec::new();
    man.render_synopsis_section(&mut out).expect("memory can be written to");
    let mut text = String::from_utf8(out).expect("it is made of text");
    for (written, meant) in values {
        text = text.replace(written, meant);
    }
    text
}

fn render(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).expect("memory can be written to");
    let text = String::from_utf8(out).expect("it is made of text");
    // Each section has the same preamble; the first is enough.
    let (preamble, rest) = text.split_at(text.find(".TH").unwrap_or_default());
    let rest = rest.replace(preamble, "");
    let lines = rest.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let rest = lines.collect::<Vec<_>>().join("\n");
    // Indent possible values below their option.
    let rest = rest.replace(".br\n.br\n", ".br\n").replace(".RS 14\n", ".RS 7\n");
    format!("{preamble}{rest}\n")
}

/// Text after the options in `--help`, in roff.
#[derive(Default)]
struct HelpSections {
    description: String,
    /// Blocks with a title, such as the examples.
    sections: String,
}

impl HelpSections {
    fn of(command: &Command) -> Self {
        let mut help = HelpSections::default();
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for block in text.split("\n\n").filter(|block| !block.is_empty()) {
            let (first, rest) = block.split_once('\n').unwrap_or((block, ""));
            match first.strip_suffix(':').filter(|_| rest.starts_with("  ")) {
                Some(title) => {
                    help.sections += &format!(".SH \"{}\"\n", title.to_uppercase());
                    help.sections += &literal(rest);
                }
                None if block.starts_with("Exit status is") => {
                    help.sections += &format!(".SH \"EXIT STATUS\"\n{}", paragraph(block));
                }
                None => help.description += &format!(".PP\n{}", paragraph(block)),
            }
        }
        help
    }
}

/// Converts a block to roff: indented lines are kept as lines, other lines are filled.
fn paragraph(block: &str) -> String {
    let mut out = String::new();
    let mut lines = block.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("  ") {
            let mut example = vec![line];
            while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
                example.push(line);
            }
            if !out.is_empty() {
                out += ".PP\n";
            }
            out += &literal(&example.join("\n"));
        } else {
            out += &format!("{}\n", escape(line));
        }
    }
    out
}

fn literal(lines: &str) -> String {
    let lines: Vec<_> =
        lines.lines().map(|line| escape(line.strip_prefix("  ").unwrap_or(line))).collect();
    format!(".RS 4\n.nf\n{}\n.fi\n.RE\n", lines.join("\n"))
}

/// Escapes roff commands, and keeps characters ASCII for copying.
fn escape(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    let line = line.replace('\'', "\\(aq").replace('`', "\\(ga").replace('^', "\\(ha");
    let line = line.replace('~', "\\(ti").replace('"', "\\(dq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synopsis_has_the_values_of_options() {
        let option = clap::Arg::new("as").long("as").value_name("CONSUMER");
        let assembled = clap::Arg::new("as-is").long("as-is").action(clap::ArgAction::SetTrue);
        let command = Command::new("program").arg(option).arg(assembled);
        let text = synopsis(&Man::new(command.clone()), &values(&command));
        assert!(text.contains(r"[\fB\-\-as\fR \fICONSUMER\fR] [\fB\-\-as\-is\fR]"), "{text}");
    }
}
