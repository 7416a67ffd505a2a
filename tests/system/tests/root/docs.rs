//! README.md and docs/: every command as printed, in a freshly installed Debian 12. For README.md the system
//! has Rust and a clone of this repository, for the other pages their packages.
//!
//! A `console` block is run, unless a comment on the line before says otherwise (`<!-- test: … -->`, see
//! [`page::BlockDirective`]): lines that start with `$ ` as the user `runner`, lines that start with `# ` as root,
//! each block from the home of `runner` or the clone. The lines below a command are its expected output,
//! where `…` stands for any text, and alone on a line for any lines; without such lines the output is not
//! compared. One page is one session. Before it, `setup/PAGE.sh` runs as root and creates what the page
//! assumes.

mod clone;
mod expected;
mod links;
mod page;
mod play;
mod session;
mod syntax;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use oci_hooks_testsupport::program;
use page::{BlockDirective, DocsPage};

/// Defines a test for each page.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        /// Pages that are run.
        const PLAYED: &[&str] = &["README.md", $($page),*];

        $(
            #[test]
            fn $name() {
                assert_none(&play::run_page($page));
            }
        )*
    };
}

pages! {
    install: "docs/install.md",
    container_hook: "docs/container-hook.md",
    container_hook_settings: "docs/container-hook-settings.md",
    garm: "docs/garm.md",
    hooks: "docs/hooks.md",
    nri: "docs/nri.md",
    steps: "docs/steps.md",
    templates: "docs/templates/README.md",
}

#[test]
fn readme_commands_work_as_printed() {
    assert_none(&play::run_page_in_clone("README.md"));
}

/// Returns the names of the pages, relative to the repository.
fn pages() -> Vec<String> {
    let mut names = vec!["README.md".to_owned()];
    let mut directories = vec![PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(program::repository("").join(&directory)).expect("it is there");
        for entry in entries.map(|entry| entry.expect("the directory can be read")) {
            let path = directory.join(entry.file_name());
            if entry.path().is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                names.push(path.to_str().expect("names are text").to_owned());
            }
        }
    }
    names.sort();
    names
}

fn read(name: &str) -> String {
    fs::read_to_string(program::repository(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Panics with all findings at once.
#[track_caller]
fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{}", findings.join("\n\n"));
}

#[test]
fn every_page_with_commands_is_tested() {
    let mut findings = Vec::new();
    let mut have_commands = BTreeSet::new();
    for name in pages() {
        let page = DocsPage::parse(&read(&name));
        findings.extend(page.problems.iter().map(|problem| format!("{name}:{problem}")));
        for block in page.blocks.iter().filter(|block| block.language == "console") {
            if let Err(error) = block.commands() {
                findings.push(format!("{name}:{error}"));
            }
            if !matches!(block.directive, BlockDirective::Skip(_)) {
                have_commands.insert(name.clone());
            }
        }
    }
    let played: BTreeSet<_> = PLAYED.iter().map(|name| (*name).to_owned()).collect();
    let forgotten = have_commands.difference(&played);
    findings.extend(forgotten.map(|name| format!("{name}: no test plays it")));
    let empty = played.difference(&have_commands);
    findings.extend(empty.map(|name| format!("{name}: there is nothing to play")));
    assert_none(&findings);
}

#[test]
fn first_commands_of_readme_work_as_printed() {
    let text = read("README.md");
    assert!(text.lines().count() <= 170, "README.md is long");
    let blocks =
        DocsPage::parse(&text).blocks.into_iter().filter(|block| block.language == "console");
    let mut commands = Vec::new();
    for block in blocks.filter(|block| block.line <= 60) {
        let is_run = matches!(block.directive, BlockDirective::None | BlockDirective::Env(_));
        assert!(is_run, "README.md:{}: is not run as printed", block.line);
        commands.extend(block.commands().unwrap());
    }
    let is_first = |name: &str| commands.iter().any(|c| c.text == name && c.line <= 30);
    assert!(is_first("contrib/try") && is_first("tests/run"), "{commands:?}");
}

#[test]
fn documented_settings_and_documents_can_be_parsed() {
    let mut findings = Vec::new();
    for name in pages() {
        for block in DocsPage::parse(&read(&name)).blocks {
            if let Err(error) = syntax::check(&block) {
                findings.push(format!("{name}:{}: {error}", block.line));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn links_lead_to_existing_files_and_headings() {
    let mut names = pages();
    names.extend(["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    for entry in fs::read_dir(program::repository("crates")).expect("the crates are there") {
        let name = entry.expect("it can be read").file_name();
        let pages =
            ["DESIGN.md", "README.md"].map(|page| format!("crates/{}/{page}", name.display()));
        names.extend(pages.into_iter().filter(|page| program::repository(page).exists()));
    }
    assert_none(&links::check(&names));
}
