//! Deleting, and whose instances are whose.

use std::time::Duration;

use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime, with_runtime};
use crate::support::garm::answer::Status;
use crate::support::garm::faults::Fault;
use crate::support::garm::instances::RunnerStatus;
use crate::support::garm::provider::failure;
use crate::support::http::Gate;
use crate::support::leftovers::{Snapshot, no_cgroup_of};
use crate::support::program;
use crate::support::runtime::Runtime;

#[test]
fn deleting_twice_or_none_succeeds() {
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
fn an_instance_is_deleted_while_it_boots() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        for path in ["/callbacks/status", "/metadata/credentials/", "/system-info"] {
            let gate = Gate::default();
            world.garm.plan(path, Fault::Hold(0, gate.clone()), 1);
            let document = world.garm.bootstrap("one", "true", json!({}));
            let call = world.provider().start_create(&document);
            gate.wait_until_reached();
            world.provider().delete("one");
            gate.open();
            // It may have been deleted before it was answered for.
            drop(call.wait());
            world.provider().delete("one");
            before.check(&world.installation, path);
        }
    });
}

/// What a runtime was about to start in the container ends with it, and somebody has to collect it.
#[test]
fn an_instance_is_deleted_at_once_at_any_moment_of_its_boot() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        for round in 0..30 {
            world.create("one", ENDLESS, json!({}));
            // No event says when a runtime is half done.
            std::thread::park_timeout(Duration::from_millis(10) * round);
            let ended = world.provider().start("DeleteInstance", "one", Vec::new()).wait();
            // Whatever does not end is killed after ten seconds: it has not come to that.
            assert!(ended.success().took < Duration::from_secs(10), "round {round}");
        }
        before.check(&world.installation, "thirty boots");
    });
}

#[test]
fn an_instance_whose_supervisor_was_killed_is_listed_and_deleted() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let cgroups: Vec<_> = world.installation.cgroups().into_iter().collect();
        let program = world.installation.program().display().to_string();
        let supervisors: Vec<_> =
            world.host().processes().into_iter().filter(|p| p.line.starts_with(&program)).collect();
        assert_eq!(supervisors.len(), 1, "one for each instance: {supervisors:?}");
        world.host().shell(&format!("kill -9 {}", supervisors[0].pid));
        // It has its lock until the kernel has ended it. Nobody else would tell of its end.
        program::wait_until("the instance does not look as if it ran", || {
            let listed = world.provider().list();
            assert_eq!(listed.len(), 1);
            listed[0].status != Status::Running
        });
        world.provider().delete("one");
        before.check(&world.installation, "a killed supervisor");
        no_cgroup_of(&cgroups.into_iter().filter(|name| name != "supervisors").collect::<Vec<_>>());
    });
}

#[test]
fn an_instance_whose_container_was_killed_is_listed_and_deleted() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let processes = world.host().processes();
        let runner = processes.iter().find(|process| process.line == "sleep 1000 ").unwrap();
        world.host().shell(&format!("kill -9 {}", runner.pid));
        world.provider().wait_for("one", Status::Stopped);
        world.provider().delete("one");
        before.check(&world.installation, "a killed runner");
    });
}

#[test]
fn controllers_on_one_host_never_see_each_others_instances() {
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
        assert_eq!(two.get("same").status, Status::Running);
        one.remove_all();
        assert_eq!(one.names(), <[String; 0]>::default());
        assert_eq!(two.names(), ["other", "same"]);
        assert_eq!(two.get("same").status, Status::Running);
        two.remove_all();
        assert_eq!(two.names(), <[String; 0]>::default());
    });
}

#[test]
fn pools_are_any_text() {
    with_runtime(Runtime::Crun, "", |world| {
        let pools = ["my set/1-uuid", "../../..", "a\nb\t\"c\" {}", "ä 池", ""];
        for (number, pool) in pools.into_iter().enumerate() {
            let name = format!("one-{number}");
            let document = world.garm.bootstrap(&name, ENDLESS, json!({"pool_id": pool}));
            if pool.is_empty() {
                // GARM's own library wants one for these.
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
fn all_instances_of_all_pools_are_removed_at_once() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
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
fn a_name_that_is_there_is_a_duplicate() {
    with_runtime(Runtime::Runc, "", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        let document = world.garm.bootstrap("one", "true", json!({}));
        let ended = world.provider().start_create(&document).wait();
        let said = failure(&ended, 31);
        assert!(said.contains("one"), "{said}");
        assert_eq!(world.provider().get("one").status, Status::Running);
        world.provider().delete("one");
        world.provider().create(&world.garm.bootstrap("one", "true", json!({})));
        world.provider().delete("one");
    });
}
