//! Behavior of the Docker hook that workflows rely on.

use std::fs;
use std::time::Duration;

use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge, mount, volume};
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::containers;
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::runner::setup::{runner, shell_step, with_each_runtime, write};

/// Returns nginx as a service with a published port.
fn nginx(port: u16) -> Value {
    merge(container("nginx:alpine"), json!({"portMappings": [format!("{port}:80")]}))
}

fn with_port(runner: &GithubRunner<'_>, port: u16) -> Value {
    merge(
        runner.job_container("alpine:3.20"),
        json!({"portMappings": [format!("{port}:8080"), "9090/udp"]}),
    )
}

#[test]
fn response_contains_images_and_ports_of_containers() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let named = merge(nginx(8082), json!({"contextName": "web"}));
        let answer = runner.prepare(with_port(&runner, 8081), &[nginx(8083), named]);
        let context = &answer["context"];
        let job = &context["container"];
        assert_eq!(job["image"], "alpine:3.20");
        assert_eq!(job["ports"]["8080"], "8081");
        assert!(job["ports"]["9090"].is_string(), "{answer}");
        let services = &context["services"];
        for (at, port) in [(0, "8083"), (1, "8082")] {
            assert_eq!(services[at]["image"], "nginx:alpine");
            assert_eq!(services[at]["ports"], json!({"80": port}));
            assert_eq!(services[at]["network"], job["network"]);
        }
        assert_eq!(
            (&services[0]["contextName"], &services[1]["contextName"]),
            (&Value::Null, &json!("web"))
        );
        runner.cleanup();
        let answer = runner.prepare(runner.job_container("alpine:3.20"), &[]);
        assert_eq!(answer["context"]["container"]["ports"], json!({}));
        runner.cleanup();
    });
}

#[test]
fn ports_of_container_steps_are_not_published() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.variables.push(("RUNNER_DEBUG".to_owned(), "1".to_owned()));
        runner.prepare(with_port(&runner, 8081), &[]);
        let step = |script| merge(shell_step(script), json!({"portMappings": ["8081:8080"]}));
        // The job has the port, and the second step starts while the kernel still cleans up after the first.
        for _ in 0..2 {
            let ended = runner.container_step(step("echo it ran")).0.success();
            assert!(ended.stdout().contains("\nit ran\n"), "{}", ended.log());
            let expected = "the ports 8081:8080 are not published";
            assert!(ended.log().contains(expected), "{}", ended.log());
        }
        runner.cleanup();
    });
}

/// Returns a runner named `ci` in another directory.
fn ci<'a>(installation: &'a HookInstallation<'a>, directory: &str) -> GithubRunner<'a> {
    let mut runner = runner(installation, directory);
    runner.name = "ci".to_owned();
    runner
}

#[test]
fn runner_configured_anew_elsewhere_removes_its_last_job() {
    with_each_runtime("", |installation| {
        let mut old = ci(installation, "old");
        old.run_through_worker();
        old.prepare(with_port(&old, 8081), &[nginx(8082)]);
        let mut new = ci(installation, "new");
        let args = json!({"container": with_port(&new, 8081), "services": [nginx(8082)]});
        let log = new.call("prepare_job", args).success().log();
        assert!(log.contains("removed a job of an earlier runner \"ci\""), "{log}");
        assert_eq!(containers(installation).len(), 2);
        new.run("true").success();
        new.cleanup();
        assert!(containers(installation).is_empty());
    });
}

#[test]
fn runners_of_the_same_name_keep_jobs_while_their_workers_run() {
    with_each_runtime("", |installation| {
        let mut one = ci(installation, "one");
        one.run_through_worker();
        let stays = "#!/bin/sh\nbash \"$@\" || exit\necho the worker stays\n\
                     sleep 1000 >/dev/null 2>&1 </dev/null\n";
        program::write_program(&one.home().join("Runner.Worker"), stays);
        let args = |runner: &GithubRunner<'_>| json!({"container": with_port(runner, 8081), "services": []});
        let mut worker = one.start("prepare_job", args(&one));
        worker.wait_for_line("the worker stays");
        let mut other = ci(installation, "other");
        let said = other.call("prepare_job", args(&other)).failure();
        assert!(said.contains("port 8081/tcp"), "{said}");
        other.prepare(other.job_container("alpine:3.20"), &[]);
        assert_eq!(containers(installation).len(), 2);
        other.cleanup();
        assert_eq!(containers(installation).len(), 1);
        worker.kill_after(Duration::ZERO);
        other.prepare(with_port(&other, 8081), &[]);
        other.cleanup();
        assert!(containers(installation).is_empty());
    });
}

#[test]
fn runner_directories_are_mounted_below_workflow_volumes() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let mut job = runner.job_container("alpine:3.20");
        let mounts = job["systemMountVolumes"].as_array_mut().unwrap();
        // Like a runner whose directory is configured with a trailing slash.
        let tools = format!("/{}/tools//cache/", runner.home().display());
        mounts.push(mount(tools, "/__t", false));
        mounts.push(merge(mount("", "/nothing", false), json!({"sourceVolumePath": null})));
        job["userMountVolumes"] = json!([
            volume("m2", "/github/home/.m2", false),
            volume("modules", "/__w/repo/repo/node_modules", false),
            volume("seen", "/__w/_tool/seen", true),
        ]);
        runner.prepare(job, &[]);
        let script = "touch /__t/a /github/home/.m2/a node_modules/a; ! touch /__w/_tool/seen/a; \
                      ! touch /__e/a; ! test -e /nothing; ! test -e /var/run/docker.sock; \
                      ls -A /github/home /__w/_tool";
        let seen = runner.run(script).success().stdout();
        assert_eq!(seen, "/__w/_tool:\nseen\n\n/github/home:\n.m2\n");
        runner.cleanup();
        assert!(runner.home().join("tools/cache/a").exists());
        let kept = runner.workspace().join("node_modules");
        assert_eq!(fs::read_dir(kept).unwrap().count(), 0, "what is in a volume is in it alone");
    });
}

/// Prepares a job whose runner has these environment variables, and returns the log.
fn prepare_with(runner: &mut GithubRunner<'_>, variables: &[(&str, &str)]) -> String {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    runner.variables = variables.iter().map(owned).collect();
    let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
    runner.call("prepare_job", args).success().log()
}

#[test]
fn containers_use_the_network_named_by_the_runner() {
    const NETWORK: &str = "ACTIONS_RUNNER_NETWORK_DRIVER";
    with_each_runtime("[policy]\nhost-namespaces = [\"network\"]\n", |installation| {
        let own = installation.host().shell("readlink /proc/self/ns/net");
        let mut runner = runner(installation, "runner-1");
        let is_silent = |log: &str| !log.contains(NETWORK);
        assert!(is_silent(&prepare_with(&mut runner, &[(NETWORK, "host")])));
        assert_eq!(runner.run("readlink /proc/self/ns/net").success().stdout(), own);
        let step = shell_step("readlink /proc/self/ns/net");
        assert!(runner.container_step(step).0.success().stdout().ends_with(&own));
        runner.cleanup();
        assert!(is_silent(&prepare_with(&mut runner, &[(NETWORK, "none")])));
        assert_eq!(runner.run("ls /sys/class/net").success().stdout(), "lo\n");
        runner.cleanup();
        let log = prepare_with(&mut runner, &[(NETWORK, "my-bridge")]);
        assert!(log.contains(&format!("{NETWORK} has no effect")), "{log}");
        assert_ne!(runner.run("readlink /proc/self/ns/net").success().stdout(), own);
        runner.cleanup();
    });
}

#[test]
fn ineffective_docker_variables_are_named_once() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let set = [
            ("ACTIONS_RUNNER_NETWORK_DRIVER", "host"),
            ("DOCKER_HOST", "tcp://secret:2375"),
            ("DOCKER_TLS_VERIFY", "1"),
            ("DOCKER_CONTENT_TRUST", "1"),
        ];
        let log = prepare_with(&mut runner, &set);
        for expected in [
            "ACTIONS_RUNNER_NETWORK_DRIVER=host has no effect: the admin of this machine can allow",
            "\nDOCKER_HOST, DOCKER_TLS_VERIFY have no effect",
            "::warning::DOCKER_CONTENT_TRUST has no effect",
        ] {
            assert!(format!("\n{log}").contains(expected), "{expected}: {log}");
        }
        assert!(!log.contains("secret"), "{log}");
        for ended in [runner.run("true"), runner.container_step(shell_step("true")).0] {
            let log = ended.success().log();
            assert!(!log.contains("no effect"), "{log}");
        }
        runner.cleanup();
        let wrong = ("DOCKER_DEFAULT_PLATFORM".to_owned(), "arm/64/v8/x".to_owned());
        runner.variables = vec![wrong];
        let args = json!({"container": runner.job_container("alpine:3.20"), "services": []});
        let said = runner.call("prepare_job", args.clone()).failure();
        assert!(said.contains("DOCKER_DEFAULT_PLATFORM: invalid platform"), "{said}");
        runner.variables[0].1 = "linux/s390x".to_owned();
        let said = runner.call("prepare_job", args).failure();
        assert!(said.contains("linux/s390x"), "{said}");
        runner.cleanup();
    });
}

#[test]
fn logins_and_proxies_are_in_the_directory_named_by_the_runner() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr =
            HostRegistry::start(host, RegistryName::Ghcr, Some(HubLogin("octocat", "right")));
        let mut runner = runner(installation, "runner-1");
        let config = runner.home().join("docker");
        let logins = json!({
            "auths": {"ghcr.io": {"username": "octocat", "password": "right"}},
            "proxies": {"default": {"httpProxy": "http://proxy:1", "noProxy": "of-docker"}},
        });
        write(config.join("config.json"), &logins.to_string());
        let container = runner.job_container("ghcr.io/octo/ci-image:main");
        let container = merge(container, json!({"createOptions": "--env NO_PROXY=of-options"}));
        let args = json!({"container": container, "services": []});
        assert!(runner.call("prepare_job", args.clone()).failure().contains("ghcr.io"));
        runner.variables.push(("DOCKER_CONFIG".to_owned(), config.display().to_string()));
        runner.call("prepare_job", args).success();
        let seen =
            runner.run("echo $HTTP_PROXY $http_proxy $NO_PROXY $no_proxy").success().stdout();
        assert_eq!(seen, "http://proxy:1 http://proxy:1 of-options of-docker\n");
        runner.cleanup();
    });
}
