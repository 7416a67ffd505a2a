//! After a downgrade: records of a newer version of the program.

use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, containers};
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::runner::setup::{redis, runner, with_each_runtime};

#[test]
fn job_of_a_newer_version_is_kept_until_it_ends_and_is_pruned() {
    with_each_runtime("", |installation| {
        let mut old = runner(installation, "runner-1");
        old.prepare(old.job_container("node:22"), &[redis()]);
        old.cleanup();
        let before = LeftoverSnapshot::take(installation);
        old.prepare(old.job_container("node:22"), &[redis()]);
        let run = installation.run_directory().display().to_string();
        installation.host().shell(&format!(
            "cd {run}; sed -i 's/{{\"version\":1,/{{\"version\":9,/' containers/*/record.json \
             jobs/*/job.json network/*/record.json leases/*/*.json"
        ));
        for (command, args) in [
            ("cleanup_job", json!({})),
            ("prepare_job", json!({"container": old.job_container("node:22"), "services": []})),
        ] {
            let said = old.start(command, args).wait().failure();
            assert!(said.contains("job.json was written by a newer version"), "{command}: {said}");
            assert!(said.contains("`prune --newer`"), "{command}: {said}");
        }
        // Other runners are not affected.
        let mut other = runner(installation, "other");
        other.prepare(other.job_container("node:22"), &[]);
        other.run("true").success();
        other.cleanup();
        let prune = |more: &[&str]| {
            let words = [&["prune", "--format", "json"], more].concat();
            installation.admin(&words).success()
        };
        assert!(prune(&[]).contains("newer version"));
        assert!(prune(&["--newer"]).contains("is still running"));
        assert_eq!(containers(installation).len(), 2);
        let kill = format!("for pid in {run}/containers/*/pid; do kill -9 $(cat $pid); done");
        installation.host().shell(&kill);
        program::wait_until("nothing of it runs", || {
            !prune(&["--newer"]).contains("is still running")
        });
        assert!(prune(&[]).contains("\"unreadable\": []"), "{}", prune(&[]));
        before.check(installation, "a job of a newer version");
        old.prepare(old.job_container("node:22"), &[]);
        old.cleanup();
    });
}
