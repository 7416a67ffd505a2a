//! Compared with GitLab's step runner, and cases beyond its vectors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;

use super::super::document::Output;
use super::super::{Type, Value};
use super::{FileError, MAX_BYTES, read_exports, read_outputs};

fn declared(outputs: &serde_json::Value) -> BTreeMap<String, Output> {
    let output = |spec: &serde_json::Value| Output {
        kind: Type::from_name(spec["type"].as_str().unwrap()).unwrap(),
        default: spec.get("default").cloned().map(Value::from),
        sensitive: false,
        description: None,
    };
    outputs.as_object().unwrap().iter().map(|(name, spec)| (name.clone(), output(spec))).collect()
}

#[test]
fn files_are_read_as_gitlab_reads_them() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/steps/stepfiles.jsonl");
    let mut count = 0;
    for line in fs::read_to_string(path).unwrap().lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let content = case["content"].as_str().unwrap().as_bytes();
        let (key, result) = if case["mode"] == "outputs" {
            let outputs = read_outputs(content, &declared(&case["outputs"]));
            ("outputs", outputs.map(Value::Object))
        } else {
            let text = |(name, text)| (name, Value::String(text));
            let exports = read_exports(content);
            ("env", exports.map(|env| Value::Object(env.into_iter().map(text).collect())))
        };
        let expected = match case["expected"].get("error") {
            Some(error) => Err(error.as_str().unwrap().to_owned()),
            None => Ok(Value::from(case["expected"][key].clone())),
        };
        // Ours may show the right form of the line behind it.
        let without_hint = |error: FileError| {
            let text = error.to_string();
            text.split(": write {").next().unwrap().to_owned()
        };
        assert_eq!(result.map_err(without_hint), expected, "{}", case["id"]);
        count += 1;
    }
    assert_eq!(count, 29);
}

#[test]
fn faults_of_json_are_told_as_go_tells_them() {
    for (line, message) in [
        (
            "name=value",
            "invalid character 'a' in literal null (expecting 'u'): write {\"name\": \"NAME\", \"value\": \"…\"}",
        ),
        (
            "export A=b",
            "invalid character 'e' looking for beginning of value: write {\"name\": \"NAME\", \"value\": \"…\"}",
        ),
        ("fals", "unexpected end of JSON input"),
        ("tru3", "invalid character '3' in literal true (expecting 'e')"),
        ("{", "unexpected end of JSON input"),
        ("{\"name\":\"a", "unexpected end of JSON input"),
        ("{'a':1}", "invalid character '\\'' looking for beginning of object key string"),
        ("{\"name\" 1}", "invalid character '1' after object key"),
        ("{\"name\":\"a\" 1}", "invalid character '1' after object key:value pair"),
        ("[1 2]", "invalid character '2' after array element"),
        ("[1, ]", "invalid character ']' looking for beginning of value"),
        ("{\"a\":1, }", "invalid character '}' looking for beginning of object key string"),
        ("\"a\tb\"", "invalid character '\\t' in string literal"),
        ("\"\u{1}\"", "invalid character '\\x01' in string literal"),
        ("\"\\x\"", "invalid character 'x' in string escape code"),
        ("\"\\u12\"", "invalid character '\"' in \\u hexadecimal character escape"),
        ("-a", "invalid character 'a' in numeric literal"),
        ("# A", "invalid character '#' looking for beginning of value"),
        ("é", "invalid character 'Ã' looking for beginning of value"),
        ("true", "json: cannot unmarshal bool into Go value of type runner.StepFileLine"),
        (
            "{\"name\":\"a\",\"value\":1e999}",
            "json: cannot unmarshal number 1e999 into Go value of type float64",
        ),
        ("{\"name\":\"\",\"value\":1}", "\"name\" field value is empty"),
        ("{\"name\":\"a\",\"value\":null}", "\"value\" field value is null"),
        ("{\"name\":\"a\"}", "\"value\" field is missing"),
    ] {
        let error = read_exports(format!("\n{line}").as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("read env file: failed to unmarshal JSON at line 2: {message}"),
            "{line}"
        );
    }
}

#[test]
fn names_of_fields_are_read_in_any_case_and_the_last_value_counts() {
    let content =
        b"\r\n{\"NAME\":\"A\",\"Value\":1,\"more\":[]}\r\n\n{\"name\":\"A\",\"value\":1e21}\n";
    let exports = read_exports(content).unwrap();
    assert_eq!(exports, BTreeMap::from([("A".to_owned(), "1000000000000000000000".to_owned())]));
}

#[test]
fn outputs_must_be_those_that_are_declared() {
    let outputs = declared(&json!({"a": {"type": "string"}}));
    let error = |content: &str| read_outputs(content.as_bytes(), &outputs).unwrap_err().to_string();
    assert_eq!(
        error("{\"name\":\"q\",\"value\":1}"),
        "read output file: key \"q\": unexpected output, remove from step outputs or define in step specification"
    );
    assert_eq!(
        error(""),
        "read output file: key \"a\": missing output, add to step outputs or remove from step specification"
    );
    assert_eq!(
        read_exports(b"{\"name\":\"a\",\"value\":{}}").unwrap_err().to_string(),
        "read env file: key \"a\": cannot convert value type \"struct\" to string"
    );
}

#[test]
fn lines_may_be_as_long_as_files_but_files_and_nesting_end() {
    let long = "x".repeat(MAX_BYTES - 22);
    let content = format!("{{\"name\":\"A\",\"value\":\"{long}\"}}");
    let content = content.as_bytes();
    assert_eq!(content.len(), MAX_BYTES + 1);
    assert_eq!(
        read_exports(content),
        Err(FileError::TooLarge { file: "env file", limit: MAX_BYTES })
    );
    let content = format!("{{\"name\":\"A\",\"value\":\"{}\"}}", &long[1..]);
    assert_eq!(read_exports(content.as_bytes()).unwrap()["A"].len(), long.len() - 1);

    let nested = |depth| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!("{{\"name\":\"A\",\"value\":{open}{close}}}")
    };
    let outputs = declared(&json!({"A": {"type": "array"}}));
    assert!(read_outputs(nested(128).as_bytes(), &outputs).is_ok());
    for depth in [129, 9_000, 100_000] {
        let error = read_outputs(nested(depth).as_bytes(), &outputs).unwrap_err().to_string();
        assert!(error.ends_with("line 1: exceeded max depth"), "{error}");
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(content in proptest::collection::vec(0u8.., 0..200)) {
        if let Err(error) = read_exports(&content) {
            proptest::prop_assert!(error.to_string().starts_with("read env file: "));
        }
    }

    #[test]
    fn what_is_written_is_read(
        written in proptest::collection::btree_map(".+", ".*", 0..8),
    ) {
        let line = |(name, value): (&String, &String)| json!({"name": name, "value": value}).to_string();
        let content = written.iter().map(line).collect::<Vec<_>>().join("\n");
        proptest::prop_assert_eq!(read_exports(content.as_bytes()).unwrap(), written);
    }
}

#[test]
fn a_line_of_shells_is_answered_by_the_right_form_for_the_declared_output() {
    let outputs = serde_json::json!({"size": {"type": "number"}, "s": {"type": "struct"}, "t": {"type": "string"}});
    let declared = declared(&outputs);
    for (line, right) in [
        ("size=5", r#"{"name": "size", "value": 1}"#),
        ("s=[]", r#"{"name": "s", "value": {}}"#),
        ("t=5", r#"{"name": "t", "value": "…"}"#),
        // It may be a secret.
        ("c2VjcmV0=", r#"{"name": "NAME", "value": "…"}"#),
    ] {
        let error = read_outputs(line.as_bytes(), &declared).unwrap_err().to_string();
        assert!(error.ends_with(&format!(": write {right}")), "{error}");
    }
    let error = read_outputs(b"size 5", &declared).unwrap_err().to_string();
    assert!(!error.contains("write"), "{error}");
}
