//! Passwords, and images that require them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::threads::repeat_during;
use serde_json::{Value, json};

use crate::runner::setup::{redis, runner, shell_step, with_each_runtime, write};

#[test]
fn private_image_in_the_store_is_denied_to_other_jobs() {
    with_each_runtime("", |installation| {
        let login = HubLogin("octocat", "right");
        let _ghcr = HostRegistry::start(installation.host(), RegistryName::Ghcr, Some(login));
        let mut runner = runner(installation, "runner-1");
        let image = "ghcr.io/octo/ci-image:main";
        let prepare = |runner: &mut GithubRunner<'_>, registry: Value| -> EndedCall {
            let container = merge(runner.job_container(image), json!({"registry": registry}));
            let args = json!({"container": container, "services": []});
            let ended = runner.call("prepare_job", args);
            runner.cleanup();
            ended
        };
        let with = |password: &str| json!({"username": "octocat", "password": password, "serverUrl": "ghcr.io"});
        prepare(&mut runner, with("right")).success();
        for registry in [Value::Null, with("wrong")] {
            let said = prepare(&mut runner, registry).failure();
            assert!(said.contains("ghcr.io"), "{said}");
            assert!(!said.contains("wrong"), "{said}");
        }
        prepare(&mut runner, with("right")).success();
    });
}

/// Steps that run until the processes of the host have been listed.
const STEPS: [&str; 2] = ["script", "action"];

const CANARIES: [&str; 3] = ["cAnArY-password-7f3a", "cAnArY-step-91bd", "cAnArY-service-c0de"];

#[test]
fn secrets_are_in_no_command_line_log_or_file() {
    let [password, step, service] = CANARIES;
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr =
            HostRegistry::start(host, RegistryName::Ghcr, Some(HubLogin("octocat", password)));
        let mut runner = runner(installation, "runner-1");
        // As set by the secret `ACTIONS_STEP_DEBUG`.
        runner.variables.push(("RUNNER_DEBUG".to_owned(), "1".to_owned()));
        let registry = json!({"username": "octocat", "password": password, "serverUrl": "ghcr.io"});
        let container = merge(
            runner.job_container("ghcr.io/octo/ci-image:main"),
            json!({"registry": registry}),
        );
        let redis = merge(redis(), json!({"environmentVariables": {"REDIS_PASSWORD": service}}));
        let mut seen = Vec::new();
        let temp = runner.temp();
        let watch = || {
            let running = STEPS.map(|name| temp.join(format!("{name}-runs")).exists());
            let all = host.processes().into_iter();
            seen.extend(all.filter(|process| has_canary(process.line.as_bytes())));
            for (name, _) in STEPS.iter().zip(running).filter(|(_, is_running)| *is_running) {
                write(temp.join(format!("{name}-seen")), "");
            }
        };
        let script = |directory: &str, name: &str| {
            format!(
                "echo ${{#TOKEN}}; touch {directory}/{name}-runs; \
                 until test -e {directory}/{name}-seen; do sleep 0.02; done"
            )
        };
        let log = repeat_during(watch, || {
            let args = json!({"container": container, "services": [redis]});
            let mut log = runner.call("prepare_job", args).success().log();
            let env = [("TOKEN", step)];
            let ended = runner.run_step(&script("/__w/_temp", STEPS[0]), &env).0.success();
            log.push_str(&ended.log());
            let action = merge(
                shell_step(&script("/github/runner_temp", STEPS[1])),
                json!({"environmentVariables": {"TOKEN": step}}),
            );
            log.push_str(&runner.container_step(action).0.success().log());
            files_are_private(installation.run_directory().as_path());
            files_are_private(installation.store().as_path());
            log.push_str(&runner.cleanup().log());
            log
        });
        assert!(seen.is_empty(), "{seen:?}");
        assert!(!has_canary(log.as_bytes()), "{log}");
        for event in
            ["send a request", "mount an overlay", "create the container", "execute in the"]
        {
            let line = log.lines().find(|line| line.contains(event));
            let line = line.unwrap_or_else(|| panic!("{event}: {log}"));
            let seconds =
                line.strip_prefix("::debug::").and_then(|line| line.trim().split_once("s DEBUG "));
            assert!(seconds.is_some_and(|(time, _)| time.parse::<f64>().is_ok()), "{line}");
        }
        assert!(log.contains(&format!("{}\n", step.len())), "{log}");
        let run = host.enter(|| search(Path::new("/run")));
        let left = [search(host.path()), run].concat();
        assert!(left.is_empty(), "{left:?}");
    });
}

fn has_canary(bytes: &[u8]) -> bool {
    CANARIES
        .iter()
        .any(|canary| bytes.windows(canary.len()).any(|window| window == canary.as_bytes()))
}

/// Checks that only root can read files with a secret while the job runs: a container's configuration
/// contains its environment.
fn files_are_private(directory: &Path) {
    for path in search(directory) {
        let reader = program::run(
            Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "test", "-r"])
                .arg(&path),
        );
        reader.failure();
    }
}

/// Returns the files below a directory that contain a secret.
fn search(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut rest = vec![directory.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                rest.push(entry.path());
            } else if kind.is_file() && fs::read(entry.path()).is_ok_and(|text| has_canary(&text)) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn credential_helpers_of_the_admin_are_used_for_jobs() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr =
            HostRegistry::start(host, RegistryName::Ghcr, Some(HubLogin("octocat", "right")));
        let logins = host.path().join("logins.json");
        fs::write(&logins, json!({"credHelpers": {"ghcr.io": "of-the-test"}}).to_string()).unwrap();
        let helpers = host.path().join("helpers");
        fs::create_dir(&helpers).unwrap();
        let helper = helpers.join("docker-credential-of-the-test");
        let answer = json!({"Username": "octocat", "Secret": "right"});
        write(&helper, &format!("#!/bin/sh\necho '{answer}'\n"));
        host.shell(&format!("chmod 755 {0}/*; mount --bind {0} /usr/local/bin", helpers.display()));
        let settings = installation.variable().1;
        let text = fs::read_to_string(&settings).unwrap();
        fs::write(&settings, text.replace("[store]", &format!("[store]\nlogins = [{logins:?}]")))
            .unwrap();
        let mut pull = Command::new(installation.program());
        pull.args(["pull", "ghcr.io/octo/ci-image:main"]).env_clear();
        pull.env(installation.variable().0, &settings);
        host.run(&mut pull).success();
    });
}
