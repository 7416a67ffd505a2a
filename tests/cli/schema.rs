//! `oci-hooks schema`: the schemas against what the loader takes.

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use oci_hooks::hooks::{Definition, PathCheck, SchemaOptions, Version};
use serde_json::Value;

use crate::env::TestEnv;

fn schema(version: Version) -> (Value, Validator) {
    let ran = TestEnv::new().run(&["schema", "--version", version.name()]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.stdout, version.json_schema());
    let schema = serde_json::from_str(&ran.stdout).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    (schema, validator)
}

fn loads(text: &str) -> bool {
    let extension_stages = ["precreate".to_owned(), "poststop".to_owned()];
    let options = SchemaOptions::new(&extension_stages).with_path_check(PathCheck::Skip);
    Definition::parse(text.as_bytes(), options).is_ok()
}

/// Checks what a schema and the loader say about texts.
#[track_caller]
fn compare(validator: &Validator, texts: &[&str], takes: bool, loader_takes: bool) {
    for text in texts {
        let value = serde_json::from_str(text).unwrap();
        assert_eq!(validator.is_valid(&value), takes, "schema: {text}");
        assert_eq!(loads(text), loader_takes, "loader: {text}");
    }
}

/// Completes a 1.0.0 file.
fn current(hook: &str, when: &str, stages: &str) -> String {
    format!(r#"{{"version":"1.0.0","hook":{{{hook}}},"when":{{{when}}},"stages":[{stages}]}}"#)
}

const HOOK: &str = r#""path":"/bin/x""#;
const WHEN: &str = r#""always":true"#;
const STAGE: &str = r#""poststop""#;

#[test]
fn schemas_take_what_the_loader_takes() {
    let (_, validator) = schema(Version::V1_0_0);
    let full = r#""path":"/bin/x","args":["x",""],"env":["A=","B=c=d"],"timeout":1"#;
    let every = r#""always":false,"hasBindMounts":true,"annotations":{"":"a"},"commands":["","b"]"#;
    let stages = r#""createRuntime","createContainer","startContainer","poststart","poststop",
        "precreate","prestart""#;
    compare(
        &validator,
        &[
            &current(HOOK, WHEN, STAGE),
            &current(full, every, stages),
            &current(r#""path":"/bin/x","env":[]"#, WHEN, STAGE),
        ],
        true,
        true,
    );

    let (_, validator) = schema(Version::V0_1_0);
    compare(
        &validator,
        &[
            r#"{"hook":"/bin/x","stage":["prestart"]}"#,
            r#"{"version":"0.1.0","hook":"/bin/x","stages":["poststop"],"cmds":["a"],
                "annotations":["b"],"hasbindmounts":true,"arguments":[]}"#,
            r#"{"hook":"/bin/x","stage":["precreate"],"cmd":["a"],"annotation":["b"]}"#,
        ],
        true,
        true,
    );
}

#[test]
fn schemas_refuse_what_the_loader_refuses() {
    let (_, validator) = schema(Version::V1_0_0);
    compare(
        &validator,
        &[
            "[]",
            "{}",
            &current(HOOK, WHEN, r#""preStart""#),
            &current(HOOK, WHEN, "1"),
            &current("", WHEN, STAGE),
            &current(r#""path":"""#, WHEN, STAGE),
            &current(r#""path":1"#, WHEN, STAGE),
            &current(r#""path":"/x","args":"a""#, WHEN, STAGE),
            &current(r#""path":"/x","timeout":"5""#, WHEN, STAGE),
            &current(r#""path":"/x","timeout":1.5"#, WHEN, STAGE),
            &current(r#""path":"/x","env":{"A":"b"}"#, WHEN, STAGE),
            &current(HOOK, r#""always":"true""#, STAGE),
            &current(HOOK, r#""annotations":["a"]"#, STAGE),
            &current(HOOK, r#""annotations":{"a":1}"#, STAGE),
            &current(HOOK, r#""commands":"a""#, STAGE),
            r#"{"hook":{"path":"/bin/x"},"when":{"always":true},"stages":["poststop"]}"#,
            r#"{"version":"1.0","hook":{"path":"/x"},"when":{"always":true},"stages":["poststop"]}"#,
            r#"{"version":"1.0.0","hook":{"path":"/x"},"when":{"always":true}}"#,
            r#"{"version":"1.0.0","when":{"always":true},"stages":["poststop"]}"#,
        ],
        false,
        false,
    );

    let (_, validator) = schema(Version::V0_1_0);
    compare(
        &validator,
        &[
            "{}",
            r#"{"hook":"/bin/x"}"#,
            r#"{"stage":["poststop"]}"#,
            r#"{"hook":"/bin/x","stage":"poststop"}"#,
            r#"{"hook":"/bin/x","stage":["poststop"],"stages":["poststop"]}"#,
            r#"{"hook":"/bin/x","stage":["poststop"],"cmd":["a"],"cmds":["a"]}"#,
            r#"{"hook":"/bin/x","stage":["poststop"],"annotation":["a"],"annotations":["a"]}"#,
            r#"{"hook":{"path":"/bin/x"},"stages":["poststop"]}"#,
        ],
        false,
        false,
    );
}

/// The loader follows the consumers, who overlook these; whoever writes a file should not.
#[test]
fn schemas_are_stricter_on_purpose() {
    let (_, validator) = schema(Version::V1_0_0);
    compare(
        &validator,
        &[
            // Keys that mean nothing, or that only Go takes for others.
            r#"{"version":"1.0.0","hook":{"path":"/x"},"When":{"always":true},"stages":["poststop"]}"#,
            &current(HOOK, r#""always":true,"bindMounts":true"#, STAGE),
            &current(r#""path":"/x","arg":["a"]"#, WHEN, STAGE),
            // Hooks that never do anything.
            &current(HOOK, "", STAGE),
            &current(HOOK, r#""commands":[]"#, STAGE),
            &current(HOOK, WHEN, ""),
            r#"{"version":"1.0.0","hook":{"path":"/x"},"stages":["poststop"]}"#,
            // Hooks that run twice.
            &current(HOOK, WHEN, r#""poststop","poststop""#),
            // Programs that are looked up from wherever the consumer stands.
            &current(r#""path":"x""#, WHEN, STAGE),
            // Timeouts that are over at once, and empty argument vectors.
            &current(r#""path":"/x","timeout":0"#, WHEN, STAGE),
            &current(r#""path":"/x","timeout":9223372037"#, WHEN, STAGE),
            &current(r#""path":"/x","args":[]"#, WHEN, STAGE),
            &current(r#""path":"/x","env":["A"]"#, WHEN, STAGE),
            // Nothing where something is meant.
            &current(r#""path":"/x","args":null"#, WHEN, STAGE),
        ],
        false,
        true,
    );

    let (_, validator) = schema(Version::V0_1_0);
    compare(
        &validator,
        &[
            r#"{"hook":"/bin/x","stage":["poststop"],"annotations":[]}"#,
            r#"{"hook":"/bin/x","stage":[]}"#,
            r#"{"hook":"/bin/x","stage":["poststop"],"stages":null}"#,
            r#"{"version":"","hook":"/bin/x","stage":["poststop"]}"#,
            r#"{"hook":"/bin/x","stage":["poststop"],"when":{}}"#,
        ],
        false,
        true,
    );
}

/// What no schema can tell.
#[test]
fn schemas_leave_patterns_and_number_forms_to_the_loader() {
    let (_, validator) = schema(Version::V1_0_0);
    compare(
        &validator,
        &[
            &current(HOOK, r#""commands":["("]"#, STAGE),
            &current(r#""path":"/x","timeout":5.0"#, WHEN, STAGE),
        ],
        true,
        false,
    );
}

/// Checks the examples of a value of a schema and of all values below it; they are counted.
fn examples_of(schema: &Value, count: &mut usize) {
    match schema {
        Value::Object(members) => {
            let local = members.get("properties").is_none() && !schema.to_string().contains("$ref");
            for example in members.get("examples").and_then(Value::as_array).into_iter().flatten() {
                *count += 1;
                assert!(!local || jsonschema::draft202012::is_valid(schema, example), "{example}");
            }
            members.values().for_each(|value| examples_of(value, count));
        }
        Value::Array(values) => values.iter().for_each(|value| examples_of(value, count)),
        _ => {}
    }
}

#[test]
fn examples_in_the_schemas_are_right() {
    for version in [Version::V1_0_0, Version::V0_1_0] {
        let (schema, validator) = schema(version);
        for example in schema["examples"].as_array().unwrap() {
            compare(&validator, &[&example.to_string()], true, true);
        }
        let mut count = 0;
        examples_of(&schema, &mut count);
        assert!(count > schema["examples"].as_array().unwrap().len() || version == Version::V0_1_0);
    }
}

#[test]
fn example_hooks_are_valid() {
    let (_, validator) = schema(Version::V1_0_0);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks.d-examples");
    let mut count = 0;
    for dir in [examples.join("more"), examples.join("podman"), examples] {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let file = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
                validator.validate(&file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                count += 1;
            }
        }
    }
    assert!(count > 10, "{count}");
}

/// Editors show titles and descriptions.
#[test]
fn schemas_have_a_name_titles_and_descriptions() {
    for (version, number) in [(Version::V1_0_0, "1.0.0"), (Version::V0_1_0, "0.1.0")] {
        let (schema, validator) = schema(version);
        assert_eq!(schema["$id"], format!("urn:oci-hooks:hook-file:{number}"));

        let mut example = schema["examples"][0].clone();
        example["$schema"] = "file:///usr/share/oci-hooks/hook.schema.json".into();
        assert!(validator.is_valid(&example) && loads(&example.to_string()));

        for pointer in ["", "/properties/hook", "/properties/when"] {
            for (name, property) in schema
                .pointer(&format!("{pointer}/properties"))
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let property = match property.get("$ref").and_then(Value::as_str) {
                    Some(reference) => schema.pointer(&reference[1..]).unwrap(),
                    None => property,
                };
                for field in ["title", "description"] {
                    assert!(property[field].is_string(), "{field} of {pointer}/{name}");
                }
            }
        }
    }
}
