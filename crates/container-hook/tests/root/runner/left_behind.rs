//! Leftovers of jobs in the runner's directories: no device nodes, no set-user-ID programs or file
//! capabilities, and no files of other users.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::process::Command;

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::{images, program};
use serde_json::{Value, json};

use crate::runner::setup::{
    HostCanary, redis, runner, shell_step, with_both_runtimes, with_each_runtime,
};

/// `find` conditions for ids outside of the range reserved for jobs.
const NOT_PRIVATE: [&str; 2] =
    [r"\( -uid -1895825408 -o -uid +2147483647 \)", r"\( -gid -1895825408 -o -gid +2147483647 \)"];

/// Creates problematic files of many kinds in the work directory.
const LITTER: &str = "
mkdir litter litter/dir; cd litter
for kind in 'b 8 0' 'c 1 3'; do
    for place in node /__w/node /__w/_temp/node /github/home/node; do
        mknod $place $kind 2>/dev/null && { echo \"made $place $kind\"; exit 9; }
    done
done
for name in own other group caps dir/other; do echo '#!/bin/sh' >$name; done
mknod pipe p
ln -s /etc/shadow link
ln other again
chown 33:33 other dir dir/other pipe
chown -h 33:33 link
chown :42 group
chmod 6755 own other dir/other
chmod 2755 group dir
/tools/ld.so --library-path /tools /tools/setcap cap_net_raw+ep caps
stat -c '%u:%g %a %n' own other group dir dir/other
";

const SEEN: &str = "0:0 6755 own\n33:33 6755 other\n0:42 2755 group\n33:33 2755 dir\n\
                    33:33 6755 dir/other\n";

#[test]
fn job_leaves_no_foreign_files_or_permissions() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        litter(runner(installation, "runner-root"), (0, 0));
        canary.check("litter");
    });
}

fn litter(mut runner: GithubRunner<'_>, owner: (u32, u32)) {
    runner.prepare(runner.job_container("node:22"), &[]);
    copy_tool(&runner, "setcap");
    let script = format!("ln -s /__w/_temp/tools /tools\n{LITTER}");
    let ended = runner.run(&script).success();
    assert_eq!(ended.stdout(), SEEN);
    let (uid, gid) = owner;
    let [users, groups] = NOT_PRIVATE;
    let work = runner.work().display().to_string();
    let shell = |script: String| runner.host().shell(&script);
    assert_eq!(shell(format!("find {work} ! -uid {uid} {users}")), "", "of other users");
    assert_eq!(shell(format!("find {work} ! -gid {gid} {groups}")), "", "of other groups");
    assert_eq!(shell(format!("find {work} -type b -o -type c")), "", "devices");
    assert_ne!(shell(format!("find {work} ! -uid {uid}")), "", "it does not look at what is there");
    runner.cleanup();
    check_nothing_left(&runner, owner);
}

/// Checks the work directory after a job.
#[track_caller]
fn check_nothing_left(runner: &GithubRunner<'_>, (uid, gid): (u32, u32)) {
    let work = runner.work().display().to_string();
    let asked = format!("! -uid {uid} -o ! -gid {gid} -o -type b -o -type c");
    assert_eq!(runner.host().shell(&format!("find {work} {asked}")), "");
    // The set-group-ID bit of directories only passes on the group, which is the user's.
    assert_eq!(runner.host().shell(&format!("find {work} ! -type d -perm /6000")), "");
    let getcap = program::find("getcap").display().to_string();
    assert_eq!(runner.host().shell(&format!("{getcap} -r {work}")), "");
}

/// Copies a program of this machine, with its libraries, to where the job sees it.
pub(crate) fn copy_tool(runner: &GithubRunner<'_>, name: &str) {
    let tools = runner.temp().join("tools");
    fs::create_dir(&tools).unwrap();
    let tool = program::find(name);
    for file in images::libraries(&tool).into_iter().chain([tool]) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let name = if name.starts_with("ld-linux") { "ld.so" } else { name };
        program::copy_program(&file, &tools.join(name));
    }
    let owner = format!("--reference={}", runner.temp().display());
    program::run(Command::new("chown").arg("-R").arg(owner).arg(&tools)).success();
}

#[test]
fn job_that_gives_away_the_runner_directories_ends_normally() {
    with_each_runtime("", |installation| {
        check_restored_owner(runner(installation, "runner-root"), (0, 0));
    });
}

fn check_restored_owner(mut runner: GithubRunner<'_>, owner: (u32, u32)) {
    runner.prepare(runner.job_container("node:22"), &[]);
    let give = "chmod 777 /__w /__w/_temp; chown -R 65534:1 /__w; stat -c %u:%g /__w /__w/_temp .";
    let seen = runner.run(give).success().stdout();
    assert_eq!(seen, "65534:1\n65534:1\n65534:1\n");
    let work = runner.work();
    let user = || {
        let found = fs::metadata(&work).unwrap();
        (found.uid(), found.gid())
    };
    assert_ne!(user(), owner);
    let (ended, _) = runner.container_step(shell_step("echo x >made-by-step; stat -c %u ."));
    assert!(ended.success().stdout().ends_with("65534\n"), "the step sees whose it is");
    runner.run("cat made-by-step").success();
    runner.cleanup();
    assert_eq!(user(), owner);
    check_nothing_left(&runner, owner);
    // The next job can use the directories.
    runner.prepare(runner.job_container("node:22"), &[]);
    runner.run("rm made-by-step; echo y >another").success();
    runner.cleanup();
    check_nothing_left(&runner, owner);
}

/// Services do not mount the runner's directories, but container steps beside them do.
#[test]
fn steps_beside_services_leave_no_foreign_files() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-root");
        runner.prepare(Value::Null, &[redis()]);
        let script = "mkdir of-others; touch of-others/file; chown -R 33:33 of-others .";
        runner.container_step(shell_step(script)).0.success();
        runner.cleanup();
        check_nothing_left(&runner, (0, 0));
    });
}

/// As after a job that unpacks a large archive with its owners.
#[test]
fn ownership_of_many_files_is_restored() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-root");
        runner.prepare(runner.job_container("node:22"), &[]);
        let make = "for d in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do mkdir $d; \
                    (cd $d; seq 1000 | xargs touch); done; chown -R 65534:65534 .";
        runner.run(make).success();
        runner.cleanup();
        check_nothing_left(&runner, (0, 0));
    });
}

#[test]
fn devices_of_a_privileged_job_are_removed() {
    with_both_runtimes("[policy]\nprivileged = true\n", |installation| {
        let mut runner = runner(installation, "runner-root");
        let container =
            merge(runner.job_container("node:22"), json!({"createOptions": "--privileged"}));
        runner.prepare(container, &[]);
        let script = "mkdir deep; for place in disk deep/disk /__w/disk /__w/_temp/disk; do \
                      mknod $place b 8 0; chmod 666 $place; chown 6:6 $place; done; mknod n c 1 3";
        runner.run(script).success();
        let work = runner.work().display().to_string();
        let found = runner.host().shell(&format!("find {work} -type b -o -type c"));
        assert_eq!(found.lines().count(), 5, "{found}");
        let said = runner.cleanup().log();
        assert!(said.contains("removed 5 device nodes of the job"), "{said}");
        check_nothing_left(&runner, (0, 0));
    });
}

#[test]
fn replaced_directory_is_not_followed() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        temp_is_replaced(runner(installation, "runner-root"), 0, &canary);
    });
}

fn temp_is_replaced(mut runner: GithubRunner<'_>, uid: u32, canary: &HostCanary<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
    // A job without a mount of its own for this directory can replace it.
    let (temp, old) = (runner.temp(), runner.work().join("old"));
    fs::rename(&temp, &old).unwrap();
    symlink("/run/canary", &temp).unwrap();
    std::os::unix::fs::lchown(&temp, Some(uid), Some(uid)).unwrap();
    let answer = runner.home().join("answer.json");
    let call = |runner: &GithubRunner<'_>, command: &str, args: Value| {
        let request = json!({
            "command": command, "responseFile": answer, "args": args, "state": runner.state,
        });
        runner.start_raw(request.to_string().into_bytes(), None).wait()
    };
    let step = merge(runner.job_container("alpine:3.20"), json!({"entryPoint": "true"}));
    let job = json!({"container": runner.job_container("node:22"), "services": []});
    for (command, args) in [("run_container_step", step), ("prepare_job", job.clone())] {
        let said = call(&runner, command, args).failure();
        assert!(said.contains("_temp"), "{command}: {said}");
        canary.check(command);
    }
    call(&runner, "cleanup_job", json!({})).success();
    canary.check("cleanup_job");
    let said = call(&runner, "prepare_job", job).failure();
    assert!(said.contains("_temp"), "{said}");
    canary.check("the next job");
    // The runner creates the directory anew for each job.
    fs::remove_file(&temp).unwrap();
    fs::rename(&old, &temp).unwrap();
    runner.cleanup();
    runner.prepare(runner.job_container("node:22"), &[]);
    runner.run("echo fine").success();
    runner.cleanup();
}
