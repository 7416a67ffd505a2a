//! Deletion, and separation of controllers and pools.

use std::time::Duration;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::provider::failure;
use oci_hooks_testsupport::http::Gate;
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, assert_no_cgroups};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::setup::{ENDLESS, with_both_runtimes, with_each_runtime, with_runtime};

#[test]
fn deleting_twice_or_nothing_succeeds() {
    with_each_runtime("", |world| {
        let provider = world.provider();
        world.bring_up("one", ENDLESS, json!({}));
        for id in ["one", "one", "none", "../../etc", "a/b", "."] {
            provider.delete(id);
        }
        assert_eq!(provider.names(), <[String; 0]>::default());
    });
}

#[test]
fn booting_instance_is_deleted() {
    with_both_runtimes("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        for path in ["/callbacks/status", "/metadata/credentials/", "/system-info"] {
            let gate = Gate::default();
            world.garm.plan(path, ConnectionFault::Hold(0, gate.clone()), 1);
            let document = world.garm.bootstrap("one", "true", json!({}));
            let call = world.provider().start_create(&document);
            gate.wait_until_reached();
            world.provider().delete("one");
            gate.open();
            // The call may fail, because its instance was deleted.
            drop(call.wait());
            world.provider().delete("one");
            before.check(&world.installation, path);
        }
    });
}

/// Processes that a runtime was starting in the container are killed with it, and must be reaped.
#[test]
fn instance_is_deleted_at_any_moment_of_its_boot() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        for round in 0..30 {
            world.create("one", ENDLESS, json!({}));
            // A delay, because nothing signals that a runtime command is half done.
            std::thread::park_timeout(Duration::from_millis(10) * round);
            world.provider().start("DeleteInstance", "one", Vec::new()).wait().success();
        }
        before.check(&world.installation, "thirty boots");
    });
}

#[test]
fn instance_with_a_killed_supervisor_is_listed_and_deleted() {
    with_both_runtimes("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let cgroups = world.installation.cgroups();
        world.host().shell(&format!("kill -9 {}", world.supervisor().pid));
        // A killed process counts as running until it has exited.
        program::wait_until("the instance does not look as if it ran", || {
            let listed = world.provider().list();
            assert_eq!(listed.len(), 1);
            listed[0].status != AnswerStatus::Running
        });
        world.provider().delete("one");
        before.check(&world.installation, "a killed supervisor");
        assert_no_cgroups(&cgroups);
    });
}

#[test]
fn controllers_do_not_see_each_others_instances() {
    with_each_runtime("", |world| {
        let one = world.provider().of_controller("11111111-1111-1111-1111-111111111111");
        let two = world.provider().of_controller("22222222-2222-2222-2222-222222222222");
        for (provider, job) in [(&one, "echo first; sleep 1000"), (&two, "echo second; sleep 1000")]
        {
            provider.create(&world.garm.bootstrap("same", job, json!({})));
            world.garm.wait_for("same", RunnerStatus::Idle);
        }
        two.create(&world.garm.bootstrap("other", ENDLESS, json!({})));
        assert_eq!(one.names(), ["same"]);
        assert_eq!(two.names(), ["other", "same"]);
        one.delete("other");
        assert_eq!(two.names(), ["other", "same"]);
        let ended = one.start("GetInstance", "other", Vec::new()).wait();
        failure(&ended, 30);
        one.stop_instance("same").success();
        assert_eq!(two.get("same").status, AnswerStatus::Running);
        one.remove_all();
        assert_eq!(one.names(), <[String; 0]>::default());
        assert_eq!(two.names(), ["other", "same"]);
        assert_eq!(two.get("same").status, AnswerStatus::Running);
        two.remove_all();
        assert_eq!(two.names(), <[String; 0]>::default());
    });
}

#[test]
fn pool_ids_are_arbitrary_text() {
    with_runtime(TestRuntime::Crun, "", |world| {
        let pools = ["my set/1-uuid", "../../..", "a\nb\t\"c\" {}", "ä 池", ""];
        for (number, pool) in pools.into_iter().enumerate() {
            let name = format!("one-{number}");
            let document = world.garm.bootstrap(&name, ENDLESS, json!({"pool_id": pool}));
            if pool.is_empty() {
                // GARM's library requires a pool ID for creations.
                let said = world.provider().create_fails(&document);
                assert!(said.contains("missing pool ID"), "{said}");
                continue;
            }
            world.provider().create(&document);
            assert_eq!(world.provider().of_pool(pool).names(), [name], "{pool:?}");
        }
        let mut provider = world.provider().of_pool("");
        provider.interface = Some("v0.1.1");
        for number in 0..pools.len() {
            provider.delete(&format!("one-{number}"));
        }
        for pool in &pools[..pools.len() - 1] {
            assert_eq!(world.provider().of_pool(pool).names(), <[String; 0]>::default());
        }
    });
}

#[test]
fn all_instances_of_all_pools_are_removed_together() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        for (number, pool) in ["a", "b/c", "a"].into_iter().enumerate() {
            world.create(&format!("one-{number}"), ENDLESS, json!({"pool_id": pool}));
        }
        assert_eq!(world.provider().of_pool("a").names(), ["one-0", "one-2"]);
        world.provider().remove_all();
        before.check(&world.installation, "all removed");
        world.provider().remove_all();
    });
}

#[test]
fn existing_name_is_a_duplicate() {
    with_runtime(TestRuntime::Runc, "", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        let document = world.garm.bootstrap("one", "true", json!({}));
        let ended = world.provider().start_create(&document).wait();
        let said = failure(&ended, 31);
        assert!(said.contains("one"), "{said}");
        assert_eq!(world.provider().get("one").status, AnswerStatus::Running);
        world.provider().delete("one");
        world.provider().create(&world.garm.bootstrap("one", "true", json!({})));
        world.provider().delete("one");
    });
}
