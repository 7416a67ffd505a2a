//! Scripts use the machine's package mirrors.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::program;

const SCRIPT: &str = "tests/support/mirror.sh";

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

#[test]
fn mirror_addresses_are_in_one_script() {
    let root = &program::repository("");
    let mut found = Vec::new();
    for directory in [".ci", "benches", "contrib", "crates", "fuzz", "tests"] {
        files(&root.join(directory), &mut found);
    }
    let addresses = [concat!("://deb.", "debian.org"), concat!("://archive.", "ubuntu.com")];
    found.retain(|path| {
        let text = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        addresses.iter().any(|address| text.contains(address))
    });
    assert_eq!(found, [root.join(SCRIPT)]);
}

/// Runs the script with a fake apt that knows these repositories, each with origin, label and address.
fn mirror(repositories: &str, arguments: &[&str]) -> String {
    let place = tempfile::tempdir().unwrap();
    let apt = place.path().join("apt-get");
    fs::write(&apt, format!("#!/bin/sh\ncat <<'END'\n{repositories}\nEND\n")).unwrap();
    fs::set_permissions(&apt, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", place.path().display());
    let script = program::repository(SCRIPT);
    let mut command = Command::new("bash");
    command.arg(script).args(arguments).env_clear().env("PATH", path);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn mirrors_match_those_of_the_machine() {
    let place = tempfile::tempdir().unwrap();
    let list = place.path().join("mirrors.list");
    fs::write(&list, "# none\nhttp://near.example.com/ubuntu/\tpriority:1\n").unwrap();
    let repositories = format!(
        "Other/Debian http://other.example.com/\n\
         Debian/Debian http://near.example.com/debian/\n\
         Debian/Debian http://far.example.com/debian/\n\
         Debian/Debian-Security http://near.example.com/security/\n\
         Ubuntu/Ubuntu mirror+file:{}",
        list.display()
    );
    assert_eq!(mirror(&repositories, &["debian"]), "http://near.example.com/debian\n");
    assert_eq!(mirror(&repositories, &["ubuntu"]), "http://near.example.com/ubuntu\n");
    let sources = mirror(&repositories, &["debian", "trixie", "deb-src"]);
    let sources: Vec<_> = sources.lines().map(|line| line.split(' ').collect()).collect();
    let expected = [
        ("http://near.example.com/debian", "trixie"),
        ("http://near.example.com/debian", "trixie-updates"),
        ("http://near.example.com/security", "trixie-security"),
    ];
    for (words, (address, suite)) in sources.iter().zip(expected) {
        let words: &Vec<&str> = words;
        assert_eq!((words[0], words[2], words[3]), ("deb-src", address, suite));
    }
    assert_eq!(sources.len(), expected.len());
}
