//! Common properties of all examples.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use oci_hooks::hooks::consumer::{CRIO, PODMAN};
use oci_hooks::hooks::lint::{self, LintOptions, Severity};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::hooks::{self, Consumer, LoadOptions};
use oci_hooks_testsupport::program;

use crate::examples::example::HookExample;

#[test]
fn examples_set_all_optional_fields() {
    for example in HookExample::read_all() {
        let name = example.name();
        let hook = &example.json["hook"];
        assert_eq!(example.json["version"], "1.0.0", "{name}");
        let path = Path::new(hook["path"].as_str().expect("a path"));
        assert!(path.is_absolute(), "{name}");
        assert_eq!(
            Some(hook["args"][0].as_str().expect("args")),
            path.file_name().unwrap().to_str()
        );
        assert!(hook["env"][0].as_str().expect("env").starts_with("PATH="), "{name}");
        assert!(hook["timeout"].as_i64().expect("a timeout") > 0, "{name}");
        assert!(!example.stages().is_empty(), "{name}");
        let extension = example.stages().contains(&"precreate");
        assert_eq!(extension, example.file.parent().unwrap().ends_with("podman"), "{name}");
    }
}

/// Installed examples are writable only by their owner.
#[test]
fn examples_load_and_lint_without_findings() {
    let place = program::temporary_directory();
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let [programs, common, podman] =
        ["bin", "hooks.d", "podman"].map(|name| place.path().join(name));
    for directory in [&programs, &common, &podman] {
        fs::create_dir(directory).expect("the directory is ours");
        set_mode(directory, 0o755);
    }
    for entry in fs::read_dir(program::repository("hooks.d-examples/bin")).expect("programs") {
        let entry = entry.expect("the directory can be read");
        let program = programs.join(entry.file_name());
        fs::copy(entry.path(), &program).expect("programs can be copied");
        set_mode(&program, 0o755);
    }
    for example in HookExample::read_all() {
        let example = example.with_program_dir(&programs);
        let directory = if example.stages().contains(&"precreate") { &podman } else { &common };
        let file = directory.join(example.name());
        fs::write(&file, example.json.to_string()).expect("the directory is ours");
        set_mode(&file, 0o644);
    }

    let load = |consumer: &Consumer, dirs: &[&Path]| {
        let mut options = LoadOptions::for_consumer(consumer);
        options.dirs = dirs.iter().map(|dir| dir.to_path_buf()).collect();
        let loaded = hooks::load(&options);
        assert!(loaded.problems.is_empty(), "{}: {:?}", consumer.name, loaded.problems);
        loaded.hooks.len()
    };
    assert_eq!(load(&PODMAN, &[&common, &podman]), HookExample::read_all().len());
    assert!(load(&CRIO, &[&common]) >= 10);

    let mut options = LintOptions::for_consumer(&PODMAN);
    options.dirs = vec![common, podman];
    options.files = Some(TrustOptions::of_process());
    let report = lint::lint_dirs(&options);
    assert_eq!(report.hook_files, HookExample::read_all().len());
    let mistakes: Vec<_> = report
        .findings()
        .filter(|finding| finding.severity != Severity::Note)
        .map(|finding| format!("{}: {}", finding.path.display(), finding.message))
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

#[test]
fn example_patterns_are_anchored_at_both_ends() {
    for example in HookExample::read_all() {
        let when = &example.json["when"];
        let mut patterns = Vec::new();
        for (key, value) in when["annotations"].as_object().into_iter().flatten() {
            patterns.extend([key.as_str(), value.as_str().expect("a pattern")]);
        }
        for command in when["commands"].as_array().into_iter().flatten() {
            patterns.push(command.as_str().expect("a pattern"));
        }
        for pattern in patterns {
            assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{pattern}");
        }
    }
}

#[test]
fn each_example_and_program_is_described() {
    let directory = program::repository("hooks.d-examples");
    let readme = fs::read_to_string(directory.join("README.md")).expect("there is a README");
    for example in HookExample::read_all() {
        assert!(readme.contains(&format!("`{}`", example.name())), "{}", example.name());
    }
    let used: Vec<_> =
        HookExample::read_all().into_iter().map(|example| example.json["hook"].clone()).collect();
    for entry in fs::read_dir(directory.join("bin")).expect("there are programs") {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "state.sh" || used.iter().any(|hook| hook["args"][0] == name.as_str()),
            "no example runs bin/{name}"
        );
    }
}

#[test]
fn programs_parse_in_dash_and_busybox() {
    for entry in fs::read_dir(program::repository("hooks.d-examples/bin")).expect("programs") {
        let path = entry.unwrap().path();
        program::run(Command::new(program::find("dash")).arg("-n").arg(&path)).success();
        program::run(Command::new(program::find("busybox")).args(["sh", "-n"]).arg(&path))
            .success();
    }
}

/// Hook programs parse a state correctly, whatever text a container's user puts into annotations.
#[test]
fn annotations_cannot_confuse_the_state_parser() {
    let read = |annotations: &str, call: &str| {
        let state = format!(
            r#"{{"ociVersion":"1.0.2","id":"one","status":"created","pid":42,"bundle":"/b","annotations":{annotations}}}"#
        );
        let script = format!(". ./state.sh; {call}");
        let mut shell = Command::new("dash");
        shell.current_dir(program::repository("hooks.d-examples/bin")).args(["-c", &script]);
        program::run_with_input(&mut shell, state.as_bytes())
    };
    let spoof = r#"{"id":"two","pid":"7","a":"\"id\":\"two\",\"pid\":7,\"k\":\"v\"","k":"yes"}"#;
    assert_eq!(read(spoof, "state_string id").success(), "one\n");
    assert_eq!(read(spoof, "state_string status").success(), "created\n");
    assert_eq!(read(spoof, "state_pid").success(), "42\n");
    assert_eq!(read(spoof, "annotation k").success(), "yes\n");
    assert!(read(r#"{"k":"a\"b"}"#, "annotation k").failure().contains("not allowed"));
    assert!(read("{}", "annotation k").failure().contains("no annotation k"));
    assert!(read("{}", "annotation status").failure().contains("no annotation status"));
}
