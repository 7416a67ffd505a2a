use std::fs;
use std::path::Path;

use serde_json::json;

use super::*;

fn data(name: &str) -> Vec<u8> {
    let requests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/requests");
    fs::read(requests.join(name)).unwrap()
}

fn parse_prepare_job(name: &str) -> PrepareJob {
    match HookRequest::parse(&data(name)).unwrap().command {
        HookCommand::PrepareJob(job) => job,
        other => panic!("{other:?}"),
    }
}

fn script(name: &str) -> ScriptStep {
    match HookRequest::parse(&data(name)).unwrap().command {
        HookCommand::RunScriptStep(step) => step,
        other => panic!("{other:?}"),
    }
}

fn error(json: &Value) -> String {
    HookRequest::parse(json.to_string().as_bytes()).unwrap_err().to_string()
}

/// Requests that the parser rejects. Other invalid requests fail later, for example because of an unknown
/// option.
const WRONG: [&str; 9] = [
    "bad-002-newline.json",
    "bad-003-not-json.json",
    "bad-004-truncated.json",
    "bad-007-unknown-command.json",
    "bad-008-no-command.json",
    "bad-009-command-number.json",
    "bad-011-prepare-no-response-file.json",
    "container-009-neither.json",
    // Accepting this request would also be correct.
    "container-011-adr-fields.json",
];

#[test]
fn recorded_requests_are_parsed_or_rejected() {
    let manifest = String::from_utf8(data("MANIFEST.jsonl")).unwrap();
    for line in manifest.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let name = entry["file"].as_str().unwrap();
        let request = HookRequest::parse(&data(name));
        assert_eq!(request.is_err(), WRONG.contains(&name), "{name}: {request:?}");
        assert!(request.is_ok() || entry["expect"] != "ok", "{name}");
    }
}

#[test]
fn errors_point_to_the_field() {
    let container = |extra: Value| {
        let mut container = json!({"image": "redis"});
        container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let args = json!({"container": null, "services": [container]});
        json!({"command": "prepare_job", "responseFile": "/x", "args": args})
    };
    for (extra, expected) in [
        (json!({"image": null}), "/args/services/0: needs `image` or `dockerfile`"),
        (json!({"image": 5}), "/args/services/0/image: must be a string, not a number"),
        (
            json!({"entryPointArgs": ["a", null]}),
            "/args/services/0/entryPointArgs/1: must be a string",
        ),
        (
            json!({"environmentVariables": {"a/b": []}}),
            "/environmentVariables/a~1b: must be a string",
        ),
        (json!({"environmentVariables": {"a=b": ""}}), "\"a=b\" cannot be the name"),
        (
            json!({"userMountVolumes": [{}]}),
            "/userMountVolumes/0/targetVolumePath: must be a string",
        ),
        (json!({"portMappings": {"80": "801"}}), "/args/services/0/portMappings: must be a list"),
        (json!({"createOptions": "a\0b"}), "/args/services/0/createOptions: has a NUL character"),
    ] {
        let error = error(&container(extra));
        assert!(error.contains(expected), "{error}");
    }
    let step =
        json!({"command": "run_script_step", "responseFile": "x", "args": {"entryPoint": "sh"}});
    assert_eq!(error(&step), "request: /responseFile: must be an absolute path");
    for args in [json!(null), json!([])] {
        let prepare = json!({"command": "prepare_job", "responseFile": "/x", "args": args});
        assert!(error(&prepare).starts_with("request: /args: "), "{}", error(&prepare));
    }
    assert!(error(&json!([])).contains("request: the document: must be an object"));
    assert!(
        error(&json!({"command": "cleanup_job", "state": []}))
            .contains("/state: must be an object")
    );
}

#[test]
fn absent_and_null_are_equivalent() {
    let absent = json!({"command": "prepare_job", "responseFile": "/x", "args": {"container": {"image": "a"}}});
    let job = HookRequest::parse(absent.to_string().as_bytes()).unwrap();
    let HookCommand::PrepareJob(PrepareJob { container: Some(container), services }) = job.command
    else {
        panic!("there is a container");
    };
    assert!(services.is_empty() && container.environment == RequestEnvironment::default());
    assert_eq!(
        parse_prepare_job("prepare-025-lists-null.json").container.unwrap().port_mappings,
        [""; 0]
    );
    assert_eq!(parse_prepare_job("prepare-023-services-null.json").services, []);
}

#[test]
fn field_names_of_the_decision_record_are_accepted() {
    let job = parse_prepare_job("prepare-019-adr-field-names.json");
    let container = job.container.unwrap();
    assert_eq!(container.source, ImageSource::Image("node:14.16".to_owned()));
    assert_eq!(container.system_mounts[0].target, "/__w");
    assert_eq!(job.services[0].context_name.as_deref(), Some("redis"));
}

#[test]
fn prepended_path_is_one_text_or_a_list() {
    assert_eq!(script("script-011-prepend-path-string.json").prepend_path, ["/foo/bar:/baz"]);
    assert!(script("script-010-prepend-path.json").prepend_path.len() > 1);
}

#[test]
fn credentials_are_parsed_and_never_shown() {
    let registry = |name| parse_prepare_job(name).container.unwrap().registry.unwrap();
    assert_eq!(registry("prepare-005-registry-dockerhub.json").server, None);
    let private = registry("prepare-004-registry.json");
    assert!(private.server.is_some());
    let shown = format!("{:?}", parse_prepare_job("prepare-004-registry.json"));
    assert!(!shown.contains(private.password.expose()), "{shown}");
}

#[test]
fn values_of_the_environment_are_not_shown() {
    let step = script("script-013-env-edge.json");
    let shown = format!("{step:?}");
    assert!(shown.contains("GITHUB_SHA") && !shown.contains(&step.environment.0["GITHUB_SHA"]));
}

#[test]
fn foreign_state_is_passed_through() {
    let state = |name| HookRequest::parse(&data(name)).unwrap().state;
    assert_eq!(state("cleanup-002-state-null.json"), None);
    assert!(state("cleanup-003-state-foreign.json").unwrap().contains_key("jobPod"));
}

#[test]
fn several_documents_are_rejected() {
    let two = br#"{"command": "cleanup_job"}{"command": "cleanup_job"}"#;
    assert!(matches!(HookRequest::parse(two), Err(RequestError::Json(_))));
    assert!(matches!(HookRequest::parse(b"\"\xff\""), Err(RequestError::Json(_))));
}

#[test]
fn secrets_are_not_shown() {
    assert_eq!(format!("{:?}", Some(SecretText::new("p@ss"))), "Some(***)");
    assert_eq!(SecretText::new("p@ss").expose(), "p@ss");
}
