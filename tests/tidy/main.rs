//! Rules about the source tree that the compiler does not know. `CONTRIBUTING.md` gives the reasons.
//!
//! Each rule comes with tests that show it failing.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod address;
mod docs;
mod layers;
mod mirrors;
mod modules;
mod package;
mod published;
mod shape;
mod source;
mod strings;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use package::Package;
use source::{Finding, Source};

const CODE: [&str; 5] = ["src", "tests", "examples", "benches", "fuzz/fuzz_targets"];

#[track_caller]
fn assert_none(findings: impl IntoIterator<Item = Finding>) {
    let findings: Vec<_> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[track_caller]
fn assert_each(rule: fn(&Source) -> Vec<Finding>) {
    assert_none(source::read(&CODE).iter().flat_map(rule));
}

#[test]
fn modules_name_only_modules_below_them() {
    assert_each(layers::check);
}

#[test]
fn misplaced_code_is_nowhere() {
    assert_each(words::check);
}

#[test]
fn messages_have_no_blanks_of_the_source() {
    assert_each(strings::check);
}

#[test]
fn files_are_short_and_mod_rs_has_no_logic() {
    assert_each(shape::check);
}

#[test]
fn public_items_are_documented() {
    assert_each(docs::check);
}

#[test]
fn documentation_says_more_than_names() {
    assert_none(docs::check_lengths(source::read(&CODE).iter()));
}

#[test]
fn no_file_is_forgotten() {
    let manifests = ["", "fuzz"].map(|dir| (Path::new(dir), read(&format!("{dir}/Cargo.toml"))));
    assert_none(modules::check(&manifests, &source::read(&CODE)));
}

#[test]
fn the_published_package_has_what_it_includes_and_no_tests() {
    let size = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    assert_none(published::check(&published::files(), &source::read(&CODE), size));
}

#[test]
fn the_address_of_the_repository_is_in_cargo_toml_alone() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut findings = Vec::new();
    for file in address::files(repository, Path::new("")) {
        let bytes = fs::read(repository.join(&file)).unwrap();
        if file != Path::new("Cargo.toml") {
            let text = String::from_utf8_lossy(&bytes);
            findings.extend(address::check(&file, &text, env!("CARGO_PKG_REPOSITORY")));
        }
    }
    assert_none(findings);
}

#[test]
fn programs_have_man_pages_and_examples_are_described() {
    assert_none(package::check(&Package {
        manifest: read("Cargo.toml"),
        man: names("man", ""),
        examples: [("", ""), ("/more", "more/"), ("/podman", "podman/")]
            .iter()
            .flat_map(|(dir, before)| names(&format!("hooks.d-examples{dir}"), before))
            .collect(),
        examples_readme: read("hooks.d-examples/README.md"),
    }));
}

/// Two about one matter contradict each other sooner or later.
#[test]
fn one_decision_is_about_git_and_one_about_new_privileges() {
    let text = read("docs/architecture.md");
    let decisions: Vec<_> = text.split("\n- **").skip(1).collect();
    for matter in ["git", "no_new_privs", "no_new_privileges"] {
        let is_about = |decision: &&&str| {
            decision
                .to_lowercase()
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == matter)
        };
        let found: Vec<_> = decisions.iter().filter(is_about).collect();
        let expected = if matter == "no_new_privileges" { 0 } else { 1 };
        assert_eq!(found.len(), expected, "{matter}: {found:#?}");
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path.trim_start_matches('/')))
        .unwrap()
}

/// Returns the names in a directory, with something before each; none if it does not exist.
fn names(dir: &str, before: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(dir));
    let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
    names.map(|name| format!("{before}{}", name.to_str().unwrap())).collect()
}
