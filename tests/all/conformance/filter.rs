//! Precreate filters compared with recordings of podman's Go code.
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks::files::process::RunError;
use oci_hooks::hooks::Hook;
use oci_hooks::hooks::filter::{FilterError, FilterFailure, FilterOptions, FilteredConfig, filter};
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../../data/conformance/exec_vectors.jsonl");

/// Tolerance above the reference's duration, only to detect hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// One recorded case.
struct FilterCase {
    name: String,
    hooks: Vec<Hook>,
    config: Value,
    expect: Value,
}

impl FilterCase {
    fn read_all(root: &Path) -> Vec<FilterCase> {
        VECTORS
            .lines()
            .map(|line| {
                let line = line.replace("{ROOT}", root.to_str().unwrap());
                let case: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(case["dir"], json!(root.join("bundle")));
                FilterCase {
                    name: text(&case["name"]),
                    hooks: case["hooks"].as_array().unwrap().iter().map(hook).collect(),
                    config: case["config"].clone(),
                    expect: case["expect"].clone(),
                }
            })
            .collect()
    }

    fn run(&self, options: &FilterOptions) -> Result<FilteredConfig, Box<FilterError>> {
        let hooks: Vec<&Hook> = self.hooks.iter().collect();
        filter(&hooks, serde_json::to_vec(&self.config).unwrap(), options)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn hook(value: &Value) -> Hook {
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    Hook {
        path: text(&value["path"]),
        args: texts(&value["args"]),
        env: Some(texts(&value["env"])),
        timeout: value["timeout"].as_i64(),
    }
}

/// Returns the outcome of a case in words common to our errors and the reference's.
fn outcome(result: &Result<FilteredConfig, Box<FilterError>>) -> String {
    match result.as_ref().map_err(|error| (error.index, &error.failure)) {
        Ok(_) => "works".to_owned(),
        Err((_, FilterFailure::Exited(code))) => format!("exits with {code}"),
        Err((_, FilterFailure::TimedOut { .. })) => "times out".to_owned(),
        Err((index, FilterFailure::NotJson(_))) => format!("output {index} invalid"),
        Err((_, FilterFailure::Run(RunError::Execute { source, .. }))) => match source.kind() {
            ErrorKind::NotFound => "not found".to_owned(),
            ErrorKind::PermissionDenied => "not permitted".to_owned(),
            kind => format!("{kind:?}"),
        },
        Err((_, failure)) => format!("{failure:?}"),
    }
}

fn expected_outcome(error: &str) -> String {
    if error == "<nil>" {
        "works".to_owned()
    } else if let Some((_, code)) = error.split_once("exit status ") {
        format!("exits with {code}")
    } else if error == "context deadline exceeded" {
        "times out".to_owned()
    } else if let Some(rest) = error.strip_prefix("unmarshal output from config-filter hook ") {
        format!("output {} invalid", rest.split_once(':').unwrap().0)
    } else if error.ends_with("no such file or directory") {
        "not found".to_owned()
    } else if error.ends_with("permission denied") {
        "not permitted".to_owned()
    } else {
        panic!("unknown error {error:?}")
    }
}

/// Converts a configuration as the reference's types do: unknown fields are dropped, and fields that it
/// always writes are added.
fn as_typed(config: &[u8]) -> Value {
    let mut config: Value = serde_json::from_slice(config).unwrap();
    let object = config.as_object_mut().unwrap();
    object.remove("x-unknown");
    object.entry("ociVersion").or_insert(json!(""));
    if let Some(process) = object.get_mut("process") {
        process.as_object_mut().unwrap().entry("user").or_insert(json!({"uid": 0, "gid": 0}));
    }
    config
}

#[test]
fn filters_behave_as_recorded_from_the_reference() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    fs::create_dir(root.join("bundle")).unwrap();
    let options = FilterOptions::new(root.join("bundle"));
    let cases = FilterCase::read_all(&root);
    assert_eq!(cases.len(), 21);
    for case in &cases {
        let name = case.name.as_str();
        let start = Instant::now();
        let result = case.run(&options);
        let elapsed = start.elapsed();
        let config = match &result {
            Ok(filtered) => &filtered.config,
            Err(error) => &error.config,
        };

        let mut expected = expected_outcome(case.expect["err"].as_str().unwrap());
        let mut config_after = case.expect["config_after"].clone();
        match name {
            // The reference loses the whole configuration here, which we reject.
            "exec/empty-object-wipes" => {
                expected = "Empty { found: \"{}\" }".to_owned();
                config_after = as_typed(&serde_json::to_vec(&case.config).unwrap());
                let mut allowing = options.clone();
                allowing.allow_empty = true;
                assert_eq!(case.run(&allowing).unwrap().config, b"{}");
            }
            // The reference merges keys that are repeated or in another case; we keep the text.
            "exec/dup-keys-stdout" => {
                assert_eq!(
                    config.as_slice(),
                    b"{\"hostname\":\"a\",\"hostname\":\"b\",\"HOSTNAME\":\"c\"}\n"
                );
                continue;
            }
            // Without filters we keep unknown fields and add none.
            "exec/no-hooks" => {
                assert_eq!(*config, serde_json::to_vec(&case.config).unwrap());
            }
            _ => {}
        }
        assert_eq!(outcome(&result), expected, "{name}");
        assert_eq!(as_typed(config), config_after, "{name}");

        let seconds = Duration::from_secs(case.expect["wall_s"].as_u64().unwrap());
        // The filter's process group is killed too, so no process keeps the pipe open for another second.
        let at_least = seconds.min(Duration::from_secs(1));
        assert!(elapsed >= at_least, "{name} took only {elapsed:?}");
        assert!(elapsed < seconds + PATIENCE, "{name} took {elapsed:?}");
    }
}

#[test]
fn fields_unknown_to_the_reference_survive() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bundle")).unwrap();
    let options = FilterOptions::new(root.path().join("bundle"));
    let cases = FilterCase::read_all(root.path());
    let identity = cases.iter().find(|case| case.name == "exec/identity").unwrap();
    let filtered = identity.run(&options).unwrap();
    let config: Value = serde_json::from_slice(&filtered.config).unwrap();
    assert_eq!(config["x-unknown"], 1);
    assert_eq!(config, identity.config);
}
