//! The man pages of this program, made from its command line and from `man/parts`.
//!
//! `UPDATE_GOLDEN=1 cargo test --bin oci-hooks man` writes them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::lint::{self, Level, LintOptions, Rule, Severity};
use oci_hooks::hooks::{Definition, PathCheck, SchemaOptions};
use serde_json::Value;

use crate::cli::Cli;

/// When the pages last changed in more than details; readers of a man page expect a date.
const DATE: &str = "2026-11-21";

const DESCRIPTION: &str = include_str!("../../../man/parts/description.roff");
const REFERENCE: &str = include_str!("../../../man/parts/reference.roff");

#[test]
fn pages_are_those_of_the_command_line() {
    let pages = pages();
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

#[test]
fn every_key_of_the_json_output_is_described() {
    let mut keys = BTreeSet::new();
    for file in [
        "cli/list.json",
        "cli/explain.json",
        "cli/validate.json",
        "cli/disable.json",
        "cli/migrate-any.json",
        "cli/pattern.json",
        "lint/output/findings.json",
        "lint/output/explain.json",
    ] {
        let text = fs::read_to_string(root().join("tests/data").join(file)).unwrap();
        collect_keys(&serde_json::from_str(&text).unwrap(), &mut keys);
    }
    let is_described = |key: &String| REFERENCE.contains(&format!("\\fB{key}\\fR"));
    let missing: Vec<_> = keys.iter().filter(|key| !is_described(key)).collect();
    assert!(missing.is_empty(), "not in man/parts/reference.roff: {missing:?}");
}

#[test]
fn examples_of_hook_files_have_no_mistakes() {
    let page = fs::read_to_string(man("oci-hooks-json.5")).unwrap();
    let examples = page.split(".nf\n").skip(1).map(|rest| rest.split_once(".fi").unwrap().0);
    let mut options = LintOptions::for_consumer(&PODMAN);
    // The one that disables a hook means it; the old format is there to be told about.
    for rule in ["always-false", "old-schema"] {
        options.levels.set(Rule::find(rule).unwrap(), Level::Allow);
    }
    let mut count = 0;
    for example in examples {
        let text = example.replace("\\(dq", "\"").replace("\\(ha", "^");
        let text = text.replace("\\-", "-").replace("\\e", "\\");
        let schema = SchemaOptions { path_check: PathCheck::Skip, ..SchemaOptions::default() };
        Definition::parse(text.as_bytes(), schema).unwrap_or_else(|e| panic!("{e:?}: {text}"));
        let findings = lint::lint_text(Path::new("example.json"), text.as_bytes(), &options);
        let bad: Vec<_> = findings.iter().filter(|f| f.severity > Severity::Note).collect();
        assert!(bad.is_empty(), "{bad:?}: {text}");
        count += 1;
    }
    assert!(count >= 5);
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        Value::Object(members) => {
            for (key, value) in members {
                keys.insert(key.clone());
                // Its keys are the user's.
                if key != "annotations" {
                    collect_keys(value, keys);
                }
            }
        }
        _ => {}
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn man(name: &str) -> PathBuf {
    root().join("man").join(name)
}

/// Returns the names of the pages of commands that there are.
fn committed() -> BTreeSet<String> {
    let names = fs::read_dir(man("")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.ends_with(".1") && name != "oci-hooks-runtime.1").collect()
}

/// Returns the pages, by file name.
fn pages() -> BTreeMap<String, String> {
    let program = Cli::command().disable_help_subcommand(true);
    let subcommands = program.get_subcommands().map(|subcommand| {
        let name = format!("oci-hooks-{}", subcommand.get_name());
        (format!("{name}.1"), subcommand_page(subcommand.clone(), name))
    });
    let mut pages: BTreeMap<_, _> = subcommands.collect();
    pages.insert("oci-hooks.1".to_owned(), program_page(program));
    pages
}

fn program_page(program: Command) -> String {
    let help = Help::of(&program);
    let man = page(program);
    render(|out| {
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        out.write_all(DESCRIPTION.as_bytes())?;
        man.render_subcommands_section(out)?;
        man.render_options_section(out)?;
        out.write_all(help.sections.as_bytes())?;
        out.write_all(REFERENCE.as_bytes())
    })
}

/// Returns the page of a subcommand. It was not built as a part of the program, and so has no global
/// options: those are on the program's page.
fn subcommand_page(subcommand: Command, name: String) -> String {
    let help = Help::of(&subcommand);
    let about = escape(&subcommand.get_about().unwrap().to_string());
    let bin_name = format!("oci-hooks {}", subcommand.get_name());
    let man = page(subcommand.bin_name(bin_name).display_name(name));
    render(|out| {
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        writeln!(out, ".SH DESCRIPTION\n{about}.")?;
        out.write_all(help.description.as_bytes())?;
        man.render_options_section(out)?;
        out.write_all(GLOBAL_OPTIONS.as_bytes())?;
        out.write_all(help.sections.as_bytes())?;
        out.write_all(SEE_ALSO.as_bytes())
    })
}

const GLOBAL_OPTIONS: &str = "\
.SH \"GLOBAL OPTIONS\"
\\fB\\-\\-hooks\\-dir\\fR, \\fB\\-\\-as\\fR, \\fB\\-\\-format\\fR, \\fB\\-\\-error\\-format\\fR, \
\\fB\\-\\-color\\fR and \\fB\\-\\-verbose\\fR are described in
.BR oci\\-hooks (1).
";

const SEE_ALSO: &str = "\
.SH \"SEE ALSO\"
.BR oci\\-hooks (1),
.BR oci\\-hooks\\-json (5)
";

fn page(command: Command) -> Man {
    // Without the version pages do not change with it.
    Man::new(command).date(DATE).source("oci-hooks").manual("OCI hooks")
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
    /// Paragraphs without a title.
    description: String,
    /// Those with one, such as the examples.
    sections: String,
}

impl Help {
    fn of(command: &Command) -> Self {
        let mut help = Help::default();
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
