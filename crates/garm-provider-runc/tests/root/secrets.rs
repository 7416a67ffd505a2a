//! Tokens are present only where they are needed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_testsupport::garm::instances::encode;
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, with_both_runtimes, with_each_runtime};

/// Searches the instance for secrets: as a job, all files readable by the runner's user; as a pre-install script, the
/// whole file system.
const SEARCH: &str = "grep -rsl canary[-]token / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | \
    sed 's/^/@ found /'; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | \
    grep canary[-]token | sed 's/^/@ found /'; true";

#[test]
fn runner_credentials_are_in_memory_and_private() {
    with_each_runtime("", |world| {
        let record = world.run("one", "true", json!({}));
        for name in [".runner", ".credentials", ".credentials_rsaparams"] {
            let file = record.file(name);
            assert_eq!((file.mode.as_str(), file.owner.as_str()), ("600", "1001:1001"), "{name}");
            if name != ".runner" {
                assert_eq!(file.file_system, "tmpfs", "{name}");
                assert!(file.real_path.starts_with("/run/garm/"), "{name}: {}", file.real_path);
            }
        }
        world.provider().delete("one");
    });
}

#[test]
fn instance_token_is_not_in_the_instance() {
    with_each_runtime("", |world| {
        let search = encode(SEARCH.as_bytes());
        let fields =
            |extra_specs| json!({"extra_specs": extra_specs, "image": "docker.io/garm/runner:1"});
        let as_root = json!({"pre_install_scripts": {"01": search}});
        let record = world.run("jit", SEARCH, fields(as_root.clone()));
        assert!(record.records("found").is_empty(), "{:?}", record.records("found"));
        let token = world.garm.instance("jit").token;
        assert!(!record.text.contains(&token));
        // A registration token is in the instance during the registration, but not during the job.
        let mut with_token = fields(as_root);
        with_token["jit_config_enabled"] = json!(false);
        let search = SEARCH.replace("canary[-]", "REG.canary[-]");
        let record = world.run("token", &search, with_token);
        assert!(record.records("found").is_empty(), "{:?}", record.records("found"));
        world.provider().remove_all();
    });
}

#[test]
fn secrets_are_in_no_arguments_logs_or_readable_files() {
    with_both_runtimes("", |world| {
        world.garm.require_download_token("canary-download");
        let search = "while :; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; done";
        // The watcher reads all command lines of the host while instances are created.
        let seen = world.host().path().join("seen");
        let file = fs::File::create(&seen).unwrap();
        let mut watcher = std::process::Command::new("sh");
        watcher.args(["-c", search]).stdout(file);
        let mut watcher = world.host().spawn(&mut watcher);
        for (name, jit) in [("jit", true), ("token", false)] {
            let fields = json!({"jit_config_enabled": jit, "image": "docker.io/garm/base:1"});
            let mut document = world.garm.bootstrap(name, ENDLESS, fields);
            for tool in document["tools"].as_array_mut().unwrap() {
                tool["temp_download_token"] = json!("canary-download");
            }
            world.provider().create(&document);
            world.installation.wait_for_log(name, "working");
        }
        program::wait_until("the watcher has seen a job", || {
            find(&fs::read(&seen).unwrap(), b"sleep 1000").is_some()
        });
        watcher.kill().unwrap();
        watcher.wait().unwrap();
        let seen = fs::read(&seen).unwrap();
        assert!(find(&seen, b"canary-").is_none(), "{}", excerpt_around(&seen, b"canary-"));
        check_files(world);
        world.provider().remove_all();
        check_files(world);
    });
}

/// Checks that no file of the provider contains the instance's token, and no world-readable file any secret.
fn check_files(world: &GarmFixture<'_>) {
    let mut all = Vec::new();
    for directory in [
        world.installation.run_directory(),
        world.installation.store(),
        world.installation.log_directory(),
    ] {
        files(&directory, true, &mut all);
    }
    assert!(!all.is_empty());
    for (path, is_private) in all {
        let Ok(content) = fs::read(&path) else { continue };
        for word in ["canary-token", "canary-download"] {
            let found = find(&content, word.as_bytes());
            // The runner's own files may contain other canaries.
            assert!(
                found.is_none(),
                "{} has {}",
                path.display(),
                excerpt_around(&content, word.as_bytes())
            );
        }
        let found = find(&content, b"canary-");
        assert!(found.is_none() || is_private, "others may read {}", path.display());
    }
}

/// Lists the files below a directory, each with whether it is private to root.
fn files(directory: &Path, is_open: bool, all: &mut Vec<(PathBuf, bool)>) {
    let Ok(metadata) = fs::symlink_metadata(directory) else { return };
    let is_open = is_open && metadata.permissions().mode() & 0o001 != 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            files(&path, is_open, all);
        } else if metadata.is_file() {
            let is_readable = is_open && metadata.permissions().mode() & 0o004 != 0;
            all.push((path, !is_readable));
        }
    }
}

fn find(content: &[u8], word: &[u8]) -> Option<usize> {
    content.windows(word.len()).position(|window| window == word)
}

fn excerpt_around(content: &[u8], word: &[u8]) -> String {
    let Some(at) = find(content, word) else { return String::new() };
    let part = &content[at.saturating_sub(200)..content.len().min(at + 100)];
    String::from_utf8_lossy(part).into_owned()
}
