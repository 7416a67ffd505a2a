//! Hooks of `restore` from a checkpoint, with a fake runtime that records its arguments.

use serde_json::json;

use crate::setup::{CONFIG, WrapperSetup, text};

/// Returns a setup whose fake runtime prints this version.
fn setup(version: &str, stages: &[&str]) -> WrapperSetup {
    let setup = WrapperSetup::new();
    setup.fake(&format!(
        "[ \"$1\" = --version ] && {{ echo '{version}'; exit; }}\nprintf '%s ' \"$@\" >argv; exit 7"
    ));
    setup.hooks.hook("a.json", "true", json!({"always": true}), stages);
    setup
}

const LINE: &str = "restore --image-path /i --detach --bundle . c";

#[test]
fn hooks_that_the_runtime_runs_are_injected() {
    for (version, stages) in [
        ("runc version 1.1.5", &["prestart", "createRuntime", "poststop"][..]),
        ("crun version 1.8.1", &["poststop"]),
        ("any", &[]),
    ] {
        let setup = setup(version, stages);
        let ran = setup.run(LINE);
        assert_eq!(ran.status.code(), Some(7), "{version}: {}", text(&ran.stderr));
        for stage in stages.iter().filter(|stage| **stage != "prestart") {
            assert!(setup.config().contains(&format!("\"{stage}\"")), "{version}: {stage}");
        }
        assert_eq!(std::fs::read_to_string(setup.path("argv")).unwrap().trim_end(), LINE);
    }
}

#[test]
fn hook_that_the_runtime_skips_is_an_error_or_a_warning() {
    for (version, stage, reason) in [
        ("runc version 1.1.5", "createContainer", "runc does not run createContainer hooks"),
        ("runc version 1.1.5", "poststart", "runc does not run poststart hooks"),
        ("crun version 1.8.1", "createRuntime", "crun does not run createRuntime hooks"),
        ("x", "poststop", "this runtime is not known to run poststop hooks"),
    ] {
        let setup = setup(version, &[stage]);
        let ran = setup.run(LINE);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{version}: {said}");
        assert!(said.contains(reason) && said.contains("a.json"), "{said}");
        assert!(said.contains("strict = false"), "{said}");
        assert_eq!(setup.config(), CONFIG);
        assert!(!setup.was_called());

        let ran = setup.with_settings("strict = false", LINE).output().unwrap();
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(7), "{version}: {said}");
        assert!(said.contains("level=warning") && said.contains(reason), "{said}");
        assert!(setup.config().contains(stage));
    }
}

#[test]
fn precreate_hooks_rewrite_the_configuration_of_a_restored_container() {
    let setup = setup("any", &[]);
    let script = "sed s,/bin/sh,/bin/ash,";
    setup.hooks.hook("b.json", script, json!({"always": true}), &["precreate"]);
    let ran = setup.run(LINE);
    assert_eq!(ran.status.code(), Some(7), "{}", text(&ran.stderr));
    assert!(setup.config().contains("/bin/ash"), "{}", setup.config());
}
