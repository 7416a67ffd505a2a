//! Files of jobs never prevent their removal.

use std::fs;

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use serde_json::json;

use crate::runner::left_behind::copy_tool;
use crate::runner::setup::{redis, runner, with_each_runtime};

/// Limit of open files of our programs.
const DESCRIPTORS: u32 = 64;

/// Creates 2000 nested directories: more than the limit of open files, with paths longer than `PATH_MAX`.
const DEEP: &str = "
const fs = require('fs');
for (const top of ['/deep', '/volume/deep', '/__w/deep']) {
    fs.mkdirSync(top);
    process.chdir(top);
    for (let level = 0; level < 2000; level++) {
        fs.mkdirSync('deeper');
        process.chdir('deeper');
    }
    fs.writeFileSync('bottom', 'x');
    process.chdir('/');
}
";

/// Creates files with difficult names and of difficult kinds.
const ODD: &str = "
rm -rf $1; mkdir -p $1/closed; cd $1
printf 'x' >\"$(printf 'a\\nb')\"; mkdir \"$(printf '\\377\\376')\" -- '-rf *'
touch $(yes n | head -n 255 | tr -d '\\n'); ln -s /etc/shadow link; ln link again
mkfifo fifo; truncate -s 1099511627776 sparse; touch closed/file; chmod 000 closed
for i in $(seq 3000); do echo >$i; done
cd /
";

/// Creates deep trees and odd files in the container's root file system, in an anonymous volume and in the
/// work directory.
fn create_leftovers(runner: &mut GithubRunner<'_>) {
    let container = merge(
        runner.job_container("node:22"),
        json!({"createOptions": "-v /volume -v cache:/cache"}),
    );
    runner.descriptors = None;
    runner.prepare(container, &[redis(), redis(), redis(), redis()]);
    let tops = ["/odd", "/volume/odd", "/__w/odd", "/cache/odd"];
    let script = tops.map(|top| format!("odd {top}")).join("\n");
    runner.run(&format!("odd() {{ {ODD} }}\n{script}")).success();
    runner.javascript(DEEP, &[]).success();
    runner.descriptors = Some(DESCRIPTORS);
}

/// The runner removes its own directory; here with `rm`, because the standard library cannot.
fn clear_work(host: &TestHost, runner: &GithubRunner<'_>) {
    host.shell(&format!("rm -rf {0}/deep {0}/odd", runner.work().display()));
}

#[test]
fn depth_and_odd_names_do_not_prevent_removal() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let mut runner = runner(installation, "runner-1");
        create_leftovers(&mut runner);
        let said = runner.cleanup().log();
        assert!(!said.contains("warning"), "{said}");
        clear_work(host, &runner);
        let before = LeftoverSnapshot::take(installation);

        create_leftovers(&mut runner);
        clear_work(host, &runner);
        // The next job starts without a cleanup.
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("test ! -e /deep && test ! -e /odd").success();
        runner.cleanup();
        before.check(installation, "the next job");

        let mut gone = crate::runner::setup::runner(installation, "gone");
        gone.run_through_worker();
        create_leftovers(&mut gone);
        clear_work(host, &gone);
        let said = installation.limited_admin(DESCRIPTORS, &["prune", "--all"]).success();
        assert!(said.contains("1 job or container"), "{said}");
        let containers = installation.store().join("containers");
        assert_eq!(fs::read_dir(containers).unwrap().count(), 0);
        assert!(!installation.store().join("trash").exists());
    });
}

#[test]
fn immutable_files_of_a_privileged_job_are_removed() {
    with_each_runtime("[policy]\nprivileged = true\n", |installation| {
        let mut runner = runner(installation, "runner-1");
        let options = json!({"createOptions": "--privileged -v /volume"});
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for is_cleaned_up in [true, false] {
            runner.prepare(merge(runner.job_container("node:22"), options.clone()), &[]);
            copy_tool(&runner, "chattr");
            let script = "
                chattr() { /tools/ld.so --library-path /tools /tools/chattr $*; }
                ln -s /__w/_temp/tools /tools
                mkdir -p /volume/sealed/dir; cd /volume
                for name in log file sealed/file; do echo >$name; done
                chattr +a log; chattr +i file sealed/dir sealed/file; chattr +i sealed; chattr +i .
                rm -rf /volume/sealed 2>/dev/null && exit 9
                echo >/own; chattr +i /own";
            runner.run(script).success();
            if is_cleaned_up {
                let said = runner.cleanup().log();
                assert!(!said.contains("warning"), "{said}");
                before.check(installation, "cleanup_job");
            }
            fs::remove_dir_all(runner.temp().join("tools")).unwrap();
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        before.check(installation, "the next job");
    });
}

#[test]
fn unremovable_files_are_set_aside_and_reported() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let store = installation.store().display().to_string();
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for calls in ["cleanup_job", "prepare_job"] {
            runner.prepare(runner.job_container("node:22"), &[]);
            runner.run("mkdir /x; echo x >/x/file").success();
            host.shell(&format!("cd {store}/containers/*/upper/x; mkdir m; mount -t tmpfs none m"));
            let said = if calls == "cleanup_job" {
                runner.cleanup().log()
            } else {
                let args = json!({"container": runner.job_container("node:22"), "services": []});
                runner.call(calls, args).success().log()
            };
            assert!(said.contains("::warning::set aside as "), "{said}");
            assert!(said.contains("upper/x/m: "), "{said}");
            let said = runner.cleanup().log();
            assert!(!said.contains("set aside"), "{said}");
        }
        let doctor = installation.admin(&["doctor"]);
        assert!(doctor.stdout.contains("2 trees in "), "{}", doctor.stdout);
        let pruned = installation.admin(&["prune"]);
        assert_eq!(
            pruned
                .stderr
                .matches("cannot empty the trash, the next prune tries again: cannot remove ")
                .count(),
            2,
            "{}",
            pruned.stderr
        );
        pruned.success();
        host.shell(&format!("umount {store}/trash/*/upper/x/m"));
        installation.admin(&["prune"]).success();
        before.check(installation, "prune");
    });
}
