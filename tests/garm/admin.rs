//! What the admin sees of instances, and removes.

use serde_json::{Value, json};

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::garm::answer::Status;
use crate::support::leftovers::Snapshot;

fn list(world: &World<'_>) -> Vec<Value> {
    let said = world.installation.admin(&["instances", "--format", "json"]).success();
    serde_json::from_str(&said).unwrap()
}

#[test]
fn instances_of_all_pools_and_controllers_are_listed() {
    with_each_runtime("", |world| {
        assert!(list(world).is_empty());
        world.bring_up("one", ENDLESS, json!({"pool_id": "my set/1"}));
        let other = world.provider().of_controller("other");
        other.create(&world.garm.bootstrap("two", "exit 3", json!({})));
        other.wait_for("two", Status::Stopped);
        let found = list(world);
        let names: Vec<_> = found.iter().map(|instance| &instance["name"]).collect();
        assert_eq!(names, ["one", "two"]);
        assert_eq!(found[0]["pool"], "my set/1");
        assert_eq!(found[0]["status"], "running");
        assert_eq!(
            (&found[1]["controller"], &found[1]["status"]),
            (&json!("other"), &json!("stopped"))
        );
        let table = world.installation.admin(&["instances"]).success();
        assert!(table.contains("my set/1") && table.contains("stopped"), "{table}");
        world.provider().delete("one");
        other.delete("two");
        assert!(list(world).is_empty());
    });
}

#[test]
fn what_garm_has_given_up_is_pruned_and_what_runs_is_not() {
    with_each_runtime("", |world| {
        world.warm_up();
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let before = Snapshot::take(&world.installation);
        world.run("two", "true", json!({}));
        let prune = |words: &[&str]| {
            let words = [&["prune", "--format", "json"], words].concat();
            let said = world.installation.admin(&words).success();
            serde_json::from_str::<Value>(&said).unwrap()
        };
        // GARM may still ask how it went.
        assert_eq!(prune(&[])["instances"], json!([]));
        assert_eq!(prune(&["--ended", "0s"])["instances"], json!(["two"]));
        before.check_live(&world.installation, "pruned instances");
        assert_eq!(world.provider().get("one").status, Status::Running);
        world.provider().delete("one");
    });
}
