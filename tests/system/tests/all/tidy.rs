//! Rules of the source tree that the compiler does not check. `CONTRIBUTING.md` gives the reasons.
//!
//! Tests show each rule failing.

mod address;
mod claims;
mod docs;
mod english;
mod mirrors;
mod modules;
mod package;
mod published;
mod shape;
mod source;
mod strings;
mod tiers;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_testsupport::program;
use package::PackageFiles;
use source::{SourceFile, TidyFinding};

const CODE: [&str; 6] = ["src", "crates", "tests", "examples", "benches", "fuzz/fuzz_targets"];

#[track_caller]
fn assert_none(findings: impl IntoIterator<Item = TidyFinding>) {
    let findings: Vec<_> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[track_caller]
fn assert_each(rule: fn(&SourceFile) -> Vec<TidyFinding>) {
    assert_none(source::read(&CODE).iter().flat_map(rule));
}

#[test]
fn code_is_only_in_its_place() {
    assert_each(words::check);
}

#[test]
fn messages_contain_no_source_indentation() {
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
fn documentation_adds_to_names() {
    assert_none(docs::check_lengths(source::read(&CODE).iter()));
}

#[test]
fn comments_have_searchable_words() {
    assert_none(english::check_comments(source::read(&CODE).iter()));
}

#[test]
fn type_names_are_clear_without_their_modules() {
    assert_none(english::check_types(source::read(&CODE).iter()));
}

#[test]
fn functions_are_named_by_their_action_or_result() {
    assert_none(english::check_functions(source::read(&CODE).iter()));
}

#[test]
fn every_source_file_is_in_a_module() {
    assert_none(modules::check(&read("fuzz/Cargo.toml"), &source::read(&CODE)));
}

#[test]
fn published_packages_have_no_tests() {
    let size = |path: &Path| {
        // Files added by Cargo are not in the repository.
        fs::metadata(program::repository("").join(path)).map_or(0, |file| file.len())
    };
    for directory in published_dirs() {
        assert_none(published::check(&directory, &published::files(&directory), size));
    }
}

/// Returns the directories of the published packages.
fn published_dirs() -> Vec<PathBuf> {
    let crates = names("crates", "crates/").into_iter().chain([String::new()]);
    let is_published =
        |dir: &String| !read(&format!("{dir}/Cargo.toml")).contains("\npublish = false\n");
    crates.filter(is_published).map(PathBuf::from).collect()
}

#[test]
fn repository_address_is_only_in_cargo_toml() {
    let repository = &program::repository("");
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
    assert_none(package::check(&PackageFiles {
        programs: published_dirs().iter().flat_map(|directory| programs(directory)).collect(),
        examples: [("", ""), ("/more", "more/"), ("/podman", "podman/")]
            .iter()
            .flat_map(|(dir, before)| names(&format!("hooks.d-examples{dir}"), before))
            .collect(),
        examples_readme: read("hooks.d-examples/README.md"),
    }));
}

#[test]
fn each_claim_of_security_names_its_test() {
    assert_none(claims::check(&read("SECURITY.md"), |path| {
        program::repository("").join(path).exists()
    }));
}

#[test]
fn tiers_contain_all_tests() {
    let settings = read(".config/nextest.toml");
    assert_none(tiers::check_names(&settings, &source::read(&CODE)));
    assert_none(tiers::check_threats(&settings, &read("SECURITY.md")));
    let manifests: Vec<_> = names("crates", "crates/")
        .into_iter()
        .map(|directory| format!("{directory}/Cargo.toml"))
        .chain(["Cargo.toml".to_owned(), "tests/system/Cargo.toml".to_owned()])
        .map(|path| (path.clone(), read(&path)))
        .collect();
    let scripts = read("tests/run") + &read("tests/upgrade");
    assert_none(tiers::check_programs(&manifests, &scripts));
}

/// Two decision records about one topic would sooner or later contradict each other.
#[test]
fn decision_topics_are_recorded_once() {
    let crates = names("crates", "crates/").into_iter().map(|dir| format!("{dir}/DESIGN.md"));
    let pages = crates.filter(|page| program::repository(page).exists());
    let text: String = pages.chain(["docs/design.md".to_owned()]).map(|page| read(&page)).collect();
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

/// Returns the main file of each program of a package, and whether it has a man page.
fn programs(package: &Path) -> Vec<(PathBuf, bool)> {
    let bin = package.join("src/bin");
    let programs = names(bin.to_str().unwrap(), "");
    let has_page = |name: &String| {
        program::repository("").join(package).join("man").join(format!("{name}.1")).exists()
    };
    // The engine calls `init`, no user does.
    let programs = programs.iter().filter(|name| *name != "init");
    programs.map(|name| (bin.join(name).join("main.rs"), has_page(name))).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(program::repository(path.trim_start_matches('/'))).unwrap()
}

/// Returns the prefixed names in a directory, or nothing if it does not exist.
fn names(dir: &str, before: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(program::repository(dir));
    let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
    names.map(|name| format!("{before}{}", name.to_str().unwrap())).collect()
}
