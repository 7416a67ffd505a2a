//! What holds for the man pages of every program of this package.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use serde_json::Value;

use crate::program::man::Pages;

/// The width of `--help` where there is no terminal.
const WIDTH: usize = 100;

/// Checks that the written page of the program says what its command line is, that `--help` breaks no line, and that
/// no page names a path of the repository.
#[track_caller]
pub fn check(pages: &Pages, program: &Command) {
    let (file, written) = pages.written[0];
    assert_eq!(file, format!("{}.1", pages.program));
    let expected = pages.of_command_line(program.clone());
    // The first is the title, which has a date of its own.
    for section in expected.split(".SH ").skip(1) {
        assert!(written.contains(section), "man/{file} must have this section:\n.SH {section}");
    }
    for command in program.get_subcommands().chain([program]) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let wide = help.split("\n\n").find_map(too_wide);
        assert_eq!(wide, None, "`--help` of {} breaks this line", command.get_name());
    }
    for (name, page) in pages.all(program.clone()) {
        assert_eq!(repository_paths(&page), [""; 0], "{name}");
    }
}

/// Returns the JSON files of a directory of `tests/data`. Keys of the settings are explained in the file that
/// `config --default` prints.
pub fn json_files(directory: &str) -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(directory);
    let files = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let is_output = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == "json") && !path.ends_with("config.json")
    };
    files.filter(is_output).collect()
}

/// Returns the keys in files of JSON output that the page of the program does not describe.
pub fn undescribed_keys(pages: &Pages, files: &[PathBuf]) -> Vec<String> {
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
                // Its keys are the user's.
                if key != "annotations" {
                    collect_keys(value, keys);
                }
            }
        }
        _ => {}
    }
}

/// Returns a line that `--help` would break in the middle. A paragraph of one line is broken where it should be.
fn too_wide(block: &str) -> Option<&str> {
    let is_filled = !block.contains('\n') && !block.starts_with(' ');
    block.lines().find(|line| !is_filled && line.chars().count() > WIDTH)
}

/// Returns words of a page that are paths in the repository, which readers of the page do not have.
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
