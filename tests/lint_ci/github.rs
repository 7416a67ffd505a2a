//! `action.yml`, played as GitHub's runner plays composite actions.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::env::{GOOD, World, error, note, repository, text, warning};
use crate::releases::{Releases, VERSION, archive_name};

const TOOLS: [&str; 17] = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "curl",
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

/// What the runner knows after the action.
#[derive(Debug)]
struct Played {
    code: Option<i32>,
    /// Kind, properties and text.
    annotations: Vec<(String, BTreeMap<String, String>, String)>,
    outputs: BTreeMap<String, String>,
    /// Directories for the `PATH` of later steps.
    path: String,
    log: String,
}

impl Played {
    /// Returns kinds and lines of the annotations.
    fn lines(&self) -> Vec<String> {
        let line =
            |properties: &BTreeMap<_, _>| properties.get("line").cloned().unwrap_or_default();
        self.annotations.iter().map(|(kind, with, _)| format!("{kind} {}", line(with))).collect()
    }
}

fn action() -> Value {
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

fn play(world: &World, with: &[(&str, &str)]) -> Played {
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
    Played {
        code: output.status.code(),
        annotations: annotations(&String::from_utf8(output.stdout.clone()).unwrap()),
        outputs,
        path: fs::read_to_string(world.path("temporary/path")).unwrap(),
        log: text(&output),
    }
}

/// Reads the workflow commands of a log, those between `stop-commands` and its token excepted.
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

#[test]
fn action_annotates_findings_and_fails() {
    let files = [("a.json", GOOD), ("b.json", &error()), ("c.json", &warning())];
    let played = play(&World::new(&files, &TOOLS).install(), &[]);
    assert_eq!(played.code, Some(1), "{}", played.log);
    assert_eq!(played.lines(), ["error 3", "warning 2"], "{}", played.log);
    let (_, with, message) = &played.annotations[0];
    assert_eq!(with["file"], "hooks.d/b.json");
    assert!(with["title"].starts_with("OH015") && message.contains("prestrat"), "{played:?}");
    assert_eq!(played.outputs["errors"], "1");
    assert_eq!(played.outputs["warnings"], "1");
    assert_eq!(played.outputs["notes"], "0");
    assert_eq!((played.outputs["sarif"].as_str(), played.path.as_str()), ("", ""));
}

#[test]
fn action_passes_without_findings() {
    let played = play(&World::new(&[("a.json", GOOD)], &TOOLS).install(), &[]);
    assert_eq!((played.code, played.lines().len()), (Some(0), 0), "{}", played.log);
    assert_eq!(played.outputs["errors"], "0");
}

#[test]
fn fail_on_is_the_least_severity_that_fails() {
    let (error, warning, note) = (error(), warning(), note());
    for (file, fail_on, code) in [
        (&error, "error", 1),
        (&error, "never", 0),
        (&warning, "error", 0),
        (&warning, "warning", 1),
        (&note, "warning", 0),
        (&note, "note", 1),
        (&note, "notes", 2),
    ] {
        let world = World::new(&[("a.json", file)], &TOOLS).install();
        let played = play(&world, &[("fail-on", fail_on)]);
        assert_eq!(played.code, Some(code), "{fail_on}: {}", played.log);
        assert_eq!(played.annotations.len(), 1, "{fail_on}: {}", played.log);
    }
}

#[test]
fn paths_and_arguments_are_lines() {
    let world = World::new(&[("a b.json", &warning())], &TOOLS).install();
    let with = [("paths", "\nhooks.d/a b.json\r\n\n"), ("args", "--allow=OH101\n--deny=OH309\n")];
    let played = play(&world, &with);
    assert_eq!((played.code, played.annotations.len()), (Some(0), 0), "{}", played.log);
    let played = play(&world, &[("paths", " \n")]);
    assert_eq!(played.lines(), ["error "], "{}", played.log);
}

#[test]
fn sarif_is_an_output() {
    let world = World::new(&[("a.json", &error())], &TOOLS).install();
    let played = play(&world, &[("sarif", "out.sarif"), ("fail-on", "never")]);
    assert_eq!((played.code, played.outputs["sarif"].as_str()), (Some(0), "out.sarif"));
    let sarif: Value =
        serde_json::from_str(&fs::read_to_string(world.path("checkout/out.sarif")).unwrap())
            .unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "OH015");
}

#[test]
fn sarif_replaces_a_link_of_the_repository() {
    let world = World::new(&[("a.json", &error())], &TOOLS).install();
    let [sarif, elsewhere] = ["checkout/out.sarif", "elsewhere"].map(|path| world.path(path));
    fs::write(&elsewhere, "somebody's").unwrap();
    symlink(&elsewhere, &sarif).unwrap();
    let played = play(&world, &[("sarif", "out.sarif"), ("fail-on", "never")]);
    assert_eq!(played.code, Some(0), "{}", played.log);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "somebody's");
    assert!(fs::symlink_metadata(&sarif).unwrap().is_file());

    let played = play(&world, &[("sarif", "missing/out.sarif")]);
    assert_eq!(played.code, Some(2), "{}", played.log);
    assert!(played.annotations[0].2.contains("cannot write sarif"), "{}", played.log);
}

#[test]
fn inputs_and_file_names_are_never_commands() {
    let hostile = "x\n::error::y.json";
    let world = World::new(&[(hostile, &error())], &TOOLS).install();
    let played = play(&world, &[]);
    assert_eq!((played.code, played.lines()), (Some(1), vec!["error 3".into()]), "{}", played.log);
    assert_eq!(played.annotations[0].1["file"], format!("hooks.d/{hostile}"));

    for input in ["paths", "consumer", "fail-on", "args", "sarif", "version"] {
        let value = "$(touch pwned)`touch pwned`\"; touch pwned; '\n::error::y\n--version";
        let played = play(&world, &[(input, value)]);
        assert_eq!(played.code, Some(2), "{input}: {}", played.log);
        assert!(!world.path("checkout/pwned").exists(), "{input}");
        assert_eq!(played.annotations.len(), 1, "{input}: {}", played.log);
        assert!(played.outputs.is_empty());
    }
}

#[test]
fn program_is_downloaded_and_checked() {
    let world = World::new(&[("a.json", &error())], &TOOLS);
    let releases = Releases::serve(&world.path("releases"));
    let url = ("releases", releases.url.as_str());
    let played = play(&world, &[url]);
    assert_eq!((played.code, played.lines()), (Some(1), vec!["error 3".into()]), "{}", played.log);
    let bin = Path::new(played.path.trim_end());
    assert!(bin.join("oci-hooks").is_file() && bin.starts_with(world.path("temporary")));
    assert!(bin.ends_with(format!("{}/bin", archive_name())));

    let played = play(&world, &[url, ("version", "9.9.9")]);
    assert_eq!(played.code, Some(2), "{}", played.log);
    assert!(played.annotations[0].2.contains("cannot download"), "{}", played.log);

    releases.tamper();
    let played = play(&world, &[url]);
    assert_eq!((played.code, played.path.as_str()), (Some(2), ""), "{}", played.log);
    assert!(played.annotations[0].2.starts_with("digest mismatch"), "{}", played.log);
}

#[test]
fn without_a_mirror_releases_are_those_of_the_repository() {
    let tools: Vec<_> = TOOLS.into_iter().filter(|tool| *tool != "curl").collect();
    let world = World::new(&[("a.json", GOOD)], &tools);
    let played = play(&world, &[]);
    let url = format!("{}/releases/download/v{VERSION}/", env!("CARGO_PKG_REPOSITORY"));
    let message = &played.annotations[0].2;
    assert!(message.starts_with(&format!("cannot download {url}")), "{}", played.log);
}

#[test]
fn digest_and_version_can_be_pinned() {
    let world = World::new(&[("a.json", GOOD)], &TOOLS);
    let releases = Releases::serve(&world.path("releases"));
    releases.remove("SHA256SUMS");
    let url = ("releases", releases.url.as_str());
    let version = format!("v{VERSION}");
    let digest = releases.sha256_of_archive();
    let played = play(&world, &[url, ("version", &version), ("sha256", &digest)]);
    assert_eq!(played.code, Some(0), "{}", played.log);
    let zeros = "0".repeat(64);
    let played = play(&world, &[url, ("version", &version), ("sha256", &zeros)]);
    assert_eq!(played.code, Some(2), "{}", played.log);

    // The program in PATH is of this version, so nothing is downloaded.
    let world = world.install();
    let played = play(&world, &[("version", VERSION), ("releases", "http://127.0.0.1:1")]);
    assert_eq!((played.code, played.path.as_str()), (Some(0), ""), "{}", played.log);
}

#[test]
fn action_is_of_this_release() {
    let script = fs::read_to_string(repository("contrib/ci/lint-action")).unwrap();
    assert!(script.contains(&format!("\ndefault_version={VERSION}\n")));
    let page = fs::read_to_string(repository("docs/install.md")).unwrap();
    assert!(page.contains(&format!("uses: oci-hooks/oci-hooks@v{VERSION}\n")));
    for input in action()["inputs"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("\n| `{input}` |")), "docs/install.md: {input}");
    }
}
