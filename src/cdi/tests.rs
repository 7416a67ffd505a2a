use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::hooks::trust::TrustOptions;

/// A case that was recorded from version 1.1.0 of the Go package.
#[derive(Deserialize)]
struct RecordedCase {
    name: String,
    /// The files of each directory.
    dirs: Vec<BTreeMap<String, String>>,
    config: Value,
    devices: Vec<String>,
    /// Names of the devices that can be selected.
    listed: Vec<String>,
    /// The new configuration, or `None` for an error.
    expected: Option<Value>,
}

/// Writes the files, and returns the directories.
fn write(root: &Path, dirs: &[BTreeMap<String, String>]) -> Vec<PathBuf> {
    let dir = |(index, files): (usize, &BTreeMap<String, String>)| {
        let dir = root.join(index.to_string());
        fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        dir
    };
    dirs.iter().enumerate().map(dir).collect()
}

#[test]
fn devices_and_configurations_equal_those_of_go() {
    let cases: Vec<RecordedCase> =
        serde_json::from_str(include_str!("../../tests/data/cdi/vectors.json")).unwrap();
    let mut differences = Vec::new();
    for case in &cases {
        let root = tempfile::tempdir().unwrap();
        let registry = DeviceRegistry::load(&write(root.path(), &case.dirs));
        let listed: Vec<_> = registry.devices().map(|entry| entry.name.to_owned()).collect();
        let config = serde_json::to_vec(&case.config).unwrap();
        let result = registry.select(&case.devices).and_then(|selection| selection.apply(&config));
        let found = result.map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        if listed != case.listed || found.as_ref().ok() != case.expected.as_ref() {
            let problems: Vec<_> =
                registry.problems().iter().map(|it| it.source.to_string()).collect();
            let (name, expected) = (&case.name, &case.expected);
            differences
                .push(format!("{name}: {listed:?} {problems:?} {found:?}\nexpected {expected:?}"));
        }
    }
    assert!(cases.len() > 200);
    assert!(
        differences.is_empty(),
        "{} of {}:\n{}",
        differences.len(),
        cases.len(),
        differences.join("\n")
    );
}

const LAMP: &str = "cdiVersion: 1.1.0
kind: vendor.com/lamp
devices:
- name: red
  containerEdits:
    env: [LAMP=red]
    hooks:
    - {hookName: createContainer, path: HOOK}
";

fn one_file(root: &Path, text: &str) -> DeviceRegistry {
    let files = BTreeMap::from([("a.yaml".to_owned(), text.to_owned())]);
    DeviceRegistry::load(&write(root, &[files]))
}

#[test]
fn everything_else_is_preserved_byte_for_byte() {
    let root = tempfile::tempdir().unwrap();
    let registry = one_file(root.path(), &LAMP.replace("HOOK", "/bin/true"));
    let mut selection = registry.select(&["vendor.com/lamp=red".to_owned()]).unwrap();
    selection.empty_env = true;
    let config = "{\n  \"process\": {\"x\": 1.50e400, \"env\": [\"A=1\",  \"LAMP=off\"]},\n  \"hooks\": null,\n  \"vendor\" : [ 1 ]\n}\n";
    let expected = "{\n  \"process\": {\"x\": 1.50e400, \"env\": [\n      \"A=1\",\n      \"LAMP=red\"\n    ]},\n  \"hooks\": {\n    \"createContainer\": [\n      {\n        \"path\": \"/bin/true\",\n        \"env\": []\n      }\n    ]\n  },\n  \"vendor\" : [ 1 ]\n}\n";
    let text = String::from_utf8(selection.apply(config.as_bytes()).unwrap()).unwrap();
    assert_eq!(text, expected);
}

#[test]
fn a_configuration_that_runtimes_read_differently_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    let registry = one_file(root.path(), &LAMP.replace("HOOK", "/bin/true"));
    let selection = registry.select(&["vendor.com/lamp=red".to_owned()]).unwrap();
    for config in [
        "{\"Process\":{}}",
        "{\"process\":{\"env\":[],\"env\":[]}}",
        "{\"process\":{\"env\":{}}}",
        "[]",
    ] {
        let error = selection.apply(config.as_bytes()).unwrap_err();
        assert!(matches!(error, DeviceError::Config(_)), "{config}: {error}");
    }
}

#[test]
fn a_specification_or_hook_that_others_can_change_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    let hook = root.path().join("hook");
    fs::write(&hook, "#!/bin/sh\n").unwrap();
    let registry = one_file(root.path(), &LAMP.replace("HOOK", &hook.to_string_lossy()));
    let selection = registry.select(&["vendor.com/lamp=red".to_owned()]).unwrap();
    let trusted = TrustOptions::of_process();
    selection.check_trust(&trusted).unwrap();
    for path in [hook, root.path().join("0/a.yaml"), root.path().join("0")] {
        let mode = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = selection.check_trust(&trusted).unwrap_err();
        assert_eq!(error.path(), path, "{error}");
        fs::set_permissions(&path, mode).unwrap();
    }
}

#[test]
fn errors_name_the_position() {
    let root = tempfile::tempdir().unwrap();
    let text = LAMP.replace("HOOK", "/bin/true").replace("hookName", "hookname");
    let registry = one_file(root.path(), &text);
    let [problem] = registry.problems() else { panic!("{:?}", registry.problems()) };
    assert!(problem.to_string().ends_with("0/a.yaml:8:18"), "{problem}");
    let CdiSpecError::Value { pointer, message, .. } = &problem.source else {
        panic!("{problem:?}")
    };
    assert_eq!(pointer, "/devices/0/containerEdits/hooks/0/hookname");
    assert_eq!(message, "unknown key \"hookname\": did you mean `hookName`?");
}

proptest! {
    #[test]
    fn any_text_is_read_without_panic(text in "(?s).{0,200}") {
        let _ = CdiSpec::parse(text.as_bytes());
    }

    #[test]
    fn any_value_in_any_place_is_read_without_panic(
        key in "cdiVersion|kind|annotations|devices|containerEdits",
        inner in "env|deviceNodes|netDevices|hooks|mounts|intelRdt|additionalGids|name",
        value in prop_oneof![
            Just(json!(null)), Just(json!([null])), Just(json!({})), Just(json!([{}])), Just(json!(-1)),
            Just(json!([1.5])), Just(json!(u64::MAX)), Just(json!("x")), Just(json!([["é"]])),
        ],
    ) {
        let mut spec = json!({"cdiVersion": "1.1.0", "kind": "v.com/c", "devices": [{"name": "a",
            "containerEdits": {"env": ["A=b"]}}], "containerEdits": {}});
        spec["containerEdits"][&inner] = value.clone();
        let _ = CdiSpec::parse(spec.to_string().as_bytes());
        spec["devices"][0]["containerEdits"][&inner] = value.clone();
        let _ = CdiSpec::parse(spec.to_string().as_bytes());
        spec[&key] = value;
        let _ = CdiSpec::parse(spec.to_string().as_bytes());
    }
}
