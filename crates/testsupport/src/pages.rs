//! Checks of the man pages of programs.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use oci_hooks_cli::man::ManPages;
use serde_json::Value;

/// Width of `--help` without a terminal.
const WIDTH: usize = 100;

/// Checks that the program's man page matches its command line, that `--help` wraps no line, and that no page
/// names a path of the repository.
#[track_caller]
pub fn check(pages: &ManPages, program: &Command) {
    let (file, written) = pages.written[0];
    assert_eq!(file, format!("{}.1", pages.program));
    let expected = pages.command_line_page(program.clone());
    // The first section is the title, which contains a date.
    for section in expected.split(".SH ").skip(1) {
        assert!(written.contains(section), "man/{file} must have this section:\n.SH {section}");
    }
    for command in program.get_subcommands().chain([program]) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let wide = help.split("\n\n").find_map(find_wide_line);
        assert_eq!(wide, None, "`--help` of {} breaks this line", command.get_name());
    }
    for (name, page) in pages.pages(program.clone()) {
        assert_eq!(repository_paths(&page), [""; 0], "{name}");
    }
}

/// Returns the JSON files of a directory, without `config.json`: the keys of the settings are explained by
/// `config --default`.
pub fn json_files(directory: impl AsRef<Path>) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_output = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "json") && !path.ends_with("config.json")
    };
    files.filter(is_output).collect()
}

/// Returns the keys of JSON output that the man page of the program does not describe.
pub fn undescribed_keys(pages: &ManPages, files: &[PathBuf]) -> Vec<String> {
    let mut keys = BTreeSet::new();
    for file in files {
        collect_keys(&serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap(), &mut keys);
    }
    assert!(!keys.is_empty());
    let (_, described) = pages.written[0].1.split_once(".SH \"EXIT STATUS\"").unwrap();
    keys.into_iter().filter(|key| !described.contains(&format!("\\fB{key}\\fR"))).collect()
}

fn collect_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        Value::Object(members) => {
            for (key, value) in members {
                keys.insert(key.clone());
                // The keys below are user-defined.
                if key != "annotations" {
                    collect_keys(value, keys);
                }
            }
        }
        _ => {}
    }
}

/// Returns a line that `--help` would wrap in the middle. One-line paragraphs are meant to be wrapped.
fn find_wide_line(block: &str) -> Option<&str> {
    let is_filled = !block.contains('\n') && !block.starts_with(' ');
    block.lines().find(|line| !is_filled && line.chars().count() > WIDTH)
}

/// Returns the words of a page that are paths in the repository, which readers of the page do not have.
pub fn repository_paths(page: &str) -> Vec<String> {
    let page = page.replace("\\fI", "").replace("\\fB", "");
    let is_one = |word: &&str| {
        let word = word.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '/');
        ["docs/", "src/", "tests/", "contrib/"].iter().any(|dir| word.starts_with(dir))
    };
    page.split_whitespace().filter(is_one).map(str::to_owned).collect()
}

#[test]
fn paths_in_the_repository_are_found() {
    let page = "see docs/steps.md, \\fIsrc/lib.rs\\fR (contrib/dist)\n.UR https://example.com/docs/steps.md\n\
                /usr/share/doc/step-runner/steps.md and /usr/share/doc/oci-hooks/docs/hooks.md";
    assert_eq!(repository_paths(page), ["docs/steps.md,", "src/lib.rs\\fR", "(contrib/dist)"]);
}
