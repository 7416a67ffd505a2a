//! Runs `action.yml` as GitHub's runner runs composite actions.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::env::{CheckoutEnv, repository, text};

/// Tools of the step, except curl, which only downloads need.
pub(crate) const TOOLS: [&str; 16] = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "env",
    "grep",
    "gzip",
    "mktemp",
    "mv",
    "od",
    "sh",
    "sha256sum",
    "tail",
    "tar",
    "tr",
    "uname",
];

/// Results of the action that the runner sees.
#[derive(Debug)]
pub(crate) struct ActionResult {
    pub(crate) code: Option<i32>,
    /// Kind, properties and text.
    pub(crate) annotations: Vec<(String, BTreeMap<String, String>, String)>,
    pub(crate) outputs: BTreeMap<String, String>,
    /// Directories for the `PATH` of later steps.
    pub(crate) path: String,
    pub(crate) log: String,
}

impl ActionResult {
    /// Returns kinds and lines of the annotations.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line =
            |properties: &BTreeMap<_, _>| properties.get("line").cloned().unwrap_or_default();
        self.annotations.iter().map(|(kind, with, _)| format!("{kind} {}", line(with))).collect()
    }
}

pub(crate) fn action() -> Value {
    serde_saphyr::from_str(&fs::read_to_string(repository("action.yml")).unwrap()).unwrap()
}

/// Replaces `${{ NAME }}`.
fn interpolate(value: &str, values: &BTreeMap<String, String>) -> String {
    let Some(name) = value.strip_prefix("${{ ").and_then(|rest| rest.strip_suffix(" }}")) else {
        assert!(!value.contains("${{"), "{value}");
        return value.to_owned();
    };
    values.get(name).unwrap_or_else(|| panic!("{value}")).clone()
}

/// Runs the step with these inputs.
pub(crate) fn run_step(world: &CheckoutEnv, with: &[(&str, &str)]) -> ActionResult {
    let action = action();
    let mut inputs = BTreeMap::new();
    for (name, input) in action["inputs"].as_object().unwrap() {
        assert!(input["description"].is_string(), "{name}");
        inputs.insert(format!("inputs.{name}"), input["default"].as_str().unwrap().to_owned());
    }
    for (name, value) in with {
        inputs.insert(format!("inputs.{name}"), (*value).to_owned()).expect("an input");
    }

    assert_eq!(action["runs"]["using"], "composite");
    let steps = action["runs"]["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1);
    let step = &steps[0];
    assert_eq!(step["shell"], "bash");
    let script = step["run"].as_str().unwrap();
    assert!(!script.contains("${{"), "inputs reach scripts by variables only: {script}");
    fs::write(world.path("temporary/step.sh"), script).unwrap();
    let mut command = world.command("bash");
    command.args(["--noprofile", "--norc", "-e", "-o", "pipefail"]);
    command.arg(world.path("temporary/step.sh"));
    for file in ["output", "path"] {
        fs::write(world.path("temporary").join(file), "").unwrap();
    }
    command
        .env("GITHUB_ACTION_PATH", repository(""))
        .env("GITHUB_OUTPUT", world.path("temporary/output"))
        .env("GITHUB_PATH", world.path("temporary/path"))
        .env("RUNNER_TEMP", world.path("temporary"));
    for (name, value) in step["env"].as_object().unwrap() {
        command.env(name, interpolate(value.as_str().unwrap(), &inputs));
    }
    let output = command.output().unwrap();

    let mut of_step = BTreeMap::new();
    for line in fs::read_to_string(world.path("temporary/output")).unwrap().lines() {
        let (name, value) = line.split_once('=').unwrap();
        let name = format!("steps.{}.outputs.{name}", step["id"].as_str().unwrap());
        of_step.insert(name, value.to_owned());
    }
    let mut outputs = BTreeMap::new();
    if !of_step.is_empty() {
        for (name, value) in action["outputs"].as_object().unwrap() {
            let value = interpolate(value["value"].as_str().unwrap(), &of_step);
            outputs.insert(name.clone(), value);
        }
    }
    ActionResult {
        code: output.status.code(),
        annotations: annotations(&String::from_utf8(output.stdout.clone()).unwrap()),
        outputs,
        path: fs::read_to_string(world.path("temporary/path")).unwrap(),
        log: text(&output),
    }
}

/// Parses the workflow commands of a log, except those between `stop-commands` and its token.
fn annotations(log: &str) -> Vec<(String, BTreeMap<String, String>, String)> {
    let mut stopped: Option<String> = None;
    let mut found = Vec::new();
    for line in log.lines() {
        if let Some(token) = &stopped {
            if line.trim_start() == format!("::{token}::") {
                stopped = None;
            }
            continue;
        }
        let Some((head, text)) =
            line.trim_start().strip_prefix("::").and_then(|rest| rest.split_once("::"))
        else {
            continue;
        };
        let (kind, properties) = head.split_once(' ').unwrap_or((head, ""));
        if kind == "stop-commands" {
            stopped = Some(text.to_owned());
            continue;
        }
        let unescape = |text: &str| {
            ["%0A", "%0D", "%3A", "%2C", "%25"]
                .iter()
                .zip(["\n", "\r", ":", ",", "%"])
                .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        };
        let properties = properties
            .split(',')
            .filter_map(|property| property.split_once('='))
            .map(|(name, value)| (name.to_owned(), unescape(value)));
        found.push((kind.to_owned(), properties.collect(), unescape(text)));
    }
    found
}
