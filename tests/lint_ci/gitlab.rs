//! The template for GitLab CI, played as GitLab Runner plays jobs.

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::env::{GOOD, World, error, note, repository, text};
use crate::releases::{Releases, VERSION};

const TEMPLATE: &str = "contrib/ci/oci-hooks-lint.gitlab-ci.yml";
const REPORT: &str = "gl-code-quality-report.json";
const TOOLS: [&str; 10] =
    ["bash", "curl", "grep", "gzip", "mktemp", "sh", "sha256sum", "tar", "uname", "wget"];

/// Returns what is before and after `---`.
fn template() -> (Value, Value) {
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

/// Runs the job with a shell; the script gets variables, and stops at the first command that fails.
fn play(world: &World, shell: &str, with: &[(&str, &str)]) -> Output {
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

fn report(world: &World) -> Vec<Value> {
    let text = fs::read_to_string(world.path("checkout").join(REPORT)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn job_reports_findings_and_fails() {
    for shell in ["sh", "bash"] {
        let world = World::new(&[("a.json", GOOD), ("b.json", &error())], &TOOLS).install();
        let output = play(&world, shell, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("error[OH015]"), "{}", text(&output));
        let report = report(&world);
        assert_eq!(report.len(), 1);
        assert_eq!(report[0]["check_name"], "OH015");
        assert_eq!(report[0]["severity"], "major");
        assert_eq!(report[0]["location"]["path"], "hooks.d/b.json");
        assert_eq!(report[0]["location"]["lines"]["begin"], 3);
        assert!(report[0]["description"].is_string() && report[0]["fingerprint"].is_string());
    }
}

#[test]
fn job_passes_without_errors_and_warnings() {
    for (file, findings) in [(GOOD, 0), (note().as_str(), 1)] {
        let world = World::new(&[("a.json", file)], &TOOLS).install();
        let output = play(&world, "sh", &[]);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(report(&world).len(), findings);
    }
}

#[test]
fn paths_and_arguments_are_words_and_never_commands() {
    let world = World::new(&[("a.json", &error()), ("b.json", GOOD)], &TOOLS).install();
    let output =
        play(&world, "sh", &[("paths", "hooks.d/[bc].json"), ("args", "--strict --as=crio")]);
    assert!(output.status.success(), "{}", text(&output));
    for input in ["paths", "args"] {
        let output = play(&world, "sh", &[(input, "$(touch pwned) `touch pwned`; touch pwned")]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(!world.path("checkout/pwned").exists());
    }
}

#[test]
fn program_is_downloaded_and_checked() {
    // With curl, and where there is only wget.
    for tools in [&TOOLS[..], &TOOLS.map(|tool| if tool == "curl" { "wget" } else { tool })[1..]] {
        let mut tools = tools.to_vec();
        tools.sort_unstable();
        tools.dedup();
        let world = World::new(&[("a.json", GOOD)], &tools);
        let releases = Releases::serve(&world.path("releases"));
        let url = ("releases", releases.url.as_str());
        let output = play(&world, "sh", &[url]);
        assert!(output.status.success(), "{tools:?} {}", text(&output));
        let digest = releases.sha256_of_archive();
        releases.tamper();
        for digest in ["", digest.as_str()] {
            let output = play(&world, "sh", &[url, ("sha256", digest)]);
            assert!(!output.status.success(), "{}", text(&output));
            assert!(text(&output).contains("did NOT match"), "{}", text(&output));
        }
        releases.remove("SHA256SUMS");
        assert!(!play(&world, "sh", &[url]).status.success());
        let output = play(&world, "sh", &[url, ("sha256", &releases.sha256_of_archive())]);
        assert!(output.status.success(), "{}", text(&output));
    }
}

#[test]
fn releases_to_download_from_must_be_named() {
    let world = World::new(&[("a.json", GOOD)], &TOOLS);
    let output = play(&world, "sh", &[]);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("the input `releases` names none"), "{}", text(&output));
}

#[test]
fn template_is_of_this_release() {
    let (spec, _) = template();
    assert_eq!(spec["spec"]["inputs"]["version"]["default"], VERSION);
}
