//! Concurrent calls.

use std::thread;

use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, assert_no_cgroups};
use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};

const INSTANCES: usize = 30;

#[test]
fn thirty_concurrent_creations_and_deletions_do_not_interfere() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        thread::scope(|scope| {
            for number in 0..INSTANCES {
                scope.spawn(move || {
                    let name = format!("many-{number}");
                    let job = format!("echo \"@ number {number}\"; sleep 1000");
                    world.create(&name, &job, json!({}));
                    world.garm.wait_for(&name, RunnerStatus::Idle);
                    let record = world.installation.wait_for_log(&name, "@ number");
                    assert_eq!(record.only_record("number"), number.to_string());
                });
            }
        });
        assert_eq!(world.provider().names().len(), INSTANCES);
        let addresses: std::collections::BTreeSet<_> = world
            .provider()
            .list()
            .into_iter()
            .flat_map(|instance| instance.addresses)
            .filter(|address| !address.address.contains(':'))
            .map(|address| address.address)
            .collect();
        assert_eq!(addresses.len(), INSTANCES, "each has its own");
        let cgroups = world.installation.cgroups();
        thread::scope(|scope| {
            for number in 0..INSTANCES {
                scope.spawn(move || world.provider().delete(&format!("many-{number}")));
            }
        });
        before.check(&world.installation, "thirty at once");
        assert_no_cgroups(&cgroups);
    });
}

#[test]
fn instances_are_listed_while_others_come_and_go() {
    with_each_runtime("", |world| {
        world.bring_up("bystander", ENDLESS, json!({}));
        thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || {
                    for round in 0..3 {
                        let name = format!("busy-{number}-{round}");
                        // With an endless job, the instance cannot end before its creation.
                        world.create(&name, ENDLESS, json!({}));
                        let listed = world.provider().list();
                        assert!(listed.iter().any(|instance| instance.name == "bystander"));
                        // Instances that are being created or deleted are not reported as interrupted.
                        let is_wrong = |fault: &String| {
                            fault.contains("interrupted") || fault.contains("supervisor")
                        };
                        let mut faults = listed.iter().map(|instance| instance.fault());
                        assert_eq!(faults.find(is_wrong), None);
                        world.provider().delete(&name);
                    }
                });
            }
        });
        assert_eq!(world.provider().names(), ["bystander"]);
        world.provider().delete("bystander");
    });
}
