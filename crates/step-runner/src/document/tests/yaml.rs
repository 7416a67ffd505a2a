//! Recorded results of the YAML library of GitLab's step runner.

use oci_hooks_yaml::{
    NodeSource, TextPosition, YamlDialect, YamlDocuments, YamlNode, YamlValue as Nothing,
};
use serde_json::{Value as Json, json};

use super::vectors::cases;
use crate::ExprValue;
use crate::document::reader::StepFileReader;

/// Intended differences: the text, the reason, and our value; null for an error.
fn intended_differences() -> Vec<(&'static str, &'static str, Json)> {
    let custom = "a tag that is unknown changes what a value means";
    let newer = "YAML 1.2 has it";
    vec![
        ("!foo 010", custom, Json::Null),
        ("!foo [1]", custom, Json::Null),
        ("!!map [1]", custom, Json::Null),
        ("!!seq {a: 1}", custom, Json::Null),
        ("!!str {a: 1}", custom, Json::Null),
        ("!!set {a, b}", custom, Json::Null),
        ("!!omap [{a: 1}]", custom, Json::Null),
        ("!!timestamp x", "times are strings", json!("x")),
        ("!!binary ////", "steps have no strings that are not UTF-8", Json::Null),
        ("a: \"\\x41\\u00e9\\/\"\n", newer, json!({"a": "Aé/"})),
        ("a: x\u{2028}y\n", newer, json!({"a": "x\u{2028}y"})),
        ("a: \"x\u{85}y\"\n", newer, json!({"a": "x\u{85}y"})),
        ("{2024-01-01: a}", "times are strings", json!({"2024-01-01": "a"})),
        ("b: {!!merge x: {x: 1}}\n", custom, Json::Null),
        ("&k a: 1\n*k : 2\n", "a key that occurs twice is an error", Json::Null),
        ("%YAML 1.2\n---\n010\n", newer, json!(8)),
    ]
}

fn parse(text: &str) -> Option<YamlNode> {
    match YamlDocuments::new(text, YamlDialect::Go).next() {
        None => Some(YamlNode {
            origin: NodeSource { position: TextPosition { line: 1, column: 1 }, word: None },
            value: Nothing::Null,
        }),
        Some(document) => document.ok().map(|document| document.root),
    }
}

/// Reads a value from a text; returns `None` on an error.
fn read<T>(text: &str, read: impl FnOnce(&mut StepFileReader, &YamlNode) -> T) -> Option<T> {
    let node = parse(text)?;
    let mut reader = StepFileReader::default();
    let found = read(&mut reader, &node);
    reader.into_problems().is_empty().then_some(found)
}

/// Returns our value for a recorded one, or `None` if step files cannot contain it.
fn expected_value(row: &Json) -> Option<ExprValue> {
    let value = row.get("value")?;
    let text = value.to_string();
    if value.get("$time").is_some() {
        // Times are strings for us.
        return row["text"].as_str().map(|text| ExprValue::String(text.to_owned()));
    }
    (!text.contains("\"$")).then(|| ExprValue::from(value.clone()))
}

#[test]
fn texts_have_the_recorded_values() {
    let mut different = intended_differences();
    let mut faults = Vec::new();
    let rows = cases("yaml.jsonl");
    assert!(rows.len() > 200);
    for row in &rows {
        let text = row["yaml"].as_str().unwrap();
        let known = different.iter().position(|(other, ..)| *other == text);
        let expected = match known {
            Some(at) => match different.swap_remove(at).2 {
                Json::Null => None,
                value => Some(ExprValue::from(value)),
            },
            None => expected_value(row),
        };
        let found = read(text, StepFileReader::value);
        if found != expected {
            faults.push(format!("{text:?}: {found:?}, expected {expected:?}"));
        }
        if known.is_some() {
            continue;
        }
        let text = format!("v: {text}");
        let found = read(&text, |reader, node| match node.fields() {
            [field] => reader.text(&field.node),
            _ => panic!("one field was written"),
        });
        if found.as_deref() != row["text"].as_str() {
            faults.push(format!("{text:?} as text: {found:?}, expected {}", row["text"]));
        }
        let found = read(&text, |reader, node| {
            node.fields().iter().all(|field| field.node.is_null() || reader.flag(&field.node))
        });
        let expected = row["flag"].as_bool();
        // A null value counts as a missing one.
        if found != expected && row["value"] != Json::Null {
            faults.push(format!("{text:?} as a flag: {found:?}, expected {expected:?}"));
        }
    }
    assert!(different.is_empty(), "a difference names no row: {different:?}");
    assert!(faults.is_empty(), "{} texts:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn unsupported_numbers_are_rejected_except_as_text() {
    let problem =
        |text: &str| crate::document::parse_steps(text).map_err(|error| error.to_string());
    let steps = problem("[{name: a, script: .inf, env: {A: .nan, B: 010, C: !!int '5'}}]").unwrap();
    assert_eq!(steps[0].env["A"], ".nan");
    assert_eq!(steps[0].env["B"], "010");
    assert_eq!(steps[0].env["C"], "5");
    assert_eq!(
        problem("[{name: a, step: ./b, inputs: {v: [.inf]}}]").unwrap_err(),
        "STEPS:1:36: [0].inputs.v: number .inf cannot be represented in JSON: put it in quotes if \
         it is a string"
    );
}
