//! The schema accepts and rejects the same step files as the parser.

use jsonschema::Validator;
use serde_json::{Value as Json, json};

use super::vectors::cases;
use crate::document::reader::StepFileReader;
use crate::document::{reader, schema};

/// Validators of the two documents of a step file: the spec and the definition.
struct Schema {
    spec: Validator,
    definition: Validator,
}

impl Schema {
    fn new() -> Self {
        let part = |name| {
            let mut schema: Json = serde_json::from_str(schema()).unwrap();
            schema.as_object_mut().unwrap().remove("anyOf");
            schema["$ref"] = json!(format!("#/$defs/{name}"));
            jsonschema::draft202012::new(&schema).unwrap()
        };
        Schema { spec: part("spec_document"), definition: part("definition") }
    }

    /// Returns whether the schema and the parser accept a step file, or `None` if it is not YAML.
    fn verdicts(&self, text: &str) -> Option<(bool, bool)> {
        let (spec, definition) = reader::documents(text).ok()?;
        let (_, faults) = reader::read(&spec, &definition);
        let json = |node| {
            serde_json::from_str::<Json>(&StepFileReader::default().value(node).to_json()).unwrap()
        };
        let is_valid =
            self.spec.is_valid(&json(&spec)) && self.definition.is_valid(&json(&definition));
        Some((is_valid, faults.is_empty()))
    }
}

#[test]
fn schema_is_a_valid_schema() {
    let schema: Json = serde_json::from_str(schema()).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for document in [json!({"spec": {}}), json!({"exec": {"command": ["a"]}})] {
        assert!(validator.is_valid(&document), "{document}");
    }
    assert!(!validator.is_valid(&json!({"sepc": {}})));
}

#[test]
fn schema_accepts_the_same_recorded_step_files() {
    let schema = Schema::new();
    let (mut taken, mut refused) = (0, 0);
    for case in cases("steps.jsonl") {
        let files = case["files"].as_object().into_iter().flatten();
        let files = files.filter(|(name, _)| name.ends_with(".yml")).map(|(_, text)| text);
        for text in files.chain([&case["steps"]]) {
            let Some((by_schema, by_parser)) = schema.verdicts(text.as_str().unwrap()) else {
                continue;
            };
            assert_eq!(by_schema, by_parser, "{}: {text}", case["id"]);
            *(if by_schema { &mut taken } else { &mut refused }) += 1;
        }
    }
    assert!(taken > 200 && refused > 25, "{taken} {refused}");
}

#[test]
fn schema_accepts_the_same_forms_of_calls() {
    let schema = Schema::new();
    let calls = [
        ("{name: a, step: ./b}", true),
        ("{name: a, func: ./b, if: true, continue_on_error: true}", true),
        ("{name: a, func: ./b, if: 'inputs.x', continue-on-error: false}", true),
        ("{name: a, step: {git: {url: u, rev: 1.5, dir: d, file: f.yml}}}", true),
        ("{name: a, step: {oci: {registry: r, repository: p, tag: t}}}", true),
        ("{name: a, step: 'builtin://script'}", true),
        ("{name: a, step: 'r.io/g/p:1 dir'}", true),
        ("{name: a, step: '${{ inputs.x }}'}", true),
        ("{name: a, action: x, inputs: {b: [{c: 1}]}}", true),
        ("{name: a, script: 5, env: {A: ~, B: 1, C: true}, description: d}", true),
        ("{name: a, step: ./b, if: ''}", false),
        ("{name: a, step: ./b, if: 5}", false),
        ("{name: a, step: ./b, func: ./b}", false),
        ("{name: a, step: ./b, continue_on_error: true, continue-on-error: true}", false),
        ("{name: a, step: ./b, continue_on_error: yes}", true),
        ("{name: a, step: ./b, continue_on_error: ''}", false),
        ("{name: a, step: 'r.io/g/p'}", false),
        ("{name: a, step: {git: {url: u, rev: ''}}}", false),
        ("{name: a, step: {git: {url: u, rev: r, ref: x}}}", false),
        ("{name: a, step: {oci: {registry: r, repository: p}}}", false),
        ("{name: a, step: {}}", false),
        ("{name: a, script: ''}", false),
        ("{name: a, script: [b]}", false),
        ("{name: a-b, script: c}", false),
        ("{name: a, script: c, env: {A: [b]}}", false),
        ("{name: a, script: c, when: always}", false),
    ];
    for (call, expected) in calls {
        let text = format!("spec: {{}}\n---\nrun: [{call}]\n");
        assert_eq!(schema.verdicts(&text), Some((expected, expected)), "{call}");
    }
}
