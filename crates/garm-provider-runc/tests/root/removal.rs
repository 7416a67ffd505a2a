//! Files and mounts that a job creates in its instance do not prevent removal of the instance.

use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use serde_json::json;

use crate::setup::{GarmFixture, with_each_runtime};

/// Limit of open files of the provider.
const DESCRIPTORS: u32 = 64;

/// A job that creates 2500 nested directories, innermost first, so that no path is too long for the shell. The path of
/// the last one is too long for a system call.
const DEEP_JOB: &str = "cd /tmp; some=$(yes d | head -n 250 | tr '\\n' /); mkdir deep; \
    echo x >deep/bottom; \
    for i in $(seq 10); do mkdir -p new/$some; mv deep new/${some}d; mv new deep; done";

fn end_with_deep_directories(world: &GarmFixture<'_>, name: &str) {
    let record = world.run(name, DEEP_JOB, json!({}));
    assert!(!record.text.contains("can't"), "{}", record.text);
}

#[test]
fn deep_directories_do_not_prevent_deletion() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let mut provider = world.provider();
        provider.descriptors = Some(DESCRIPTORS);
        end_with_deep_directories(world, "one");
        provider.delete("one");
        before.check(&world.installation, "DeleteInstance");

        let names = ["a", "b", "c", "d", "e", "f"];
        for name in names {
            end_with_deep_directories(world, name);
        }
        assert_eq!(provider.names(), names);
        provider.remove_all();
        before.check(&world.installation, "RemoveAllInstances");

        end_with_deep_directories(world, "given-up");
        let words = ["prune", "--ended", "0s"];
        let said = world.installation.limited_admin(DESCRIPTORS, &words).success();
        assert!(said.contains("removed instance given-up"), "{said}");
        assert!(!world.installation.store().join("trash").exists());
    });
}

#[test]
fn unremovable_files_of_an_instance_are_set_aside() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
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
        assert!(
            pruned
                .stderr
                .contains("cannot empty the trash, the next prune tries again: cannot remove "),
            "{}",
            pruned.stderr
        );
        host.shell(&format!("umount {}/trash/*/upper/x", world.installation.store().display()));
        world.installation.admin(&["prune"]).success();
        before.check(&world.installation, "prune");
    });
}
