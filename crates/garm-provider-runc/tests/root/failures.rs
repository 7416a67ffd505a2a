//! Errors reported to GARM.

use std::net::TcpListener;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::provider::failure;
use oci_hooks_testsupport::garm::server::ARCHIVE;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::setup::{ENDLESS, GarmFixture, with_each_runtime, with_runtime};

/// Expects the creation of an instance to fail, and checks that nothing is left of it.
#[track_caller]
fn creation_fails(world: &GarmFixture<'_>, fields: Value, words: &[&str]) {
    let before = LeftoverSnapshot::take(&world.installation);
    let document = world.garm.bootstrap("failing", "true", fields);
    let said = world.provider().create_fails(&document);
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
    assert!(!said.contains("canary"), "{said}");
    before.check(&world.installation, &said);
    assert_eq!(world.provider().names(), <[String; 0]>::default(), "{said}");
    // GARM deletes an instance after each failed creation.
    world.provider().delete("failing");
}

#[test]
fn impossible_creation_is_rejected_and_leaves_nothing() {
    with_each_runtime("[flavors.default]\n", |world| {
        world.warm_up();
        let image = |image: &str| json!({"image": image});
        creation_fails(world, image("docker.io/garm/none:1"), &["garm/none"]);
        creation_fails(world, image("Not An Image"), &["Not An Image"]);
        creation_fails(world, image(""), &["image"]);
        creation_fails(world, json!({"flavor": "none"}), &["none", "default"]);
        creation_fails(world, json!({"os_type": "windows"}), &["windows"]);
        creation_fails(world, json!({"arch": "s390x"}), &["s390x"]);
        for name in ["../../etc", "a/b", ".", "", &"x".repeat(300)] {
            let document = world.garm.bootstrap("failing", "true", json!({}));
            let mut bad = document.clone();
            bad["name"] = json!(name);
            let said = world.provider().create_fails(&bad);
            let word = if name.is_empty() { "missing bootstrap params" } else { "name" };
            assert!(said.contains(word), "{name:?}: {said}");
        }
    });
}

#[test]
fn unavailable_runner_fails_creation_or_boot() {
    with_runtime(TestRuntime::Crun, "", |world| {
        world.run("warm-up", "true", json!({}));
        world.provider().delete("warm-up");
        let base = json!({"image": "docker.io/garm/base:1"});
        let fails = |name: &str, document: &Value, word: &str| {
            let ended = world.provider().start_create(document).wait();
            let said =
                if ended.status.success() { world.boot_fails(name) } else { failure(&ended, 1) };
            assert!(said.contains(word), "no {word:?} in {said}");
            world.provider().delete(name);
        };
        world.garm.plan(ARCHIVE, ConnectionFault::Change, 100);
        let document = world.garm.bootstrap("changed", "true", base.clone());
        fails("changed", &document, "digest mismatch");
        let mut document = world.garm.bootstrap("none", "true", base.clone());
        document["tools"] = json!([]);
        fails("none", &document, "runner");
        let mut document = world.garm.bootstrap("other", "true", base);
        for tool in document["tools"].as_array_mut().unwrap() {
            let other = world.garm.url("/downloads/other.tar.gz");
            tool["download_url"] = json!(other);
            tool["filename"] = json!("other.tar.gz");
            tool["sha256_checksum"] = Value::Null;
        }
        fails("other", &document, "404");
        world.garm.serve("other.tar.gz", "this is no archive");
        fails("other", &document, "other.tar.gz");
    });
}

#[test]
fn later_boot_failure_is_reported_with_its_reason() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.garm.plan("/metadata/credentials/", ConnectionFault::Status(404), 100);
        world.create_for_failure("one", "true", json!({}));
        let said = world.boot_fails("one");
        assert!(said.contains("404") || said.contains("credentials"), "{said}");
        let answer = world.provider().wait_for("one", AnswerStatus::Error);
        assert!(answer.fault().contains("credentials"), "{}", answer.fault());
        let listed = world.provider().list();
        assert_eq!((listed[0].status, listed[0].fault()), (AnswerStatus::Error, answer.fault()));
        world.provider().delete("one");
        before.check(&world.installation, "a failed boot");
    });
}

#[test]
fn failed_registration_is_reported_with_its_reason() {
    with_runtime(TestRuntime::Runc, "", |world| {
        world.garm.plan("runner-registration-token", ConnectionFault::Status(401), 1);
        world.create_for_failure("one", "true", json!({"jit_config_enabled": false}));
        let said = world.boot_fails("one");
        assert!(said.contains("401") || said.contains("registration"), "{said}");
        world.provider().wait_for("one", AnswerStatus::Error);
        world.provider().delete("one");
    });
}

#[test]
fn unreachable_garm_fails_the_instance() {
    with_runtime(TestRuntime::Runc, "", |world| {
        // An unused port: its listener is closed.
        let listener = world.host().enter(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let fields = json!({
            "callback-url": format!("{base}/api/v1/callbacks"),
            "metadata-url": format!("{base}/api/v1/metadata"),
        });
        let document = world.garm.bootstrap("one", "true", fields);
        let ended = world.provider().start_create(&document).wait();
        if ended.status.success() {
            let answer = world.provider().wait_for("one", AnswerStatus::Error);
            assert!(answer.fault().contains(&base[7..]), "{}", answer.fault());
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains(&base[7..]), "{said}");
        }
        world.provider().delete("one");
    });
}

#[test]
fn rejected_token_ends_the_boot_at_once() {
    with_runtime(TestRuntime::Runc, "", |world| {
        let document = world.garm.bootstrap("one", "true", json!({}));
        // GARM repeats the creation with another token.
        world.garm.bootstrap("one", "true", json!({}));
        let ended = world.provider().start_create(&document).wait();
        if ended.status.success() {
            let answer = world.provider().wait_for("one", AnswerStatus::Error);
            assert!(answer.fault().contains("401"), "{}", answer.fault());
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains("401"), "{said}");
        }
        // One of the requests asks for agent mode.
        assert!(world.garm.count("/api/v1/") <= 3, "it is no use to ask again");
        world.provider().delete("one");
    });
}

#[test]
fn a_pool_whose_shell_needs_the_agent_is_rejected_and_agent_mode_alone_is_noted() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        world.garm.set_agent_mode("one", true);
        let said = world.provider().create_fails(&document);
        assert!(said.contains("the pool has a shell enabled"), "{said}");
        assert!(said.contains("--enable-shell=false") && !said.contains("canary"), "{said}");
        before.check(&world.installation, "a rejected pool");
        let document = world.garm.bootstrap("two", ENDLESS, json!({}));
        world.garm.set_agent_mode("two", false);
        world.provider().create(&document);
        world.garm.wait_for("two", RunnerStatus::Idle);
        let log = world.installation.log("two").text;
        assert!(log.contains("agent mode: GARM gets no heartbeats"), "{log}");
        assert!(!log.contains("canary"), "{log}");
        world.provider().delete("two");
    });
}
