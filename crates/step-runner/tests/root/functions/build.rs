//! Content of archives, and files excluded from them.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use oci_hooks_testsupport::program;
use serde_json::json;
use step_runner::function_oci::{FunctionError, OciFunction};
use step_runner::resolve::Interrupt;

use crate::functions::setup::{ARCHIVE, FunctionJob, inputs};

#[test]
fn same_files_give_the_same_archive() {
    let build = || {
        let job = FunctionJob::new();
        let outputs = job.build("1.2.3");
        (outputs, fs::read(job.path().join(ARCHIVE)).unwrap())
    };
    let (first, archive) = build();
    assert_eq!((first, archive.clone()), build());

    let job = FunctionJob::new();
    job.write("bin/arm64/run", "#!/bin/sh\necho on arm64\n", 0o700);
    job.build("1.2.3");
    assert_eq!(archive, fs::read(job.path().join(ARCHIVE)).unwrap(), "modes are 755 or 644");
    job.write("bin/arm64/run", "#!/bin/sh\necho on arm64\n", 0o644);
    job.build("1.2.3");
    assert_ne!(archive, fs::read(job.path().join(ARCHIVE)).unwrap());
}

#[test]
fn other_programs_read_the_archive() {
    let job = FunctionJob::new();
    job.write("lib/deep/file", "content", 0o600);
    symlink("deep/file", job.path().join("lib/link")).unwrap();
    let mut inputs = inputs("1.2.3-rc1");
    inputs["common"]["files"]["lib"] = json!("lib");
    job.run(OciFunction::Build, inputs).success();
    let layout = job.path().join("layout");
    let mut skopeo = Command::new(program::find("skopeo"));
    skopeo.args(["--insecure-policy", "copy", "--quiet", "--all"]);
    skopeo.arg(format!("oci-archive:{}:1.2.3-rc1", job.path().join(ARCHIVE).display()));
    program::run(skopeo.arg(format!("oci:{}:x", layout.display()))).success();

    let mut skopeo = Command::new(program::find("skopeo"));
    skopeo.args(["inspect", "--raw"]).arg(format!("oci:{}:x", layout.display()));
    let index: serde_json::Value =
        serde_json::from_str(&program::run(&mut skopeo).success()).unwrap();
    let entries = index["manifests"].as_array().unwrap().iter();
    let platforms: Vec<_> = entries.map(|entry| entry["platform"].clone()).collect();
    let platform = |name: &str| json!({"os": "linux", "architecture": name});
    assert_eq!(platforms, [platform("amd64"), platform("arm64")]);

    // Each entry as shown by `tar`.
    let mut found = Vec::new();
    for blob in fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let blob = fs::read(path).unwrap();
        if blob.starts_with(b"\x28\xb5\x2f\xfd") {
            let mut tar = Command::new(program::find("tar"));
            tar.env("TZ", "UTC").args(["--numeric-owner", "-tv"]);
            let archive = zstd::decode_all(blob.as_slice()).unwrap();
            let list = program::run_with_input(&mut tar, &archive).success();
            found.extend(
                list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")),
            );
        }
    }
    found.sort();
    let expected = [
        "-rw-r--r-- 0/0 58 1970-01-01 00:00 func.yml",
        "-rw-r--r-- 0/0 7 1970-01-01 00:00 lib/deep/file",
        "-rwxr-xr-x 0/0 24 1970-01-01 00:00 bin/run",
        "-rwxr-xr-x 0/0 24 1970-01-01 00:00 bin/run",
        "drwxr-xr-x 0/0 0 1970-01-01 00:00 bin/",
        "drwxr-xr-x 0/0 0 1970-01-01 00:00 bin/",
        "drwxr-xr-x 0/0 0 1970-01-01 00:00 lib/",
        "drwxr-xr-x 0/0 0 1970-01-01 00:00 lib/deep/",
        "lrwxrwxrwx 0/0 0 1970-01-01 00:00 lib/link -> deep/file",
    ];
    assert_eq!(found, expected);
}

#[test]
fn image_has_a_valid_step_file_and_failed_builds_keep_the_old_archive() {
    let job = FunctionJob::new();
    job.write(ARCHIVE, "old", 0o644);
    let names = || {
        let names = fs::read_dir(job.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = names();

    let ran = job.run(OciFunction::Build, json!({"version": "1.0.0"}));
    assert!(ran.failure().contains("no func.yml or step.yml among the files for linux/amd64"));
    let mut one = inputs("1.0.0");
    one["common"] = json!({});
    one["platforms"]["linux/arm64"]["files"]["func.yml"] = json!("func.yml");
    assert!(job.run(OciFunction::Build, one).failure().contains("for linux/amd64"));

    job.write("func.yml", "spec: {}\n---\nexce: {}\n", 0o644);
    let ran = job.run(OciFunction::Build, inputs("1.0.0"));
    assert!(ran.log.contains("func.yml:3:1: error: "), "{}", ran.log);
    assert!(ran.failure().contains("func.yml has 1 error"));

    job.write("func.yml", vec![b'#'; 5 << 20], 0o644);
    assert!(job.run(OciFunction::Build, inputs("1.0.0")).failure().contains("too large"));
    fs::remove_file(job.path().join("func.yml")).unwrap();
    assert!(
        job.run(OciFunction::Build, inputs("1.0.0")).failure().contains("func.yml: No such file")
    );

    let left: Vec<_> = before.into_iter().filter(|name| name != "func.yml").collect();
    assert_eq!(names(), left);
    assert_eq!(fs::read(job.path().join(ARCHIVE)).unwrap(), b"old");
}

#[test]
fn cancelled_build_leaves_nothing() {
    let job = FunctionJob::new();
    let call = job.call(OciFunction::Build, inputs("1.0.0"));
    // An endless file: only the interrupt, set at the first layer, stops the build.
    let zeros = fs::File::create(job.path().join("bin/amd64/run")).unwrap();
    zeros.set_len(1 << 42).unwrap();
    let interrupt = Interrupt::new().unwrap();
    let result = call.run(&interrupt, &|_, line| {
        assert!(line.starts_with("Files for all platforms: "), "{line}");
        interrupt.set();
    });
    assert!(matches!(result, Err(FunctionError::Cancelled)), "{result:?}");
    let names = fs::read_dir(job.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names.filter(|name| name.to_string_lossy().contains(ARCHIVE)).collect();
    assert_eq!(names, Vec::<std::ffi::OsString>::new());
}
