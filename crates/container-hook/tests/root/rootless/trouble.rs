//! Hosts with a missing resource or a full disk: the error and a hint are reported, nothing is left behind,
//! and the next job runs after the fix.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use serde_json::json;

use crate::rootless::setup::{UserKind, UsersRunner, shell_step, with_each};

#[test]
fn full_store_is_named_and_leaves_nothing() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let (host, id) = (installation.host(), installation.ids().0);
        let store = installation.user.unwrap().data().display().to_string();
        let parents =
            format!("install -d -o {id} -g {id} $(dirname $(dirname {store})) $(dirname {store})");
        host.shell(&format!(
            "{parents}; install -d -o {id} -g {id} -m 700 {store}; \
             mount -t tmpfs -o size=1g,mode=700,uid={id},gid={id},nosuid,nodev tmpfs {store}"
        ));
        let mut runner = installation.runner("runner-1");
        job(&mut runner);
        let before = LeftoverSnapshot::take(installation);
        for image in ["alpine:3.20", "node:22"] {
            // Room for one or two records.
            host.shell(&format!(
                "mount -o remount,size=$(($(du -sk {store} | cut -f 1) + 40))k {store}"
            ));
            if image == "alpine:3.20" {
                installation.admin(&["rmi", "alpine:3.20"]).success();
            }
            let args = json!({"container": runner.job_container(image), "services": []});
            let ended = runner.call("prepare_job", args);
            if ended.status.success() {
                // A job that still has room can fill the disk.
                let fill = "dd if=/dev/zero of=/full bs=64k count=1000";
                let said = runner.run(fill).failure();
                assert!(said.contains("No space left on device"), "{said}");
            } else {
                let said = ended.failure();
                assert!(said.contains("No space left on device"), "{said}");
                assert!(said.contains(&store), "it names the place: {said}");
            }
            runner.cleanup();
            host.shell(&format!("mount -o remount,size=1g {store}"));
            before.check_live(installation, image);
            job(&mut runner);
        }
    });
}

/// Without lingering, `XDG_RUNTIME_DIR` is removed with the last session: jobs use another directory, whether
/// or not the calling process has an `XDG_RUNTIME_DIR`.
#[test]
fn user_without_a_session_can_run_jobs() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let user = installation.user.unwrap();
        installation.host().make_temporary();
        installation.world.forget_session(user);
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let directory = format!("/tmp/oci-hooks-{}", user.id);
        let made = installation.host().enter(|| fs::metadata(&directory).unwrap());
        assert_eq!((made.uid(), made.permissions().mode() & 0o777), (user.id, 0o700));
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        assert!(listed.contains("node:22"), "{listed}");
        runner.run("true").success();
        runner.cleanup();
        // Services do not have the variable.
        runner.variables.push(("XDG_RUNTIME_DIR".to_owned(), String::new()));
        job(&mut runner);
        before.check_live(installation, "jobs without a session");
    });
}

/// Any user may create the path in `/tmp` first.
#[test]
fn run_directory_of_another_user_is_replaced() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let user = installation.user.unwrap();
        let (host, directory) = (installation.host(), format!("/tmp/oci-hooks-{}", user.id));
        host.make_temporary();
        installation.world.forget_session(user);
        for made in [
            format!("mkdir {directory}; chown 7:7 {directory}; chmod 777 {directory}"),
            format!("mkdir /tmp/theirs; chmod 777 /tmp/theirs; ln -s /tmp/theirs {directory}"),
            format!("mkdir {directory}; chown {0}:{0} {directory}; chmod 770 {directory}", user.id),
        ] {
            host.shell(&made);
            let mut runner = installation.runner("runner-1");
            job(&mut runner);
            let said = installation.admin(&["doctor"]).stdout;
            let expected = format!("since {directory} is not private to this user");
            assert!(said.contains(&expected), "{made}: {said}");
            assert_eq!(host.shell(&format!("ls -A {directory}/")), "", "{made}");
            // The other user removes the directory between two calls of a job.
            runner.prepare(runner.job_container("node:22"), &[]);
            host.shell(&format!("rm -r {directory}; rm -rf /tmp/theirs"));
            runner.run("echo it runs").success();
            runner.cleanup();
            host.shell(&format!("rm -r {} {directory}-*", runner.home().display()));
        }
    });
}

fn job(runner: &mut UsersRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
    runner.run("echo it runs").success();
    runner.container_step(shell_step("true")).0.success();
    runner.cleanup();
}
