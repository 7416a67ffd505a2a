//! Runs the template for GitLab CI as GitLab Runner runs jobs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use serde_json::Value;

use super::env::{CheckoutEnv, repository};

pub(crate) const TEMPLATE: &str = "contrib/ci/oci-hooks-lint.gitlab-ci.yml";
pub(crate) const REPORT: &str = "gl-code-quality-report.json";
/// Tools of the job, except curl and wget, one of which is needed for downloads.
pub(crate) const TOOLS: [&str; 8] =
    ["bash", "grep", "gzip", "mktemp", "sh", "sha256sum", "tar", "uname"];

/// Returns the documents before and after `---`.
pub(crate) fn template() -> (Value, Value) {
    let text = fs::read_to_string(repository(TEMPLATE)).unwrap();
    let (spec, jobs) = text.split_once("\n---\n").unwrap();
    (serde_saphyr::from_str(spec).unwrap(), serde_saphyr::from_str(jobs).unwrap())
}

/// Replaces `$[[ inputs.NAME ]]` in all strings below a value.
fn interpolate(value: &mut Value, inputs: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            for (name, input) in inputs {
                *text = text.replace(&format!("$[[ inputs.{name} ]]"), input);
            }
            assert!(!text.contains("$[["), "{text}");
        }
        Value::Array(values) => values.iter_mut().for_each(|value| interpolate(value, inputs)),
        Value::Object(values) => values.values_mut().for_each(|value| interpolate(value, inputs)),
        _ => {}
    }
}

/// Runs the job with a shell. The script gets the variables, and stops at the first failing command.
pub(crate) fn run_job(world: &CheckoutEnv, shell: &str, with: &[(&str, &str)]) -> Output {
    let (spec, mut jobs) = template();
    let mut inputs = BTreeMap::new();
    for (name, input) in spec["spec"]["inputs"].as_object().unwrap() {
        assert!(input["description"].is_string(), "{name}");
        inputs.insert(name.clone(), input["default"].as_str().unwrap().to_owned());
    }
    for (name, value) in with {
        inputs.insert((*name).to_owned(), (*value).to_owned()).expect("an input");
    }
    let lines = jobs["oci-hooks-lint"]["script"].clone();
    assert!(!lines.to_string().contains("$[["), "inputs reach scripts by variables only");
    interpolate(&mut jobs, &inputs);
    let job = &jobs["oci-hooks-lint"];
    assert_eq!(job["artifacts"]["reports"]["codequality"], REPORT);
    assert_eq!(job["artifacts"]["when"], "always");

    let lines = job["script"].as_array().unwrap();
    let script: Vec<_> = lines.iter().map(|line| line.as_str().unwrap()).collect();
    let mut command = world.command(shell);
    if shell == "bash" {
        command.args(["-o", "pipefail"]);
    }
    command.args(["-e", "-c", &script.join("\n")]).env("TMPDIR", world.path("temporary"));
    for (name, value) in job["variables"].as_object().unwrap() {
        command.env(name, value.as_str().unwrap());
    }
    command.output().unwrap()
}
