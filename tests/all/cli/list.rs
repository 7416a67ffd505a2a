//! `oci-hooks list`, `show`, and common behaviour of all commands.

use std::process::Stdio;

use oci_hooks_testsupport::completion::complete_words;

use crate::cli::env::{HookEnv, golden};

#[test]
fn list_shows_hooks_in_injection_order() {
    let ran = HookEnv::with_hooks().run(&["list"]);
    assert_eq!(ran.code, Some(0));
    golden("list.txt", &ran.stdout);
    golden("list.stderr", &ran.stderr);
}

#[test]
fn json_list_contains_whole_definitions() {
    golden("list.json", &HookEnv::with_hooks().run(&["list", "--format", "json"]).stdout);
}

#[test]
fn list_reports_an_empty_directory() {
    let env = HookEnv::new();
    std::fs::remove_dir(env.path("usr")).unwrap();
    let ran = env.run(&["list"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    let said = "note: {ROOT}/usr does not exist\nnote: {ROOT}/etc has no hook that can be used\n";
    assert_eq!(ran.stderr, said);
}

#[test]
fn list_says_that_no_container_starts() {
    let env = HookEnv::with_hooks();
    env.write("usr/05-comment.json", "{ // no\n}");
    let ran = env.run(&["list"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    let said = "warning: podman cannot start any container because of {ROOT}/usr/05-comment.json";
    assert_eq!(ran.stderr.lines().last(), Some(said), "{}", ran.stderr);
}

/// GitHub runs commands at the start of lines that a step prints.
#[test]
fn file_names_and_keys_are_escaped() {
    let env = HookEnv::new();
    let name = "a\n::error::b\u{1b}]0;c\u{7}.json";
    let path = format!("etc/{name}");
    env.hook(&path, r#""always": true"#, r#""poststop""#);
    env.write(
        &format!("usr/2{name}"),
        r#"{"version": "1.0.0", "when": {"annotations": {"\n::error::(": "a"}}}"#,
    );
    env.write(&format!("usr/3{name}"), r#"{"version": 1.0}"#);
    for args in [
        &["list"][..],
        &["explain"],
        &["explain", "--consumers"],
        &["lint"],
        &["lint", "--diff"],
        &["show", name],
        &["validate", &path],
        &["validate", "--consumers", &path],
        &["disable", name],
        &["enable", name],
        &["remove", "--dry-run", name],
        &["inject"],
    ] {
        let ran = env.run(args);
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains(r"::error::b\u{1b}]0;c\u{7}.json"), "{args:?}: {said}");
        assert!(!said.contains("\n::"), "{args:?}: {said}");
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!said.contains(is_control), "{args:?}: {said:?}");
    }
}

#[test]
fn show_reports_hidden_hooks() {
    let env = HookEnv::with_hooks();
    golden("show.txt", &env.run(&["show", "20-gpu"]).stdout);
    let ran = env.run(&["show", "nothing"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("hook \"nothing.json\" not found"), "{}", ran.stderr);
}

#[test]
fn a_missing_directory_is_a_warning() {
    let env = HookEnv::new();
    let ran = env.run(&["inject", "--hooks-dir", "nowhere"]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.stderr, "warning: nowhere: directory does not exist\n");
}

#[test]
fn errors_are_json_objects_on_request() {
    let env = HookEnv::new();
    env.write("config.json", "{\"process\": {\"args\": \"sh\"}}");
    let ran = env.run(&["inject", "--error-format", "json"]);
    assert_eq!(ran.code, Some(2));
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(
        error,
        serde_json::json!({
            "level": "error", "class": "json-type", "path": "config.json", "line": 1, "column": 22,
            "pointer": "/process/args", "message": "expected an array of strings, found string",
            "hint": null,
        })
    );
}

#[test]
fn closed_pipe_exits_as_by_sigpipe_without_an_error() {
    let env = HookEnv::with_hooks();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = env.command(&["list"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.contains("error")), (Some(141), false), "{said}");
}

#[test]
fn completions_are_generated_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = HookEnv::new().run(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.stdout.contains("oci-hooks"), "{shell}");
    }
    let completed = |words: &[&str]| complete_words(env!("CARGO_BIN_EXE_oci-hooks"), None, words);
    assert_eq!(completed(&["expl"]), ["explain"]);
    assert_eq!(completed(&["lint", "--hooks"]), ["--hooks-dir"]);
    assert!(completed(&["list", "--format", ""]).contains(&"json".to_owned()));
    assert_eq!(completed(&["lint", "--explain", "glob"]), ["glob-pattern"]);
}

#[test]
fn usage_errors_have_the_error_format() {
    for words in [["--error-format", "json", "lst"].as_slice(), &["lst", "--error-format=json"]] {
        let ran = HookEnv::new().run(words);
        assert_eq!(ran.code, Some(2));
        let said: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
        assert_eq!(said["message"], "unrecognized subcommand 'lst'", "{said}");
        assert_eq!(said["hint"], "some similar subcommands exist: 'lint', 'list'", "{said}");
    }
}
