//! Replay of calls recorded from the real GARM.

use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::provider::{RecordedCall, failure, recorded_calls};
use oci_hooks_testsupport::garm::server::ARCHIVE;
use serde_json::{Value, json};

use crate::setup::{GarmFixture, with_each_runtime};

const SETTINGS: &str = "[images.\"debian:12\"]\nreference = \"docker.io/garm/runner:1\"\n\
    [images.x]\nreference = \"docker.io/garm/base:1\"\n\
    [images.\"docker.io/library/debian:12\"]\nreference = \"docker.io/garm/runner:1\"\n";

/// Replays a recorded call; URLs are replaced by those of the test's server.
fn replay(world: &GarmFixture<'_>, call: &RecordedCall) -> EndedCall {
    let settings = world.installation.settings().display().to_string();
    let env = call.env.iter().map(|(name, value)| match name.as_str() {
        "GARM_PROVIDER_CONFIG_FILE" => (name.clone(), settings.clone()),
        _ => (name.clone(), value.clone()),
    });
    let mut stdin = Vec::new();
    if !call.stdin.is_null() {
        let document = localize_document(world, &call.stdin);
        world.garm.register_instance(&document, "echo recorded; exec sleep 1000");
        stdin = document.to_string().into_bytes();
    }
    world.provider().start_with(env, stdin).wait()
}

/// Returns the document with the URLs and checksums of the test's server.
fn localize_document(world: &GarmFixture<'_>, document: &Value) -> Value {
    let text = document.to_string();
    let base = world.garm.url("");
    let text = text.replace("http://127.0.0.1:9997", &base).replace("http://127.0.0.1:9990", &base);
    let mut document: Value = serde_json::from_str(&text).unwrap();
    for tool in document["tools"].as_array_mut().unwrap() {
        if tool["filename"] == ARCHIVE {
            tool["sha256_checksum"] = json!(world.garm.checksum(ARCHIVE));
        }
    }
    document
}

#[test]
fn recorded_creations_start_a_runner_or_explain_the_denial() {
    with_each_runtime(SETTINGS, |world| {
        let calls = recorded_calls();
        let creations: Vec<_> = calls.iter().filter(|call| !call.stdin.is_null()).collect();
        assert_eq!(creations.len(), 6, "all of them are there");
        for call in creations {
            let name = call.stdin["name"].as_str().unwrap();
            let ended = replay(world, call);
            // The extra specs of these pools are invalid for this provider.
            let refused = match call.name.as_str() {
                "v0.1.0-CreateInstance-jit" => Some("mounts"),
                "v0.1.0-CreateInstance-scaleset" | "v0.1.1-CreateInstance-scaleset" => {
                    Some("\"k\"")
                }
                _ => None,
            };
            if let Some(word) = refused {
                let said = failure(&ended, 1);
                assert!(said.contains(word.trim_matches('"')), "{}: {said}", call.name);
            } else {
                let ended = ended.success();
                assert!(ended.stdout().contains(name), "{}: {}", call.name, ended.stdout());
                // The recorded proxy does not exist here.
                if !call.name.contains("proxy") {
                    world.installation.wait_for_log(name, "recorded");
                }
            }
            let provider = world.provider();
            let controller =
                &call.env.iter().find(|(name, _)| name == "GARM_CONTROLLER_ID").unwrap().1;
            provider.of_controller(controller).delete(name);
        }
    });
}

#[test]
fn recorded_scale_sets_are_created_listed_and_deleted() {
    with_each_runtime(SETTINGS, |world| {
        for version in ["v0.1.0", "v0.1.1"] {
            let calls = recorded_calls();
            let find = |what: &str| {
                let name = format!("{version}-{what}-scaleset");
                calls.iter().find(|call| call.name == name).unwrap()
            };
            let create = find("CreateInstance");
            let mut stdin = create.stdin.clone();
            stdin["extra_specs"].as_object_mut().unwrap().remove("k");
            let name = stdin["name"].as_str().unwrap().to_owned();
            let env = create.env.iter().filter(|(name, _)| name != "GARM_POOL_EXTRASPECS");
            let create = RecordedCall { name: String::new(), env: env.cloned().collect(), stdin };
            replay(world, &create).success();
            world.installation.wait_for_log(&name, "recorded");
            let listed = replay(world, find("ListInstances")).success().stdout();
            assert!(listed.contains(&name), "{version}: {listed}");
            let mut delete = RecordedCall { env: find("DeleteInstance").env.clone(), ..create };
            for (key, value) in &mut delete.env {
                if key == "GARM_INSTANCE_ID" {
                    value.clone_from(&name);
                }
            }
            delete.stdin = Value::Null;
            replay(world, &delete).success();
            let listed = replay(world, find("ListInstances")).success().stdout();
            assert!(!listed.contains(&name), "{version}: {listed}");
        }
    });
}

#[test]
fn recorded_calls_on_missing_instances_are_answered() {
    with_each_runtime("", |world| {
        let calls = recorded_calls();
        let others: Vec<_> = calls.iter().filter(|call| call.stdin.is_null()).collect();
        assert_eq!(others.len(), 17, "all of them are there");
        for call in others {
            let ended = replay(world, call);
            let command = call.name.split('-').nth(1).unwrap();
            match command {
                "ListInstances" => {
                    assert_eq!(ended.success().stdout().trim(), "[]", "{}", call.name);
                }
                "DeleteInstance" => {
                    let code = ended.status.code().unwrap();
                    assert!(matches!(code, 0 | 30), "{}: {code}", call.name);
                    assert_eq!(ended.code(code).stdout(), "");
                }
                "RemoveAllInstances" => drop(ended.success()),
                _ => {
                    let said = failure(&ended, 30);
                    assert!(said.contains("probe-inst1") || said.contains("gx-"), "{said}");
                }
            }
        }
    });
}

#[test]
fn old_command_names_are_accepted() {
    with_each_runtime("", |world| {
        world.bring_up("one", "echo working; exec sleep 1000", json!({}));
        world.installation.wait_for_log("one", "@ job");
        let mut provider = world.provider();
        provider.interface = None;
        provider.start("Stop", "one", Vec::new()).wait().success();
        assert_eq!(provider.get("one").status, AnswerStatus::Stopped);
        drop(provider.start("Start", "one", Vec::new()).wait());
        provider.delete("one");
    });
}
