//! Files uploaded to containers and downloaded after steps.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use oci_hooks_testsupport::github_runner::{merge, volume};
use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster};

/// File names that need quoting or exceed limits in a shell, a tar header or a line of text.
const NAMES: [&[u8]; 6] = [
    b"two\nlines",
    b" blank ",
    b"-rf",
    b"\xff\xfe not text",
    "ümlaut \u{1f600}".as_bytes(),
    b"'\"$(x)`",
];

#[test]
fn odd_names_modes_and_links_are_exchanged_both_ways() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("names");
    let given = runner.workspace().join("given");
    fs::create_dir_all(given.join("empty")).unwrap();
    for name in NAMES {
        fs::write(given.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let long = given.join("x".repeat(255));
    fs::write(&long, "long").unwrap();
    fs::set_permissions(&long, fs::Permissions::from_mode(0o751)).unwrap();
    symlink("/etc/passwd", given.join("link")).unwrap();
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let ended = runner
        .run("cp -a given made; find given -mindepth 1 -print0 | tr -cd '\\0' | wc -c; readlink made/link")
        .success();
    assert_eq!(ended.stdout(), format!("{}\n/etc/passwd\n", NAMES.len() + 3));
    let made = runner.workspace().join("made");
    for name in NAMES {
        assert_eq!(fs::read(made.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    let metadata = fs::metadata(made.join("x".repeat(255))).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o751);
    assert_eq!(fs::read_link(made.join("link")).unwrap(), OsStr::new("/etc/passwd"));
    assert!(made.join("empty").is_dir());
    // Files removed by a step are removed here too.
    runner.run("rm -r made").success();
    assert!(!made.exists() && given.exists());
    runner.cleanup();
}

#[test]
fn links_left_by_a_step_do_not_resolve_on_the_runner() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("links");
    let canary = runner.home().join("canary");
    fs::create_dir(&canary).unwrap();
    fs::write(canary.join("file"), "untouched").unwrap();
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let place = canary.display();
    runner.run(&format!("mkdir d; echo 1 >d/file; ln -s {place} out")).success();
    // A directory that also exists in the runner's work directory becomes a symlink to a directory with a
    // file of the same name.
    runner
        .run(&format!("mkdir -p {place}; echo bad >{place}/file; rm -r d; ln -s {place} d"))
        .success();
    runner.run("echo bad >d/file; echo bad >out/file; echo more >out/more").success();
    assert_eq!(fs::read_to_string(canary.join("file")).unwrap(), "untouched");
    assert_eq!(fs::read_dir(&canary).unwrap().count(), 1);
    assert!(runner.workspace().join("d").is_symlink());
    runner.cleanup();
}

#[test]
fn volumes_below_the_work_directory_are_mounted_as_requested() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("volumes");
    let shared = runner.workspace().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("given"), "by the runner\n").unwrap();
    let source = shared.display().to_string();
    let volumes = json!([volume(&source, "/shared", false), volume(&source, "/fixed", true)]);
    let job = merge(runner.job_container("alpine:3.20"), json!({"userMountVolumes": volumes}));
    runner.prepare(job, &[]);
    let script = "cat /shared/given /fixed/given; echo made >/shared/made; touch /fixed/x 2>/dev/null || echo fixed";
    let ended = runner.run(script).success();
    assert_eq!(ended.stdout(), "by the runner\nby the runner\nfixed\n");
    assert_eq!(fs::read_to_string(shared.join("made")).unwrap(), "made\n");
    assert!(!shared.join("x").exists());
    runner.cleanup();
}
