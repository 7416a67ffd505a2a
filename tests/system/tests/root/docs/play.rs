//! Runs a page as its reader would: all commands in order, in one fresh Debian 12.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::packages::debs;
use oci_hooks_testsupport::program;

use crate::docs::clone;
use crate::docs::expected::is_as_printed;
use crate::docs::page::{BlockDirective, DocsPage, PageBlock, PageCommand};
use crate::docs::session::{CommandResult, HOME, ReaderSession};

/// Parts of the names of files that our packages and programs create.
const OURS: [&str; 5] =
    ["oci-hooks", "oci_hooks", "container-hook", "step-runner", "garm-provider-runc"];
/// Paths where Debian records past installations, and systemd elapsed timers.
const DEBIAN: [&str; 6] = [
    "/var/lib/dpkg/",
    "/var/lib/apt/",
    "/var/log/apt/",
    "/var/log/journal/",
    "/var/cache/",
    "/var/lib/systemd/timers/",
];

/// The empty store that `container-hook` keeps for the next job of the user `runner`.
const EMPTY_STORE: [&str; 8] = [
    "/home/runner/.local/share/oci-hooks",
    "/home/runner/.local/share/oci-hooks/images",
    "/home/runner/.local/share/oci-hooks/jobs",
    "/home/runner/.local/share/oci-hooks/layers",
    "/home/runner/.local/share/oci-hooks/lock",
    "/tmp/oci-hooks-1000",
    "/tmp/oci-hooks-1000/jobs",
    "/tmp/oci-hooks-1000/leases",
];

/// Runs a page of the repository whose reader installs packages. Returns all differences to the page. The
/// first may cause the others.
pub(crate) fn run_page(name: &str) -> Vec<String> {
    let root = DebianRoot::boot();
    // The reader confirms all questions.
    fs::write(root.path("/etc/apt/apt.conf.d/yes"), "APT::Get::Assume-Yes \"true\";\n")
        .expect("root may write there");
    for deb in debs() {
        root.copy_in(&deb, HOME);
    }
    let setup = Path::new(name).with_extension("sh");
    let setup = setup.file_name().expect("a name").display().to_string();
    if program::repository("tests/system/tests/root/docs/setup").join(&setup).exists() {
        set_up(&root, &setup);
    }
    run_blocks(name, &root, ReaderSession::new(&root, HOME))
}

/// Runs a page whose reader has cloned the repository.
pub(crate) fn run_page_in_clone(name: &str) -> Vec<String> {
    let root = DebianRoot::boot_with(&clone::mounts());
    set_up(&root, "clone.sh");
    clone::copy_into(&root);
    let before = files(&root);
    let session = ReaderSession::new(&root, clone::DIRECTORY);
    let mut findings = run_blocks(name, &root, session);
    let is_expected = |file: &&String| !is_ours(file) || EMPTY_STORE.contains(&file.as_str());
    let now = files(&root);
    let left: Vec<_> = now.difference(&before).filter(|file| !is_expected(file)).cloned().collect();
    if !left.is_empty() {
        findings.push(format!("{name}: these are left:\n{}", left.join("\n")));
    }
    findings.extend(run_tests_with_least(&root));
    findings
}

/// Runs the tests of the clone in a system that has only what they need, and returns their output if they fail.
/// Those of `robustness` take minutes, and the page has run them.
fn run_tests_with_least(root: &DebianRoot) -> Option<String> {
    set_up(root, "least.sh");
    let command = "umask 077; env --ignore-environment \"HOME=$HOME\" \"PATH=$PATH\" LANG=C.UTF-8 \
                   cargo test -- --skip robustness::";
    let ended = ReaderSession::new(root, clone::DIRECTORY).run("runner", command);
    (ended.status != Some(0)).then(|| format!("`{command}` after least.sh:\n{}", ended.output))
}

/// Runs a script of `setup` as root.
fn set_up(root: &DebianRoot, script: &str) {
    root.copy_in(&program::repository("tests/system/tests/root/docs/setup").join(script), "/root");
    // It installs packages, which takes minutes on a busy machine.
    let mut command = root.command("bash");
    command.args(["-euo", "pipefail", &format!("/root/{script}")]).stdin(Stdio::null());
    let status = command.status().expect("the system has bash");
    assert!(status.success(), "{script}: {status}");
}

fn run_blocks(name: &str, root: &DebianRoot, mut session: ReaderSession<'_>) -> Vec<String> {
    let text = fs::read_to_string(program::repository(name)).expect("the page is there");
    let page = DocsPage::parse(&text);
    let before = files(root);
    let uninstall = page.section("Uninstall");
    let mut seen_uninstall = false;
    let mut findings = Vec::new();
    for block in &page.blocks {
        if let Some(lines) = &uninstall
            && seen_uninstall
            && block.line >= lines.end
        {
            seen_uninstall = false;
            findings.extend(find_unnamed_leftovers(name, &page, &text, &before, root));
        }
        seen_uninstall |= uninstall.as_ref().is_some_and(|lines| lines.contains(&block.line));
        run_block(name, block, root, &mut session, &mut findings);
    }
    if seen_uninstall {
        findings.extend(find_unnamed_leftovers(name, &page, &text, &before, root));
    }
    findings
}

fn run_block(
    name: &str,
    block: &PageBlock,
    root: &DebianRoot,
    session: &mut ReaderSession<'_>,
    findings: &mut Vec<String>,
) {
    match &block.directive {
        BlockDirective::File(path) => {
            let path = root.path(path);
            fs::create_dir_all(path.parent().expect("it is a file")).expect("root may make it");
            fs::write(path, &block.text).expect("root may write it");
        }
        BlockDirective::Append(path) => {
            let path = root.path(path);
            let text = fs::read_to_string(&path).unwrap_or_default() + &block.text;
            fs::write(path, text).expect("root may write it");
        }
        BlockDirective::None | BlockDirective::Exit(_) | BlockDirective::Env(_)
            if block.language == "console" =>
        {
            let commands = match block.commands() {
                Ok(commands) => commands,
                Err(error) => return findings.push(format!("{name}:{error}")),
            };
            session.return_to_start();
            if let BlockDirective::Env(variable) = &block.directive {
                session.run("runner", &format!("export {variable}"));
            }
            for (at, command) in commands.iter().enumerate() {
                let is_last = at + 1 == commands.len();
                let status = match block.directive {
                    BlockDirective::Exit(status) if is_last => status,
                    _ => 0,
                };
                let ended = session.run(command.user, &command.text);
                let why = difference(command, &ended, status);
                findings.extend(why.map(|why| format!("{name}:{}: {why}", command.line)));
            }
        }
        BlockDirective::None
        | BlockDirective::Exit(_)
        | BlockDirective::Env(_)
        | BlockDirective::Skip(_)
        | BlockDirective::Settings(_) => {}
    }
}

/// Returns the difference between a command's result and the page, if any.
fn difference(command: &PageCommand, ended: &CommandResult, status: i32) -> Option<String> {
    let PageCommand { text, output: printed, .. } = command;
    let output = &ended.output;
    if ended.status != Some(status) {
        let is = ended.status.map_or("does not end".to_owned(), |status| status.to_string());
        return Some(format!("`{text}` exits with {is} in place of {status}:\n{output}"));
    }
    // Without printed output, the command's output is not compared.
    if printed.iter().all(|line| line.trim().is_empty()) || is_as_printed(printed, output) {
        return None;
    }
    let printed = printed.join("\n");
    Some(format!("`{text}` prints other than the page says:\n{output}\n== the page\n{printed}"))
}

/// Returns all files of the system.
fn files(root: &DebianRoot) -> BTreeSet<String> {
    let found = program::run(root.command("find").args(["/", "/run", "-xdev"])).success();
    found.lines().map(str::to_owned).collect()
}

fn is_ours(file: &str) -> bool {
    OURS.iter().any(|ours| file.contains(ours))
}

/// Returns our leftover files that the section "Uninstall" does not name.
fn find_unnamed_leftovers(
    name: &str,
    page: &DocsPage,
    text: &str,
    before: &BTreeSet<String>,
    root: &DebianRoot,
) -> Option<String> {
    let lines = page.section("Uninstall")?;
    let section: Vec<_> = text.lines().skip(lines.start).take(lines.end - lines.start).collect();
    let section = section.join("\n");
    let named: Vec<_> = section
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|code| code.starts_with(['/', '~', '$']))
        .map(|path| path.replacen('~', HOME, 1))
        .collect();
    let is_named = |file: &String| named.iter().any(|path| file.starts_with(path.as_str()));
    let left: Vec<_> = files(root)
        .into_iter()
        .filter(|file| !before.contains(file) && is_ours(file))
        .filter(|file| !DEBIAN.iter().any(|debian| file.starts_with(debian)))
        .filter(|file| !is_named(file))
        .collect();
    let left = left.join("\n");
    let at = lines.start;
    (!left.is_empty()).then(|| format!("{name}:{at}: after \"Uninstall\" these are left:\n{left}"))
}
