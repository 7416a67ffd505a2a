//! Hook files with many conditions and stages, and a comparison of `oci-hooks explain` with what an engine injects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Stages of the hook files; each combination has a file for each condition.
const STAGES: [&[&str]; 7] = [
    &["prestart"],
    &["createRuntime"],
    &["createContainer", "createRuntime"],
    &["startContainer"],
    &["poststart", "createContainer"],
    &["poststop"],
    &["precreate"],
];

/// Annotations that containers may have.
pub const ANNOTATIONS: [&str; 2] = ["com.example.first=1", "com.example.second=two words"];

/// Hook files of one engine.
pub struct HookMatrix {
    dir: PathBuf,
    /// Stages at which the engine calls hooks itself; they are not in `config.json`.
    called: &'static [&'static str],
    compared: usize,
    statements: usize,
}

impl HookMatrix {
    /// Writes the hook files. Hooks at stages that are `called` leave a line in a file of the stage's name.
    pub fn new(dir: &Path, called: &'static [&'static str]) -> Self {
        for (condition, when) in conditions() {
            for stages in STAGES {
                if stages == ["precreate"] && !called.contains(&"precreate") {
                    continue;
                }
                write(dir, &format!("{condition}-{}.json", stages.join("-")), stages, &when);
            }
        }
        let missing = json!({"version": "1.0.0", "hook": {"path": "/nonexistent"}, "when": {"always": true}, "stages": ["poststart"]});
        fs::write(dir.join("no-program.json"), missing.to_string()).expect("the directory is ours");
        HookMatrix { dir: dir.to_owned(), called, compared: 0, statements: 0 }
    }

    /// Compares the report of `explain` with the configuration of a container that was removed.
    #[track_caller]
    pub fn compare(&mut self, container: &str, report: &Value, config: &Value) {
        let target = &report["target"];
        let is_certain = |name: &&str| {
            !(target["unclear_mounts"] != json!([]) && name.contains("mounts")
                || target["unclear_annotations"] == true && name.contains("annotation"))
        };
        let mut stated: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut files: Vec<_> = all(&report["directories"][0]["files"]).collect();
        assert_ne!(files.len(), 0, "{container}: {report}");
        self.statements += files.iter().map(|file| text(&file["name"])).filter(is_certain).count();
        files.retain(|file| file["state"] == "injected" && is_certain(&text(&file["name"])));
        files.sort_by_key(|file| file["order"].as_u64());
        for file in files {
            for stage in all(&file["stages"]) {
                stated.entry(text(stage)).or_default().push(text(&file["name"]));
            }
        }
        let outputs = self.called.iter().map(|stage| (*stage, self.take_output(stage)));
        let outputs: Vec<_> = outputs.collect();
        let mut injected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (stage, hooks) in config["hooks"].as_object().into_iter().flatten() {
            let names = all(hooks).filter_map(name_of);
            injected.insert(stage, names.filter(|name| is_certain(name)).collect());
        }
        for (stage, output) in &outputs {
            injected.insert(stage, output.lines().filter(|name| is_certain(name)).collect());
        }
        injected.retain(|_, names| !names.is_empty());
        assert_eq!(stated, injected, "{container}");
        self.assert_origins(container, report, config);
        self.compared += 1;
    }

    /// Asserts that each hook of the configuration is listed with its hook file as its origin.
    #[track_caller]
    fn assert_origins(&self, container: &str, report: &Value, config: &Value) {
        let mut listed = BTreeSet::new();
        for hook in all(&report["hooks"]) {
            let Some(name) = name_of(hook) else { continue };
            let file = json!({"kind": "hook-file", "file": self.dir.join(name)});
            assert_eq!(hook["origin"], file, "{container}");
            listed.insert((text(&hook["stage"]), name));
        }
        let stages = config["hooks"].as_object().into_iter().flatten();
        let expected = stages.flat_map(|(stage, hooks)| {
            all(hooks).filter_map(move |hook| Some((stage.as_str(), name_of(hook)?)))
        });
        assert_eq!(listed, expected.collect(), "{container}");
    }

    /// Describes how much was compared.
    pub fn summary(&self) -> String {
        let HookMatrix { compared, statements, .. } = self;
        format!("{compared} containers and {statements} certain statements compared")
    }

    fn take_output(&self, stage: &str) -> String {
        let path = self.dir.join(stage);
        let output = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        output
    }
}

fn write(dir: &Path, name: &str, stages: &[&str], when: &Value) {
    let hook = match stages {
        [stage @ ("precreate" | "poststop")] => {
            let after = if *stage == "precreate" { "exec cat" } else { "exec cat >/dev/null" };
            let script = format!("echo \"$0\" >>'{}'; {after}", dir.join(stage).display());
            json!({"path": "/bin/sh", "args": ["sh", "-c", script, name], "env": ["PATH=/usr/bin:/bin"]})
        }
        _ => json!({"path": "/bin/true", "args": ["true", name]}),
    };
    let file = json!({"version": "1.0.0", "hook": hook, "when": when, "stages": stages});
    fs::write(dir.join(name), file.to_string()).expect("the directory is ours");
}

/// Returns names of conditions, and the conditions.
fn conditions() -> [(&'static str, Value); 16] {
    let first = json!({"^com\\.example\\.first$": "^1$"});
    let both = json!({"first$": "", "second$": "^two w"});
    [
        ("always", json!({"always": true})),
        ("never", json!({"always": false})),
        ("empty", json!({})),
        ("always-command", json!({"always": true, "commands": ["^nothing$"]})),
        ("command-sleep", json!({"commands": ["^/bin/sleep$"]})),
        ("command-end", json!({"commands": ["^nothing$", "/sh$"]})),
        ("command-case", json!({"commands": ["(?i)SLEEP"]})),
        ("annotation", json!({"annotations": first})),
        ("annotations", json!({"annotations": both})),
        ("annotation-value", json!({"annotations": {"": "^two"}})),
        ("annotation-engine", json!({"annotations": {"^(io|org|run)\\.": "."}})),
        ("annotation-command", json!({"annotations": first, "commands": ["sleep$"]})),
        ("mounts", json!({"hasBindMounts": true})),
        ("mounts-not", json!({"hasBindMounts": false})),
        ("mounts-command", json!({"hasBindMounts": true, "commands": ["/sh$"]})),
        ("mounts-annotation", json!({"hasBindMounts": true, "annotations": first})),
    ]
}

/// Returns the name of the hook file that a hook has as its last argument.
fn name_of(hook: &Value) -> Option<&str> {
    let name = hook["args"].as_array()?.last()?.as_str()?;
    name.ends_with(".json").then_some(name)
}

fn all(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().expect("it is a string")
}
