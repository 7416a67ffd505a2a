//! Hosts on which something is missing or full: what it is and what to do is said, nothing is left, and the
//! next job runs once it is put right.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::json;

use crate::setup::{UsersRunner, Who, shell_step, with_each};
use crate::support::leftovers::{Installed as _, Snapshot};

#[test]
fn a_store_that_is_full_is_named_and_leaves_nothing() {
    with_each(&Who::ROOTLESS, "", |installation| {
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
        let before = Snapshot::take(installation);
        for image in ["alpine:3.20", "node:22"] {
            // Room for a record or two.
            host.shell(&format!(
                "mount -o remount,size=$(($(du -sk {store} | cut -f 1) + 40))k {store}"
            ));
            if image == "alpine:3.20" {
                installation.admin(&["rmi", "alpine:3.20"]).success();
            }
            let args = json!({"container": runner.job_container(image), "services": []});
            let ended = runner.call("prepare_job", args);
            if ended.status.success() {
                // A job that has room enough still may fill it.
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

/// Without lingering, what is below `/run` goes with the last login: jobs are elsewhere, whether whoever
/// looks for them has such a directory or not.
#[test]
fn a_user_without_a_session_has_jobs() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let user = installation.user.unwrap();
        installation.host().make_temporary();
        installation.world.forget_session(user);
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let directory = format!("/tmp/oci-hooks-{}", user.id);
        let made = installation.host().enter(|| fs::metadata(&directory).unwrap());
        assert_eq!((made.uid(), made.permissions().mode() & 0o777), (user.id, 0o700));
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        assert!(listed.contains("node:22"), "{listed}");
        runner.run("true").success();
        runner.cleanup();
        // A service does not even have the variable.
        runner.variables.push(("XDG_RUNTIME_DIR".to_owned(), String::new()));
        job(&mut runner);
        before.check_live(installation, "jobs without a session");
    });
}

/// The place in `/tmp` is anybody's to make first.
#[test]
fn a_run_directory_that_another_user_made_is_replaced() {
    with_each(&[Who::Ranges], "", |installation| {
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
            let expected = format!("since {directory} is not this user's alone");
            assert!(said.contains(&expected), "{made}: {said}");
            assert_eq!(host.shell(&format!("ls -A {directory}/")), "", "{made}");
            // The other user gives way between two calls of a job.
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
