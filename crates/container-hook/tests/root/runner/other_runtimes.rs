//! Jobs on runtimes other than runc and crun: gVisor's sandbox, and runtimes that cannot run jobs.

use std::fs;
use std::path::PathBuf;

use oci_hooks_testsupport::github_runner::merge;
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::runner::setup::{redis, runner, shell_step, write};

/// Sends PING to the service by its name.
const PING: &str = "printf 'PING\\r\\nQUIT\\r\\n' | nc -w 60 redis 6379";

/// Writes a runtime that runs gVisor with the sockets of the host's kernel, in the job's network: gVisor of
/// Debian 12 does not support network namespaces of Linux 6.9 or later.
fn gvisor(host: &TestHost) -> PathBuf {
    let path = host.path().join("runsc");
    let script =
        format!("#!/bin/sh\nexec {} --network=host \"$@\"\n", program::find("runsc").display());
    program::write_program(&path, &script);
    path
}

/// Runs a job with a service and all kinds of steps, and checks that nothing is left.
fn run_job(installation: &HookInstallation<'_>) {
    let before = LeftoverSnapshot::take(installation);
    for _ in 0..2 {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("alpine:3.20"), &[redis()]);
        // gVisor's kernel calls itself Linux 4.4.0.
        assert_eq!(runner.run("uname -r").success().stdout(), "4.4.0\n");
        runner.run("echo kept >file; exit 7").code(7);
        assert_eq!(runner.run("cat file").success().stdout(), "kept\n");
        assert_eq!(runner.run(PING).success().stdout(), "+PONG\r\n");
        let step = runner.container_step(shell_step("uname -r")).0.success();
        assert!(step.stdout().ends_with("4.4.0\n"), "{}", step.log());
        runner.container_step(shell_step("exit 5")).0.code(5);
        let missing = merge(shell_step("true"), json!({"entryPoint": "/nope"}));
        let said = runner.container_step(missing).0.failure();
        assert!(said.contains("/nope"), "{said}");
        runner.cleanup();
        before.check_live(installation, "a job in a sandbox");
    }
    installation.admin(&["prune"]).success();
    before.check_live(installation, "prune");
}

#[test]
fn a_job_runs_in_the_sandbox_of_gvisor() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    run_job(&HookInstallation::with_runtime(&host, gvisor(&host), ""));
}

#[test]
fn a_runtime_class_runs_a_job_in_the_sandbox_of_gvisor() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let template = host.path().join("template.yaml");
    write(&template, "spec: {runtimeClassName: gvisor}");
    let further = format!(
        "[template]\nfile = {template:?}\n[template.runtime-classes]\ngvisor = {:?}\n",
        gvisor(&host)
    );
    run_job(&HookInstallation::new(&host, TestRuntime::Runc, &further));
}

#[test]
fn the_policy_runs_jobs_of_a_repository_in_the_sandbox_of_gvisor() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let further = format!("[policy.runtimes]\n\"octo/*\" = {:?}\n", gvisor(&host));
    let installation = HookInstallation::new(&host, TestRuntime::Runc, &further);
    run_job(&installation);
    let mut runner = runner(&installation, "runner-1");
    runner.variables.push(("GITHUB_REPOSITORY".to_owned(), "other/repo".to_owned()));
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    assert_ne!(runner.run("uname -r").success().stdout(), "4.4.0\n");
    runner.cleanup();
}

#[test]
fn a_dockerfile_is_not_built_outside_of_the_sandbox() {
    for by_template in [false, true] {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        let program = gvisor(&host);
        let further = if by_template {
            let template = host.path().join("template.yaml");
            write(&template, "spec: {runtimeClassName: gvisor}");
            format!(
                "[template]\nfile = {template:?}\n[template.runtime-classes]\ngvisor = {program:?}\n"
            )
        } else {
            format!("[policy.runtimes]\n\"*\" = {program:?}\n")
        };
        let installation = HookInstallation::new(&host, TestRuntime::Runc, &further);
        let mut runner = runner(&installation, "runner-1");
        let dockerfile = runner.work().join("Dockerfile");
        write(&dockerfile, "FROM alpine:3.20\nRUN echo built\n");
        let step = json!({"image": null, "dockerfile": dockerfile});
        let said = runner.container_step(step).0.failure();
        assert!(said.contains("runsc cannot build a Dockerfile action"), "{said}");
    }
}

#[test]
fn cleanup_needs_no_runtime() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let path = host.path().join("runc");
    program::write_program(
        &path,
        &format!("#!/bin/sh\nexec {} \"$@\"\n", program::find("runc").display()),
    );
    let further = format!("[policy.runtimes]\n\"*\" = {path:?}\n");
    let installation = HookInstallation::new(&host, TestRuntime::Crun, &further);
    let before = LeftoverSnapshot::take(&installation);
    let mut runner = runner(&installation, "runner-1");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    fs::remove_file(path).unwrap();
    runner.run("true").success();
    runner.cleanup();
    before.check_live(&installation, "a job whose runtime is gone");
}

#[test]
fn a_runtime_that_cannot_run_jobs_is_rejected_and_blocks_no_later_job() {
    for (name, version, said) in [
        ("youki", "youki version: 0.7.0", "(youki) cannot run jobs: steps run without the seccomp"),
        (
            "engine",
            "engine version 1.0",
            "(unknown) cannot run jobs: its file name and its --version",
        ),
    ] {
        let host = TestHost::new();
        let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
        let installation = HookInstallation::new(&host, TestRuntime::Runc, "");
        let path = host.path().join(name);
        program::write_program(&path, &format!("#!/bin/sh\necho '{version}'\n"));
        let settings = host.path().join("container-hook.toml");
        let (old, new) = (format!("{:?}", installation.runtime()), format!("{path:?}"));
        write(&settings, &fs::read_to_string(&settings).unwrap().replace(&old, &new));
        let before = LeftoverSnapshot::take(&installation);
        let mut runner = runner(&installation, "runner-1");
        for _ in 0..2 {
            let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
            let found = runner.call("prepare_job", args).failure();
            assert!(found.contains(said), "{found}");
            runner.cleanup();
        }
        installation.admin(&["prune"]).success();
        before.check_live(&installation, name);
    }
}
