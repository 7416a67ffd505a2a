//! Recorded: what the YAML library of GitLab's step runner makes of texts.

use serde_json::{Value as Json, json};

use super::vectors::cases;
use crate::step_runner::Value;
use crate::step_runner::document::reader::Reader;
use crate::yaml::{Dialect, Documents, Node, Position, Source, Value as Nothing};

/// Where we differ on purpose: the text, why, and our value; null: an error.
fn different() -> Vec<(&'static str, &'static str, Json)> {
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

fn parse(text: &str) -> Option<Node> {
    match Documents::new(text, Dialect::Go).next() {
        None => Some(Node {
            origin: Source { position: Position { line: 1, column: 1 }, word: None },
            value: Nothing::Null,
        }),
        Some(document) => document.ok().map(|document| document.root),
    }
}

/// Reads something of a text; `None` if that is an error.
fn read<T>(text: &str, read: impl FnOnce(&mut Reader, &Node) -> T) -> Option<T> {
    let node = parse(text)?;
    let mut reader = Reader::default();
    let found = read(&mut reader, &node);
    reader.into_problems().is_empty().then_some(found)
}

/// Returns the value that we have for a recorded one; `None` if it cannot be in a step.
fn wanted(row: &Json) -> Option<Value> {
    let value = row.get("value")?;
    let text = value.to_string();
    if value.get("$time").is_some() {
        // A string for us.
        return row["text"].as_str().map(|text| Value::String(text.to_owned()));
    }
    (!text.contains("\"$")).then(|| Value::from(value.clone()))
}

#[test]
fn texts_are_the_values_that_were_recorded() {
    let mut different = different();
    let mut faults = Vec::new();
    let rows = cases("yaml.jsonl");
    assert!(rows.len() > 200);
    for row in &rows {
        let text = row["yaml"].as_str().unwrap();
        let known = different.iter().position(|(other, ..)| *other == text);
        let expected = match known {
            Some(at) => match different.swap_remove(at).2 {
                Json::Null => None,
                value => Some(Value::from(value)),
            },
            None => wanted(row),
        };
        let found = read(text, Reader::value);
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
        // Null is as if nothing was there.
        if found != expected && row["value"] != Json::Null {
            faults.push(format!("{text:?} as a flag: {found:?}, expected {expected:?}"));
        }
    }
    assert!(different.is_empty(), "a difference names no row: {different:?}");
    assert!(faults.is_empty(), "{} texts:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn numbers_that_steps_cannot_have_are_rejected_but_as_text() {
    let problem = |text: &str| {
        crate::step_runner::document::parse_steps(text).map_err(|error| error.to_string())
    };
    let steps = problem("[{name: a, script: .inf, env: {A: .nan, B: 010, C: !!int '5'}}]").unwrap();
    assert_eq!(steps[0].env["A"], ".nan");
    assert_eq!(steps[0].env["B"], "010");
    assert_eq!(steps[0].env["C"], "5");
    assert_eq!(
        problem("[{name: a, step: ./b, inputs: {v: [.inf]}}]").unwrap_err(),
        "STEPS:1:36: [0].inputs.v: .inf is a number that steps cannot have: put it in quotes if \
         it is a string"
    );
}
