//! Row 10: what a job makes in its instance keeps nobody from removing it.

use serde_json::json;

use crate::setup::{World, with_each_runtime};
use crate::support::leftovers::{Installed as _, Snapshot};

/// How many files the provider may have open at a time.
const DESCRIPTORS: u32 = 64;

/// Returns a job that makes so many times 250 directories in each other, the last ones first: no path is
/// too long for its shell.
fn deep(times: u32) -> String {
    format!(
        "cd /tmp; some=$(yes d | head -n 250 | tr '\\n' /); mkdir deep; echo x >deep/bottom; \
         for i in $(seq {times}); do mkdir -p new/$some; mv deep new/${{some}}d; mv new deep; done"
    )
}

fn end_with(world: &World<'_>, name: &str, times: u32) {
    let record = world.run(name, &deep(times), json!({}));
    assert!(!record.text.contains("can't"), "{}", record.text);
}

#[test]
fn depth_keeps_no_instance_from_being_deleted() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let mut provider = world.provider();
        provider.descriptors = Some(DESCRIPTORS);
        end_with(world, "one", 400);
        provider.delete("one");
        before.check(&world.installation, "DeleteInstance");

        let names = ["a", "b", "c", "d", "e", "f"];
        for name in names {
            end_with(world, name, 20);
        }
        assert_eq!(provider.names(), names);
        provider.remove_all();
        before.check(&world.installation, "RemoveAllInstances");

        end_with(world, "given-up", 40);
        let words = ["prune", "--ended", "0s"];
        let said = world.installation.limited_admin(DESCRIPTORS, &words).success();
        assert!(said.contains("removed instance given-up"), "{said}");
        assert!(!world.installation.store().join("trash").exists());
    });
}

#[test]
fn what_keeps_an_instance_from_being_removed_is_set_aside() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let host = world.host();
        world.run("one", "true", json!({}));
        let containers = world.installation.store().join("containers").display().to_string();
        host.shell(&format!("cd {containers}/*/; mkdir -p upper/x; mount -t tmpfs none upper/x"));
        let said =
            world.provider().start("DeleteInstance", "one", Vec::new()).wait().success().log();
        assert!(said.contains("set aside as "), "{said}");
        world.provider().delete("one");
        let doctor = world.installation.admin(&["doctor"]);
        assert!(doctor.stdout.contains("1 tree in "), "{}", doctor.stdout);
        let pruned = world.installation.admin(&["prune"]);
        assert!(pruned.stderr.contains("set aside: cannot remove "), "{}", pruned.stderr);
        host.shell(&format!("umount {}/trash/*/upper/x", world.installation.store().display()));
        world.installation.admin(&["prune"]).success();
        before.check(&world.installation, "prune");
    });
}
