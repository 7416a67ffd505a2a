//! Admin commands that list and remove instances.

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use serde_json::{Value, json};

use crate::setup::{ENDLESS, GarmFixture, with_each_runtime};

fn list(world: &GarmFixture<'_>) -> Vec<Value> {
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
        other.wait_for("two", AnswerStatus::Stopped);
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
fn prune_removes_abandoned_instances_and_keeps_running_ones() {
    with_each_runtime("", |world| {
        world.warm_up();
        world.bring_up("one", ENDLESS, json!({}));
        world.wait_for_job();
        let before = LeftoverSnapshot::take(&world.installation);
        world.run("two", "true", json!({}));
        let prune = |words: &[&str]| {
            let words = [&["prune", "--format", "json"], words].concat();
            let said = world.installation.admin(&words).success();
            serde_json::from_str::<Value>(&said).unwrap()
        };
        // An instance that ended recently is kept, because GARM may still query its status.
        assert_eq!(prune(&[])["instances"], json!([]));
        assert_eq!(prune(&["--ended", "0s"])["instances"], json!(["two"]));
        before.check_live(&world.installation, "pruned instances");
        assert_eq!(world.provider().get("one").status, AnswerStatus::Running);
        world.provider().delete("one");
    });
}

/// Runs `rm --format json`, and returns the report and the exit code.
fn rm(world: &GarmFixture<'_>, words: &[&str]) -> (Value, Option<i32>) {
    let words = [&["rm", "--format", "json"], words].concat();
    let finished = world.installation.admin(&words);
    let report = serde_json::from_str(&finished.stdout);
    let report =
        report.unwrap_or_else(|error| panic!("{error}: {} {}", finished.stdout, finished.stderr));
    (report, finished.status.code())
}

fn names(report: &Value, list: &str) -> Vec<String> {
    let names = report[list].as_array().unwrap().iter().map(|entry| &entry["name"]);
    names.map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn instances_of_a_vanished_garm_are_removed_by_each_selector() {
    with_each_runtime("", |world| {
        world.warm_up();
        let gone = world.provider().of_controller("gone");
        gone.create(&world.garm.bootstrap("first", "true", json!({})));
        gone.delete("first");
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("alive", ENDLESS, json!({}));
        world.run("ended", "true", json!({}));
        gone.create(&world.garm.bootstrap("working", ENDLESS, json!({"pool_id": "p 1"})));
        world.installation.wait_for_log("working", "working");
        gone.create(&world.garm.bootstrap("failed", "#deaf\nexit 1", json!({"pool_id": "p 2"})));
        gone.wait_for("failed", AnswerStatus::Error);

        // Without --force, running instances are kept.
        let (report, code) = rm(world, &["alive", "none"]);
        assert_eq!((names(&report, "left"), code), (vec!["alive".to_owned()], Some(1)));
        assert_eq!(report["unknown"], json!(["none"]));
        let (report, code) = rm(world, &["--orphans", "--dry-run"]);
        assert_eq!(
            (names(&report, "removed"), code),
            (vec!["ended".to_owned(), "failed".to_owned()], Some(0))
        );
        assert!(report["removed"][1]["reason"].as_str().unwrap().contains("before it listened"));
        assert_eq!(list(world).len(), 4, "it was dry");
        let (report, code) = rm(world, &["--orphans", "--controller", "gone"]);
        assert_eq!((names(&report, "removed"), code), (vec!["failed".to_owned()], Some(0)));
        let (report, code) = rm(world, &["--pool", "p 1"]);
        assert_eq!((names(&report, "left"), code), (vec!["working".to_owned()], Some(1)));
        let (report, code) = rm(world, &["--controller", "gone", "--force"]);
        assert_eq!((names(&report, "removed"), code), (vec!["working".to_owned()], Some(0)));
        let said = world.installation.admin(&["rm", "ended"]).success();
        assert_eq!(said, "removed instance ended: its runner has ended\nremoved 1 instance\n");
        assert_eq!(world.provider().names(), ["alive"]);

        // An instance whose supervisor was killed may have a running job.
        world.host().shell(&format!("kill -9 {}", world.supervisor().pid));
        world.provider().wait_for("alive", AnswerStatus::Error);
        let (report, code) = rm(world, &["--orphans"]);
        assert_eq!((names(&report, "left"), code), (vec!["alive".to_owned()], Some(1)));
        let reason = report["left"][0]["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("its supervisor was killed, but its container is running; "),
            "{reason}"
        );
        let (report, code) = rm(world, &["--orphans", "--force"]);
        assert_eq!((names(&report, "removed"), code), (vec!["alive".to_owned()], Some(0)));
        before.check(&world.installation, "rm");
    });
}
