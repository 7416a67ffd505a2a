//! The archive with its checksums, the RPMs built from it, and the tools that check packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::packages::{NAMES, debs, directory};
use oci_hooks_testsupport::program;
use pulldown_cmark::{Event, Parser, Tag};
use walkdir::WalkDir;

#[test]
fn checksums_cover_the_archive_and_the_packages() {
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict", "SHA256SUMS"]).current_dir(directory());
    let said = program::run(&mut check).success();
    assert_eq!(said.lines().count(), 1 + NAMES.len(), "{said}");
}

#[test]
fn lintian_finds_nothing() {
    for deb in debs() {
        let mut lintian = Command::new(program::find("lintian"));
        lintian.args(["--allow-root", "--fail-on", "error,warning"]).arg(deb);
        assert_eq!(program::run(&mut lintian).success(), "");
    }
}

/// Returns the names of a program's commands from its `--help`.
fn commands(program: &Path) -> Vec<String> {
    let help = program::run(Command::new(program).arg("--help")).success();
    let (_, listed) = help.split_once("\nCommands:\n").expect("there are commands");
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !matches!(*name, "" | "help")).map(str::to_owned).collect()
}

#[test]
fn packages_have_a_man_page_for_each_command() {
    let dir = program::temporary_directory();
    for (name, deb) in NAMES.into_iter().zip(debs()) {
        let root = dir.path().join(name);
        program::run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&root)).success();
        let mut expected = vec![format!("man1/{name}.1.gz")];
        match name {
            "oci-hooks" => expected.push("man5/oci-hooks-json.5.gz".to_owned()),
            "container-hook" => expected.push("man5/container-hook-template.5.gz".to_owned()),
            _ => {}
        }
        if name != "oci-hooks-runtime" {
            let commands = commands(&root.join("usr/bin").join(name));
            expected.extend(commands.iter().map(|command| format!("man1/{name}-{command}.1.gz")));
        }
        expected.sort();
        let man = root.join("usr/share/man");
        let files = WalkDir::new(&man).sort_by_file_name().into_iter().map(|file| file.unwrap());
        let files = files.filter(|file| file.file_type().is_file()).map(|file| file.into_path());
        let found: Vec<_> =
            files.map(|file| file.strip_prefix(&man).unwrap().display().to_string()).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn documentation_links_only_to_pages_of_its_package() {
    let dir = program::temporary_directory();
    let (mut links, mut nowhere) = (0, Vec::new());
    for deb in debs() {
        let root = dir.path().join(deb.file_stem().unwrap());
        let mut unpack = Command::new("dpkg-deb");
        program::run(unpack.arg("--extract").arg(deb).arg(&root)).success();
        let files = WalkDir::new(root).into_iter().map(|entry| entry.unwrap().into_path());
        for page in files.filter(|path| path.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(&page).unwrap();
            for event in Parser::new(&text) {
                let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event
                else {
                    continue;
                };
                links += 1;
                let target = dest_url.split('#').next().unwrap();
                if !target.contains(':') && !page.with_file_name(target).exists() {
                    nowhere.push(format!("{}: {dest_url}", page.display()));
                }
            }
        }
    }
    assert!(links > 100, "{links}");
    assert!(nowhere.is_empty(), "{nowhere:#?}");
}

#[test]
fn rpms_are_built_installed_and_erased() {
    program::require_root();
    let dir = program::temporary_directory();
    let top = dir.path().join("build");
    let mut build = Command::new(program::find("rpmbuild"));
    build.args(["-bb", "--quiet", "--define", "_binary_payload w1.gzdio", "--define"]);
    build.arg(format!("_topdir {}", top.display())).arg("--define");
    build.arg(format!("_sourcedir {}", directory().display()));
    program::run(build.arg(program::repository("contrib/rpm/oci-hooks.spec"))).success();
    let built = top.join("RPMS").join(std::env::consts::ARCH);
    let rpms: Vec<_> = fs::read_dir(built).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(rpms.len(), NAMES.len(), "{rpms:?}");

    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let rpm = |words: &[&str]| {
        let mut command = Command::new(program::find("rpm"));
        command.arg("--root").arg(&root).args(["--nodeps", "--noscripts"]).args(words);
        command
    };
    program::run(rpm(&["--install"]).args(&rpms)).success();
    for name in NAMES.into_iter().filter(|name| *name != "oci-hooks-runtime") {
        let mut run = Command::new("chroot");
        run.arg(&root).arg(format!("/usr/bin/{name}")).arg("--version");
        let expected = format!("{name} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(program::run(&mut run).success(), expected);
        assert!(root.join(format!("usr/share/man/man1/{name}.1.gz")).exists(), "{name}");
    }
    program::run(rpm(&["--erase"]).args(NAMES)).success();
    let mut find = Command::new("find");
    find.arg(&root).args(["-not", "-type", "d", "-not", "-path", "*/.rpmdb/*"]);
    assert_eq!(program::run(&mut find).success(), "");
}
