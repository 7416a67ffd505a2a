//! `oci-hooks schema`: the schemas compared with the loader.

use std::fs;
use std::path::Path;

use jsonschema::Validator;
use oci_hooks::hooks::{HookDefinition, ParseOptions, PathCheck, SchemaVersion};
use serde_json::Value;

use crate::cli::env::HookEnv;

fn schema(version: SchemaVersion) -> (Value, Validator) {
    let ran = HookEnv::new().run(&["schema", "--version", version.name()]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.stdout, version.json_schema());
    let schema = serde_json::from_str(&ran.stdout).unwrap();
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    (schema, validator)
}

fn can_load(text: &str) -> bool {
    let extension_stages = ["precreate".to_owned(), "poststop".to_owned()];
    let options = ParseOptions::new(&extension_stages).with_path_check(PathCheck::Skip);
    HookDefinition::parse(text.as_bytes(), options).is_ok()
}

/// Checks whether a schema and the loader accept texts.
#[track_caller]
fn compare(validator: &Validator, texts: &[&str], takes: bool, loader_takes: bool) {
    for text in texts {
        let value = serde_json::from_str(text).unwrap();
        assert_eq!(validator.is_valid(&value), takes, "schema: {text}");
        assert_eq!(can_load(text), loader_takes, "loader: {text}");
    }
}

/// Returns a complete 1.0.0 file.
fn current_file(hook: &str, when: &str, stages: &str) -> String {
    format!(r#"{{"version":"1.0.0","hook":{{{hook}}},"when":{{{when}}},"stages":[{stages}]}}"#)
}

const HOOK: &str = r#""path":"/bin/x""#;
const WHEN: &str = r#""always":true"#;
const STAGE: &str = r#""poststop""#;

#[test]
fn schemas_accept_what_the_loader_accepts() {
    let (_, validator) = schema(SchemaVersion::V1_0_0);
    let full = r#""path":"/bin/x","args":["x",""],"env":["A=","B=c=d"],"timeout":1"#;
    let every = r#""always":false,"hasBindMounts":true,"annotations":{"":"a"},"commands":["","b"]"#;
    let stages = r#""createRuntime","createContainer","startContainer","poststart","poststop",
        "precreate","prestart""#;
    compare(
        &validator,
        &[
            &current_file(HOOK, WHEN, STAGE),
            &current_file(full, every, stages),
            &current_file(r#""path":"/bin/x","env":[]"#, WHEN, STAGE),
        ],
        true,
        true,
    );

    let (_, validator) = schema(SchemaVersion::V0_1_0);
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
fn schemas_reject_what_the_loader_rejects() {
    let (_, validator) = schema(SchemaVersion::V1_0_0);
    compare(
        &validator,
        &[
            "[]",
            "{}",
            &current_file(HOOK, WHEN, r#""preStart""#),
            &current_file(HOOK, WHEN, "1"),
            &current_file("", WHEN, STAGE),
            &current_file(r#""path":"""#, WHEN, STAGE),
            &current_file(r#""path":1"#, WHEN, STAGE),
            &current_file(r#""path":"/x","args":"a""#, WHEN, STAGE),
            &current_file(r#""path":"/x","timeout":"5""#, WHEN, STAGE),
            &current_file(r#""path":"/x","timeout":1.5"#, WHEN, STAGE),
            &current_file(r#""path":"/x","env":{"A":"b"}"#, WHEN, STAGE),
            &current_file(HOOK, r#""always":"true""#, STAGE),
            &current_file(HOOK, r#""annotations":["a"]"#, STAGE),
            &current_file(HOOK, r#""annotations":{"a":1}"#, STAGE),
            &current_file(HOOK, r#""commands":"a""#, STAGE),
            r#"{"hook":{"path":"/bin/x"},"when":{"always":true},"stages":["poststop"]}"#,
            r#"{"version":"1.0","hook":{"path":"/x"},"when":{"always":true},"stages":["poststop"]}"#,
            r#"{"version":"1.0.0","hook":{"path":"/x"},"when":{"always":true}}"#,
            r#"{"version":"1.0.0","when":{"always":true},"stages":["poststop"]}"#,
        ],
        false,
        false,
    );

    let (_, validator) = schema(SchemaVersion::V0_1_0);
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

/// The loader follows the consumers, which ignore these mistakes; schemas reject them.
#[test]
fn schemas_are_intentionally_stricter() {
    let (_, validator) = schema(SchemaVersion::V1_0_0);
    compare(
        &validator,
        &[
            // Unknown keys, or keys that only Go's case-insensitive decoder knows.
            r#"{"version":"1.0.0","hook":{"path":"/x"},"When":{"always":true},"stages":["poststop"]}"#,
            &current_file(HOOK, r#""always":true,"bindMounts":true"#, STAGE),
            &current_file(r#""path":"/x","arg":["a"]"#, WHEN, STAGE),
            // Hooks that never run.
            &current_file(HOOK, "", STAGE),
            &current_file(HOOK, r#""commands":[]"#, STAGE),
            &current_file(HOOK, WHEN, ""),
            r#"{"version":"1.0.0","hook":{"path":"/x"},"stages":["poststop"]}"#,
            // Hooks that run twice.
            &current_file(HOOK, WHEN, r#""poststop","poststop""#),
            // Relative paths of programs, which depend on the consumer's working directory.
            &current_file(r#""path":"x""#, WHEN, STAGE),
            // Timeouts that expire at once, and empty argument vectors.
            &current_file(r#""path":"/x","timeout":0"#, WHEN, STAGE),
            &current_file(r#""path":"/x","timeout":9223372037"#, WHEN, STAGE),
            &current_file(r#""path":"/x","args":[]"#, WHEN, STAGE),
            &current_file(r#""path":"/x","env":["A"]"#, WHEN, STAGE),
            // `null` instead of a value.
            &current_file(r#""path":"/x","args":null"#, WHEN, STAGE),
        ],
        false,
        true,
    );

    let (_, validator) = schema(SchemaVersion::V0_1_0);
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

/// Properties that schemas cannot express.
#[test]
fn schemas_do_not_check_patterns_and_number_forms() {
    let (_, validator) = schema(SchemaVersion::V1_0_0);
    compare(
        &validator,
        &[
            &current_file(HOOK, r#""commands":["("]"#, STAGE),
            &current_file(r#""path":"/x","timeout":5.0"#, WHEN, STAGE),
        ],
        true,
        false,
    );
}

/// Checks the examples in a schema and all its subschemas, and counts them.
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
fn schema_examples_are_valid() {
    for version in [SchemaVersion::V1_0_0, SchemaVersion::V0_1_0] {
        let (schema, validator) = schema(version);
        for example in schema["examples"].as_array().unwrap() {
            compare(&validator, &[&example.to_string()], true, true);
        }
        let mut count = 0;
        examples_of(&schema, &mut count);
        assert!(
            count > schema["examples"].as_array().unwrap().len()
                || version == SchemaVersion::V0_1_0
        );
    }
}

#[test]
fn example_hooks_are_valid() {
    let (_, validator) = schema(SchemaVersion::V1_0_0);
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

/// Editors display titles and descriptions.
#[test]
fn schemas_have_a_name_titles_and_descriptions() {
    for (version, number) in [(SchemaVersion::V1_0_0, "1.0.0"), (SchemaVersion::V0_1_0, "0.1.0")] {
        let (schema, validator) = schema(version);
        assert_eq!(schema["$id"], format!("urn:oci-hooks:hook-file:{number}"));

        let mut example = schema["examples"][0].clone();
        example["$schema"] = "file:///usr/share/oci-hooks/hook.schema.json".into();
        assert!(validator.is_valid(&example) && can_load(&example.to_string()));

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
