//! Man pages made from a command line, for the programs of this package.
//!
//! What is said in `--help` is said in the page: an option that is missing in one cannot be in the
//! other.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

/// When the pages last changed in more than details; readers of a man page expect a date.
const DATE: &str = "2026-11-21";

/// The width of `--help` where there is no terminal.
const WIDTH: usize = 100;

/// How the pages of a program differ from those of others.
pub struct Pages {
    pub program: &'static str,
    /// The manual that they are of.
    pub manual: &'static str,
    /// What stands before the list of commands, in roff.
    pub description: &'static str,
    /// What stands at the end of the program's page, in roff.
    pub reference: &'static str,
    /// What stands in each command's page after its options, in roff.
    pub global_options: &'static str,
    /// The last section of each command's page, in roff.
    pub see_also: &'static str,
}

impl Pages {
    /// Compares the pages with those that are committed, or writes them with `UPDATE_GOLDEN`.
    /// Committed pages whose names `is_own` accepts must be among them.
    #[track_caller]
    pub fn check(&self, program: Command, is_own: impl Fn(&str) -> bool) {
        let pages = self.render(program);
        let committed = || -> BTreeSet<String> {
            let names = fs::read_dir(man("")).unwrap().map(|entry| entry.unwrap().file_name());
            let names = names.map(|name| name.into_string().unwrap());
            names.filter(|name| name.ends_with(".1") && is_own(name)).collect()
        };
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            for name in committed().iter().filter(|name| !pages.contains_key(*name)) {
                fs::remove_file(man(name)).unwrap();
            }
            for (name, text) in &pages {
                fs::write(man(name), text).unwrap();
            }
        }
        let names: BTreeSet<_> = pages.keys().cloned().collect();
        assert_eq!(committed(), names, "pages and commands; UPDATE_GOLDEN=1 rewrites the pages");
        for (name, text) in &pages {
            let found = fs::read_to_string(man(name)).unwrap();
            assert!(found == *text, "man/{name} is stale; UPDATE_GOLDEN=1 rewrites it");
        }
    }

    /// Returns the pages, by file name.
    fn render(&self, program: Command) -> BTreeMap<String, String> {
        let program = program.disable_help_subcommand(true);
        let shown = program.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let subcommands = shown.map(|subcommand| {
            let name = format!("{}-{}", self.program, subcommand.get_name());
            (format!("{name}.1"), self.subcommand(subcommand.clone(), name))
        });
        let mut pages: BTreeMap<_, _> = subcommands.collect();
        pages.insert(format!("{}.1", self.program), self.program(program));
        pages
    }

    fn program(&self, program: Command) -> String {
        let help = Help::of(&program);
        let values = values(&program);
        let man = self.page(program);
        render(|out| {
            man.render_title(out)?;
            man.render_name_section(out)?;
            out.write_all(synopsis(&man, &values).as_bytes())?;
            out.write_all(self.description.as_bytes())?;
            man.render_subcommands_section(out)?;
            man.render_options_section(out)?;
            out.write_all(help.sections.as_bytes())?;
            out.write_all(self.reference.as_bytes())
        })
    }

    /// Returns the page of a subcommand. It was not built as a part of the program, and so has no
    /// global options: those are on the program's page.
    fn subcommand(&self, subcommand: Command, name: String) -> String {
        let help = Help::of(&subcommand);
        let about = escape(&subcommand.get_about().unwrap().to_string());
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
        // Without the version pages do not change with it.
        Man::new(command).date(DATE).source("oci-hooks").manual(self.manual)
    }
}

/// Returns what `clap_mangen` writes in a synopsis of options with a value and of arguments after `--`, each with what is
/// to be there.
fn values(command: &Command) -> Vec<(String, String)> {
    let options = command.get_arguments().filter(|arg| !arg.is_positional());
    let with_value = options.filter(|arg| arg.get_action().takes_values());
    let entry = |arg: &clap::Arg| {
        let name = match (arg.get_long(), arg.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, short) => format!("-{} ", short.unwrap()),
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

/// Returns the synopsis with what `clap_mangen` leaves out.
fn synopsis(man: &Man, values: &[(String, String)]) -> String {
    let mut out = Vec::new();
    man.render_synopsis_section(&mut out).unwrap();
    let mut text = String::from_utf8(out).unwrap();
    for (written, meant) in values {
        text = text.replace(written, meant);
    }
    text
}

/// Returns the path of a man page.
pub fn man(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(name)
}

fn render(write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    write(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    // One preamble, of the title, is enough.
    let (preamble, rest) = text.split_at(text.find(".TH").unwrap());
    let rest = rest.replace(preamble, "");
    let lines = rest.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let rest = lines.collect::<Vec<_>>().join("\n");
    // Possible values belong below what they are values of.
    let rest = rest.replace(".br\n.br\n", ".br\n").replace(".RS 14\n", ".RS 7\n");
    format!("{preamble}{rest}\n")
}

/// What follows the options in `--help`, in roff.
#[derive(Default)]
struct Help {
    description: String,
    /// Those with one, such as the examples.
    sections: String,
}

impl Help {
    fn of(command: &Command) -> Self {
        let mut help = Help::default();
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for block in text.split("\n\n").filter(|block| !block.is_empty()) {
            assert_eq!(
                too_wide(block),
                None,
                "`--help` of {} breaks this line",
                command.get_name()
            );
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

/// Returns a line that `--help` would break in the middle. A paragraph of one line is broken where it should be.
fn too_wide(block: &str) -> Option<&str> {
    let is_filled = !block.contains('\n') && !block.starts_with(' ');
    block.lines().find(|line| !is_filled && line.chars().count() > WIDTH)
}

/// Returns lines as they are if they are indented, else for filling.
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

/// Escapes what roff would take for a command, and keeps what people copy as ASCII.
fn escape(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    let line = line.replace('\'', "\\(aq").replace('`', "\\(ga").replace('^', "\\(ha");
    let line = line.replace('~', "\\(ti").replace('"', "\\(dq");
    if line.starts_with('.') { format!("\\&{line}") } else { line }
}

#[test]
fn a_synopsis_has_the_values_of_options() {
    let option = clap::Arg::new("as").long("as").value_name("CONSUMER");
    let assembled = clap::Arg::new("as-is").long("as-is").action(clap::ArgAction::SetTrue);
    let command = Command::new("program").arg(option).arg(assembled);
    let text = synopsis(&Man::new(command.clone()), &values(&command));
    assert!(text.contains(r"[\fB\-\-as\fR \fICONSUMER\fR] [\fB\-\-as\-is\fR]"), "{text}");
}
