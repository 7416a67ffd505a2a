//! README.md and docs/: every command as printed, in a Debian 12 that has just been installed. For README.md it has Rust
//! and a clone of this repository, for the others packages of it.
//!
//! A `console` block is run, unless a comment on the line before it says otherwise (`<!-- test: … -->`, see
//! [`page::Directive`]): lines that begin with `$ ` as the user `runner`, those with `# ` as root, each block from
//! the home of `runner` or the clone. The lines below a command are what it prints, `…` stands for any text, and alone for any
//! lines; without lines the output is not compared. One page is one session. `setup/PAGE.sh` makes beforehand, as root,
//! what the page presumes.

mod clone;
mod expected;
mod links;
mod page;
mod play;
mod session;
#[path = "../support/mod.rs"]
mod support;
mod syntax;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use page::{Directive, Page};
use support::{program, static_program};

/// Plays pages, each in a test of its own.
macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        /// The pages that are played.
        const PLAYED: &[&str] = &["README.md", $($page),*];

        $(
            #[test]
            fn $name() {
                assert_none(&play::play($page, debs()));
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
fn readme() {
    assert_none(&play::play_in_clone("README.md"));
}

/// Returns the names of the pages, the repository's as their directory.
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

/// Returns the packages: those in the directory `OCI_HOOKS_DEBS`, or else those of the programs as they are now.
fn debs() -> &'static [PathBuf] {
    static DEBS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    DEBS.get_or_init(|| {
        let directory = std::env::var_os("OCI_HOOKS_DEBS").map_or_else(build_debs, PathBuf::from);
        let entries = fs::read_dir(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let files = entries.map(|entry| entry.expect("the directory can be read").path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "deb")).collect()
    })
}

/// Packs the packages as a release does, and returns their directory.
fn build_debs() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs-packages");
    // `program::run` has a deadline, which a busy machine may pass.
    let status = Command::new(program::repository("contrib/dist"))
        .arg("--programs")
        .arg(static_program::directory())
        .arg("--output")
        .arg(&directory)
        .arg("--fast")
        .stdout(Stdio::null())
        .status()
        .expect("the script can be run");
    assert!(status.success(), "the packages cannot be made");
    directory
}

/// Fails with all findings at once.
#[track_caller]
fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{}", findings.join("\n\n"));
}

#[test]
fn every_page_with_commands_is_played() {
    let mut findings = Vec::new();
    let mut have_commands = BTreeSet::new();
    for name in pages() {
        let page = Page::parse(&read(&name));
        findings.extend(page.problems.iter().map(|problem| format!("{name}:{problem}")));
        for block in page.blocks.iter().filter(|block| block.language == "console") {
            if let Err(error) = block.commands() {
                findings.push(format!("{name}:{error}"));
            }
            if !matches!(block.directive, Directive::Skip(_)) {
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
fn first_commands_of_readme_are_run_as_printed() {
    let text = read("README.md");
    assert!(text.lines().count() <= 170, "README.md is long");
    let blocks = Page::parse(&text).blocks.into_iter().filter(|block| block.language == "console");
    let mut commands = Vec::new();
    for block in blocks.filter(|block| block.line <= 60) {
        let is_run = matches!(block.directive, Directive::None | Directive::Env(_));
        assert!(is_run, "README.md:{}: is not run as printed", block.line);
        commands.extend(block.commands().unwrap());
    }
    let is_first = |name: &str| commands.iter().any(|c| c.text == name && c.line <= 30);
    assert!(is_first("contrib/try") && is_first("tests/run"), "{commands:?}");
}

#[test]
fn settings_and_documents_can_be_read() {
    let mut findings = Vec::new();
    for name in pages() {
        for block in Page::parse(&read(&name)).blocks {
            if let Err(error) = syntax::check(&block) {
                findings.push(format!("{name}:{}: {error}", block.line));
            }
        }
    }
    assert_none(&findings);
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut names = pages();
    names.extend(["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned));
    assert_none(&links::check(&names));
}
