//! Many calls at once, as GARM makes them.

use std::thread;

use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};
use crate::support::garm::instances::RunnerStatus;
use crate::support::leftovers::{Snapshot, no_cgroup_of};

const INSTANCES: usize = 30;

#[test]
fn thirty_creations_and_deletions_at_once_do_not_disturb_each_other() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        thread::scope(|scope| {
            for number in 0..INSTANCES {
                scope.spawn(move || {
                    let name = format!("many-{number}");
                    let job = format!("echo \"@ number {number}\"; sleep 1000");
                    world.create(&name, &job, json!({}));
                    world.garm.wait_for(&name, RunnerStatus::Idle);
                    let record = world.installation.wait_for_log(&name, "@ number");
                    assert_eq!(record.one("number"), number.to_string());
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
        let mut cgroups: Vec<_> = world.installation.cgroups().into_iter().collect();
        cgroups.retain(|name| name != "supervisors");
        thread::scope(|scope| {
            for number in 0..INSTANCES {
                scope.spawn(move || world.provider().delete(&format!("many-{number}")));
            }
        });
        before.check(&world.installation, "thirty at once");
        no_cgroup_of(&cgroups);
    });
}

#[test]
fn instances_come_and_go_while_one_works_and_all_are_listed() {
    with_each_runtime("", |world| {
        world.bring_up("bystander", ENDLESS, json!({}));
        thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || {
                    for round in 0..3 {
                        let name = format!("busy-{number}-{round}");
                        // Not one that could be done before its creation is.
                        world.create(&name, ENDLESS, json!({}));
                        let listed = world.provider().list();
                        assert!(listed.iter().any(|instance| instance.name == "bystander"));
                        // Some are being made and some deleted, and nobody was killed over it.
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
