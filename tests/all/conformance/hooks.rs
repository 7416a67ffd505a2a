//! Loading and injecting as podman's Go code does, compared with its recorded behaviour.
//!
//! `tests/data/conformance/README.md` describes the format.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::{
    self, CombineRule, ConfigDocument, EntryState, HookDefinition, InjectOptions, LoadOptions,
    LoadProblem, LoadedEntry, LoadedHooks, MatchTarget, ParseOptions, consumer,
};
use serde_json::{Value, json};

#[test]
fn loading_matching_and_injection_match_the_records() {
    // Relative hook paths are resolved from the working directory, which was `/` in the recording.
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/conformance/vectors.jsonl");
    let vectors = fs::read_to_string(data).unwrap();
    std::env::set_current_dir("/").unwrap();

    let mut failures = Vec::new();
    let mut count = 0;
    for line in vectors.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        count += 1;
        if let Err(difference) = check(&vector) {
            failures.push(format!("{}: {difference:#}", vector["name"]));
        }
    }
    assert_eq!(count, 747);
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}

fn check(vector: &Value) -> anyhow::Result<()> {
    let temp = tempfile::tempdir()?;
    let root = temp.path().to_str().unwrap();
    let dirs = make_dirs(&vector["dirs"], temp.path())?;
    let extension_stages = serde_json::from_value(vector["extension_stages"].clone())?;
    let mut options = LoadOptions::default();
    (options.dirs, options.extension_stages) = (dirs, extension_stages);
    let loaded = hooks::load(&options);

    let files = vector["files"].as_array().unwrap();
    for (entry, expected) in loaded.entries.iter().zip(files) {
        let found = file(entry, &loaded.problems, &options, root)?;
        let expected = json!({
            "name": expected["name"], "outcome": expected["outcome"],
            "class": expected["class"], "parsed": expected["parsed"],
        });
        anyhow::ensure!(found == expected, "file\n  expected {expected}\n  found    {found}");
    }
    anyhow::ensure!(loaded.entries.len() == files.len(), "number of files");

    let target = MatchTarget {
        annotations: serde_json::from_value(vector["annotations"].clone())?,
        has_bind_mounts: vector["hasBindMounts"].as_bool().unwrap(),
        command: ConfigDocument::parse(vector["config"].to_string().as_bytes())?.command()?,
    };
    let found = select_leniently(&loaded, &target);
    let expected = &vector["lenient"]["loaded"];
    anyhow::ensure!(
        has_same_names(&found, expected),
        "lenient\n  expected {expected}\n  found    {found}"
    );

    let found = inject_strictly(loaded, &target, &vector["config"], root)?;
    let also = vector["expect_also_allowed"].as_array();
    let also: Vec<_> = also.into_iter().flatten().map(|e| e.get("expect").unwrap_or(e)).collect();
    let mut expected = vector["expect"].clone();
    if let Some(object) = expected.as_object_mut() {
        object.remove("message");
    }
    anyhow::ensure!(
        found == expected || also.contains(&&found),
        "result\n  expected {expected}\n  found    {found}"
    );
    Ok(())
}

/// Loads and injects as podman does, which stops at the first fatal problem.
fn inject_strictly(
    loaded: LoadedHooks,
    target: &MatchTarget,
    config: &Value,
    root: &str,
) -> anyhow::Result<Value> {
    let failed = |phase, class| json!({"ok": false, "phase": phase, "class": class, "hooks": null, "extension_hooks": null});
    let set = match loaded.into_strict() {
        Ok(set) => set,
        Err(problem) => return Ok(failed("load", problem.source.class())),
    };
    let selection = match set.select(target, &consumer::PODMAN) {
        Ok(selection) => selection,
        Err(error) => return Ok(failed("match", error.class())),
    };
    let config = config.to_string();
    let injected =
        ConfigDocument::parse(config.as_bytes())?.inject(&selection, InjectOptions::default())?;
    let injected: Value = serde_json::from_slice(&injected)?;
    let extension_hooks = selection.extension_hooks();
    let extension_hooks =
        if extension_hooks.is_empty() { Value::Null } else { json!(extension_hooks) };
    let result =
        json!({"ok": true, "hooks": injected["hooks"], "extension_hooks": extension_hooks});
    Ok(serde_json::from_str(&result.to_string().replace(root, "{ROOT}"))?)
}

fn select_leniently(loaded: &LoadedHooks, target: &MatchTarget) -> Value {
    let verdicts = loaded.hooks.evaluate(target);
    let rows = verdicts.map(|verdict| {
        let mut row =
            json!({"name": verdict.file.name.to_string_lossy(), "match": verdict.matches()});
        if verdict.outcome.is_err() {
            row["error"] = json!(true);
        }
        row
    });
    rows.collect()
}

/// Compares hooks by name and result. In Go the order of hooks whose names differ only in case is undefined.
fn has_same_names(found: &Value, expected: &Value) -> bool {
    let rows = |value: &Value| {
        let rows = value.as_array().into_iter().flatten();
        let mut rows: Vec<_> = rows
            .map(|row| (row["name"].to_string(), row["match"] == true, !row["error"].is_null()))
            .collect();
        rows.sort();
        rows
    };
    rows(found) == rows(expected)
}

fn file(
    entry: &LoadedEntry,
    problems: &[LoadProblem],
    options: &LoadOptions,
    root: &str,
) -> anyhow::Result<Value> {
    let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
    let problem = problems.iter().find(|problem| problem.path == entry.path);
    let (outcome, class, parsed) = match &entry.state {
        EntryState::NotJson => ("skipped-suffix", None, None),
        EntryState::Vanished => ("skipped-vanished", problem.map(|p| p.source.class()), None),
        EntryState::Broken => ("error", problem.map(|p| p.source.class()), None),
        _ => {
            let schema = ParseOptions::new(&options.extension_stages);
            let definition = HookDefinition::parse(&fs::read(&entry.path)?, schema).unwrap();
            ("loaded", None, Some(to_recorded_format(&definition, root)?))
        }
    };
    Ok(json!({"name": name, "outcome": outcome, "class": class, "parsed": parsed}))
}

/// Returns a definition in the recorded format.
fn to_recorded_format(definition: &HookDefinition, root: &str) -> anyhow::Result<Value> {
    let when = &definition.when;
    let mut shown = serde_json::Map::new();
    if let Some(always) = when.always {
        shown.insert("always".to_owned(), json!(always));
    }
    if let Some(has_bind_mounts) = when.has_bind_mounts {
        shown.insert("hasBindMounts".to_owned(), json!(has_bind_mounts));
    }
    if !when.annotations.is_empty() {
        let annotations: BTreeMap<_, _> =
            when.annotations.iter().map(|a| (a.key.as_str(), a.value.as_str())).collect();
        shown.insert("annotations".to_owned(), json!(annotations));
    }
    if !when.commands.is_empty() {
        let commands: Vec<_> = when.commands.iter().map(|c| c.as_str()).collect();
        shown.insert("commands".to_owned(), json!(commands));
    }
    let stages: Vec<_> = definition.stages.iter().map(|stage| stage.name()).collect();
    let parsed = json!({
        "hook": definition.hook, "when": shown, "or": when.combine == CombineRule::Any, "stages": stages,
    });
    Ok(serde_json::from_str(&parsed.to_string().replace(root, "{ROOT}"))?)
}

fn make_dirs(dirs: &Value, root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let replace = |text: &str| text.replace("{ROOT}", root.to_str().unwrap());
    let mut paths = Vec::new();
    for (number, dir) in dirs.as_array().into_iter().flatten().enumerate() {
        let path = root.join(format!("d{number}"));
        paths.push(path.clone());
        if dir["missing"] == true {
            continue;
        }
        if dir["is_file"] == true {
            fs::write(&path, "")?;
            continue;
        }
        if dir["via_symlink"] == true {
            let real = root.join(format!("real{number}"));
            fs::create_dir(&real)?;
            symlink(&real, &path)?;
        } else {
            fs::create_dir(&path)?;
        }
        for (name, text) in dir["files"].as_object().into_iter().flatten() {
            fs::write(path.join(name), replace(text.as_str().unwrap()))?;
        }
        for entry in dir["entries"].as_array().into_iter().flatten() {
            let name = match entry["name_b64"].as_str() {
                Some(name) => base64(name),
                None => entry["name"].as_str().unwrap().as_bytes().to_vec(),
            };
            let path = path.join(OsStr::from_bytes(&name));
            if let Some(target) = entry["symlink"].as_str() {
                symlink(replace(target), path)?;
            } else if entry["dir"] == true {
                fs::create_dir(path)?;
            } else if let Some(text) = entry["text_b64"].as_str() {
                fs::write(path, base64(text))?;
            } else {
                fs::write(path, replace(entry["text"].as_str().unwrap()))?;
            }
        }
    }
    Ok(paths)
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| -> u32 {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        u32::try_from(alphabet.iter().position(|&b| b == byte).unwrap()).unwrap()
    };
    let text = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::new();
    for group in text.chunks(4) {
        let bits = group.iter().fold(0, |bits, &b| bits << 6 | digit(b)) << (6 * (4 - group.len()));
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    bytes
}
