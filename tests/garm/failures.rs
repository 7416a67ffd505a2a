//! What GARM is told when something cannot be had.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::setup::{World, with_each_runtime, with_runtime};
use crate::support::garm::answer::Status;
use crate::support::garm::faults::Fault;
use crate::support::garm::provider::failure;
use crate::support::garm::server::ARCHIVE;
use crate::support::leftovers::Snapshot;
use crate::support::runtime::Runtime;

/// Has the creation of an instance fail, and checks that nothing is left of it.
#[track_caller]
fn creation_fails(world: &World<'_>, fields: Value, words: &[&str]) {
    let before = Snapshot::take(&world.installation);
    let document = world.garm.bootstrap("failing", "true", fields);
    let said = world.provider().create_fails(&document);
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
    assert!(!said.contains("canary"), "{said}");
    before.check(&world.installation, &said);
    assert_eq!(world.provider().names(), <[String; 0]>::default(), "{said}");
    // As GARM does after each failure.
    world.provider().delete("failing");
}

#[test]
fn what_cannot_be_made_is_refused_with_a_line_and_leaves_nothing() {
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
fn a_document_that_is_none_is_refused() {
    with_runtime(Runtime::Runc, "", |world| {
        for text in ["", "null", "[]", "{}", "{\"name\": 5}", "{\"name\": \"a\"} {}", "\u{0}\u{1}"]
        {
            let call = world.provider().start("CreateInstance", "", text.into());
            let said = failure(&call.wait(), 1);
            assert!(said.len() > 20, "{text:?}: {said}");
        }
        let deep = "[".repeat(100_000).into_bytes();
        let call = world.provider().start("CreateInstance", "", deep);
        failure(&call.wait(), 1);
    });
}

#[test]
fn a_runner_that_cannot_be_had_fails_the_creation_or_the_boot() {
    with_runtime(Runtime::Crun, "", |world| {
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
        world.garm.plan(ARCHIVE, Fault::Change, 100);
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
fn a_boot_that_fails_later_is_told_with_its_reason() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.garm.plan("/metadata/credentials/", Fault::Status(404), 100);
        world.create_for_failure("one", "true", json!({}));
        let said = world.boot_fails("one");
        assert!(said.contains("404") || said.contains("credentials"), "{said}");
        let answer = world.provider().wait_for("one", Status::Error);
        assert!(answer.fault().contains("credentials"), "{}", answer.fault());
        let listed = world.provider().list();
        assert_eq!((listed[0].status, listed[0].fault()), (Status::Error, answer.fault()));
        world.provider().delete("one");
        before.check(&world.installation, "a failed boot");
    });
}

#[test]
fn a_runner_that_does_not_register_is_told_with_its_reason() {
    with_runtime(Runtime::Runc, "", |world| {
        world.garm.plan("runner-registration-token", Fault::Status(401), 1);
        world.create_for_failure("one", "true", json!({"jit_config_enabled": false}));
        let said = world.boot_fails("one");
        assert!(said.contains("401") || said.contains("registration"), "{said}");
        world.provider().wait_for("one", Status::Error);
        world.provider().delete("one");
    });
}

#[test]
fn a_garm_that_is_not_there_fails_the_instance() {
    with_runtime(Runtime::Runc, "", |world| {
        // A port that nobody has: of a listener that is gone.
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
            let answer = world.provider().wait_for("one", Status::Error);
            assert!(answer.fault().contains(&base[7..]), "{}", answer.fault());
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains(&base[7..]), "{said}");
        }
        world.provider().delete("one");
    });
}

#[test]
fn a_token_that_garm_no_longer_takes_ends_the_boot_at_once() {
    with_runtime(Runtime::Runc, "", |world| {
        let document = world.garm.bootstrap("one", "true", json!({}));
        // GARM tries again with another token.
        world.garm.bootstrap("one", "true", json!({}));
        let ended = world.provider().start_create(&document).wait();
        if ended.status.success() {
            let answer = world.provider().wait_for("one", Status::Error);
            assert!(answer.fault().contains("401"), "{}", answer.fault());
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains("401"), "{said}");
        }
        assert!(world.garm.count("/api/v1/") <= 2, "it is no use to ask again");
        world.provider().delete("one");
    });
}

#[test]
fn settings_with_a_mistake_say_where() {
    with_runtime(Runtime::Runc, "[flavors.small]\ncpu = 2\n", |world| {
        let said = world.provider().create_fails(&world.garm.bootstrap("one", "true", json!({})));
        let file = world.installation.settings().display().to_string();
        assert!(said.contains(&file) && said.contains("cpu"), "{said}");
    });
}
