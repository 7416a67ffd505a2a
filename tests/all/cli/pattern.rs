//! `oci-hooks pattern`.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::cli::env::{HookEnv, golden};

#[test]
fn pattern_is_explained_and_matching_texts_shown() {
    let env = HookEnv::new();
    let mut text = String::new();
    for args in [
        &["pattern", "/(ba)?sh$", "/bin/sh", "/bin/bash", "/bin/bashful"][..],
        &["pattern", "^/bin/", "/bin/"],
        &["pattern", "^a$", "a", "ab"],
        &["pattern", "sh"],
        &["pattern", "a(?=b)"],
    ] {
        let ran = env.run(args);
        text += &format!("{}{}(exit {})\n\n", ran.stdout, ran.stderr, ran.code.unwrap());
    }
    golden("pattern.txt", &text);
    let ran = env.run(&["pattern", "/sh$", "/bin/sh", "x", "--format", "json"]);
    assert_eq!(ran.code, Some(1));
    golden("pattern.json", &ran.stdout);
}

#[test]
fn invalid_pattern_is_a_json_error_on_request() {
    let ran = HookEnv::new().run(&["pattern", "(", "--error-format", "json"]);
    assert_eq!(ran.code, Some(2));
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["class"], "bad-regex");
    assert_eq!(error["message"], "invalid pattern \"(\": missing closing ): `(`");
}

fn batch(args: &[&str], input: &str) -> (Option<i32>, Vec<Value>) {
    let line: Vec<_> = ["pattern", "--batch"].iter().chain(args).copied().collect();
    let ran = HookEnv::new().run_with_input(&line, input);
    let answers = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (ran.code, answers)
}

#[test]
fn batch_answers_each_line() {
    let (code, answers) = batch(
        &[],
        "{\"pattern\": \"^a+$\", \"texts\": [\"aa\", \"ab\", \"\\ud800\"], \"more\": 1}\n\
         {\"pattern\": \"[z-a]\", \"texts\": []}\n",
    );
    assert_eq!(code, Some(0));
    assert_eq!(answers[0], json!({"ok": true, "matches": [true, false, false]}));
    assert_eq!(answers[1]["ok"], false);
    assert_eq!(answers[1]["error"]["class"], "bad-regex");
    assert_eq!(answers.len(), 2);
}

#[test]
fn batch_continues_after_a_bad_line() {
    let long = "x".repeat((16 << 20) + 10);
    let good = r#"{"pattern": "a", "texts": ["a"]}"#;
    let input = format!("nope\n{{\"pattern\": 1}}\n{{\"pattern\": \"a\"}}\n\n{long}\n{good}\n");
    let (code, answers) = batch(&[], &input);
    assert_eq!(code, Some(1));
    let classes: Vec<_> = answers[..5].iter().map(|answer| &answer["error"]["class"]).collect();
    assert_eq!(classes, ["json-syntax", "json-type", "json-type", "json-syntax", "too-large"]);
    assert_eq!(answers[5], json!({"ok": true, "matches": [true]}));
    assert_eq!(answers.len(), 6);
}

#[test]
fn batch_answers_each_question_immediately() {
    let mut child = HookEnv::new()
        .command(&["pattern", "--batch"])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    for (text, matches) in [("a", true), ("b", false)] {
        writeln!(stdin, r#"{{"pattern": "a", "texts": ["{text}"]}}"#).unwrap();
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["matches"], json!([matches]));
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
