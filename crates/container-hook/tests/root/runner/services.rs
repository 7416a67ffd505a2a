//! Services in the log of a job, and their names.

use std::fs;
use std::process::Command;

use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, containers};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::runner::setup::{is_logged, redis, runner, shell_step, with_each_runtime, write};

/// Returns a service that runs a shell script.
fn service(name: &str, script: &str) -> Value {
    let step = shell_step(script);
    merge(
        container("alpine:3.20"),
        json!({
            "entryPoint": step["entryPoint"], "entryPointArgs": step["entryPointArgs"],
            "createOptions": format!("--network-alias {name} -v shared:/shared"),
        }),
    )
}

/// Exits once the other service is checked.
const DIES: &str = "until test -e /shared/checked; do sleep 0.02; done; \
                    echo ::error::oh no; echo \"##[error]oh dear\" >&2; exit 3";

/// Returns a service that becomes healthy when this file is in the volume.
fn waits_for(file: &str) -> Value {
    let options = format!(
        "--network-alias waits -v shared:/shared --health-retries 1000 \
         --health-cmd \"touch /shared/checked; test -e /shared/{file}\""
    );
    merge(service("waits", "exec sleep 1000"), json!({"createOptions": options}))
}

/// Creates a file in the volume of the services.
fn create_shared(installation: &HookInstallation<'_>, file: &str) {
    let volumes = installation.store().join("volumes");
    let create = format!("cd {}/*/shared; touch {file}", volumes.display());
    installation.host().shell(&create);
}

/// Waits until a monitor has recorded the end of a service.
fn wait_for_end(installation: &HookInstallation<'_>) {
    let directory = installation.run_directory().join("containers");
    program::wait_until("a service has ended", || {
        containers(installation).iter().any(|id| directory.join(id).join("end.json").exists())
    });
}

#[test]
fn service_that_ended_before_the_steps_is_reported_with_output() {
    with_each_runtime("", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        let args = json!({
            "container": runner.job_container("node:22"),
            "services": [service("dies", DIES), waits_for("over")],
        });
        let call = runner.start("prepare_job", args);
        wait_for_end(installation);
        create_shared(installation, "over");
        let ended = call.wait().success();
        runner.keep_state(&ended);
        let log = ended.log();
        let warning = "::warning::service dies ended with code 3 before the job's steps\n";
        assert!(log.contains(warning), "{log}");
        assert!(log.contains("::group::Last output of service dies\n"), "{log}");
        for line in ["dies | ::error::oh no\n", "dies | ##[error]oh dear\n"] {
            assert!(log.contains(line), "{line} is not in {log}");
        }
        assert!(log.contains("service waits: reachable as waits, alpine-1\n"), "{log}");
        // The warning is logged only once.
        let (ended, _) = runner.container_step(shell_step("true"));
        assert!(!ended.success().log().contains("service dies"));
        let log = runner.cleanup().log();
        assert!(!log.contains("::warning::"), "{log}");
        for line in ["::group::Print service container logs: dies\n", "dies | ::error::oh no\n"] {
            assert!(log.contains(line), "{line} is not in {log}");
        }
        before.check_live(installation, "services that end");
    });
}

#[test]
fn service_that_ends_during_the_job_is_reported_later() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for has_step in [true, false] {
            let fifo = format!("/shared/fifo-{has_step}");
            let dies = format!("mkfifo {fifo}; echo last words; exec 9>{fifo}; exit 137");
            runner.prepare(runner.job_container("alpine:3.20"), &[service("dies", &dies)]);
            let waits = format!("until test -p {fifo}; do sleep 0.02; done; cat {fifo}");
            let volume = json!({"createOptions": "-v shared:/shared"});
            runner.container_step(merge(shell_step(&waits), volume)).0.success();
            wait_for_end(installation);
            let warning = "::warning::service dies ended with code 137 (signal 9) during the job\n";
            let step = has_step.then(|| runner.container_step(shell_step("true")).0.log());
            let end = runner.cleanup().log();
            let (with, without) = match &step {
                Some(step) => (step, Some(&end)),
                None => (&end, None),
            };
            assert!(with.contains(warning) && with.contains("dies | last words\n"), "{with}");
            assert!(without.is_none_or(|log| !log.contains("::warning::")), "{without:?}");
            assert!(end.contains("Print service container logs: dies\n"), "{end}");
        }
    });
}

#[test]
fn service_output_is_shown_at_the_end_with_limits() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let talks = "seq 100000; head -c 500000 /dev/zero | tr \"\\0\" x; echo; \
                     echo ::stop-commands::x; printf \"last \\033[2J\\n\"; touch /shared/began; exec sleep 1000";
        runner.prepare(Value::Null, &[service("talks", talks), waits_for("began")]);
        program::wait_until("all output is kept", || {
            installation.admin(&["logs", "talks", "--tail", "1"]).success().contains("last ")
        });
        let log = runner.cleanup().log();
        let all: Vec<_> = log.lines().collect();
        let at = |line: &str| {
            all.iter()
                .position(|one| *one == line)
                .unwrap_or_else(|| panic!("{line} is not in {log}"))
        };
        let group = at("::group::Print service container logs: talks");
        assert!(all[group + 1].starts_with("(earlier output left out: "), "{}", all[group + 1]);
        assert!(all[group + 2].starts_with("::stop-commands::"), "{}", all[group + 2]);
        assert!(at("talks | ::stop-commands::x") > group);
        let silent = at("::group::Print service container logs: waits");
        assert_eq!(all[silent + 1], "::endgroup::");
        assert!(log.len() < 600_000, "{}", log.len());
    });
}

#[test]
fn services_show_their_output_if_one_fails_the_job() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let check = "until test -e /shared/logged; do sleep 0.1; done; \
                     echo the last; printf \"\\033[31mcheck\\n::error::x\"; exit 4";
        let sick = merge(
            service("sick", "echo I am sick; exec sleep 1000"),
            json!({"createOptions": format!(
                "--network-alias sick -v shared:/shared --health-cmd '{check}' --health-interval 1s \
                 --health-retries 2 --health-timeout 10m"
            )}),
        );
        let well = service("well", "echo I am well; exec sleep 1000");
        let args = json!({"container": Value::Null, "services": [sick, well]});
        let call = runner.start("prepare_job", args);
        for text in ["I am sick", "I am well"] {
            program::wait_until(text, || is_logged(installation, text));
        }
        create_shared(installation, "logged");
        let log = call.wait().failure();
        for text in [
            "::group::Print service container logs: sick\n",
            "sick | I am sick\n",
            "::group::Print service container logs: well\n",
            "checks failed, the last with code 4: the last [31mcheck ::error::x\n",
        ] {
            assert!(log.contains(text), "{text} is not in {log}");
        }
        assert!(!log.contains('\u{1b}'), "{log}");
        runner.cleanup();
    });
}

/// Writes a worker's log, in the runner's format, for a job with these services.
fn worker_log(runner: &GithubRunner<'_>, name: &str, services: &[(&str, &str)]) {
    let services: Vec<_> = services
        .iter()
        .map(|(name, image)| {
            let image = json!({"Key": "image", "Value": {"type": 0, "lit": image}});
            json!({"Key": name, "Value": {"type": 2, "map": [image]}})
        })
        .collect();
    let message = json!({
        "jobDisplayName": "build",
        "jobServiceContainers": {"type": 2, "map": services},
        "variables": {"system.github.job": {"value": "build"}},
        "contextData": {"github": {"t": 2, "d": [{"k": "run_id", "v": "9876543210"}]}},
    });
    let text =
        format!("[INFO Worker] Version: 2.336.0\n[INFO Worker] Job message:\n {message:#}\n");
    write(runner.home().join("_diag").join(name), &format!("{text}[INFO JobRunner] more\n"));
    if let Some((uid, gid)) = runner.user() {
        let mut chown = Command::new("chown");
        let owner = format!("{uid}:{gid}");
        program::run(chown.args(["-R", &owner]).arg(runner.home().join("_diag"))).success();
    }
}

/// Prepares a job with two services, and returns their names from its log.
fn names_of(runner: &mut GithubRunner<'_>) -> Vec<String> {
    let nginx = container("nginx:alpine");
    let args = json!({
        "container": runner.job_container("alpine:3.20"),
        "services": [merge(redis(), json!({"portMappings": []})), nginx],
    });
    let log = runner.call("prepare_job", args).success().log();
    let said = log.lines().filter_map(|line| line.split_once(": reachable as "));
    said.map(|(_, names)| names.to_owned()).collect()
}

#[test]
fn services_are_reachable_by_the_names_of_the_workflow() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-0");
        assert_eq!(names_of(&mut runner), ["redis", "nginx"], "nothing is known");
        runner.cleanup();
        worker_log(&runner, "Worker_20260101-000000-utc.log", &[("old", "redis:7")]);
        let services = [("cache", "redis:7"), ("web", "nginx:alpine")];
        worker_log(&runner, "Worker_20260102-000000-utc.log", &services);
        assert_eq!(names_of(&mut runner), ["cache, redis", "web, nginx"]);
        for name in ["web", "nginx"] {
            let ended =
                runner.run(&format!("until wget -q -O- http://{name}/; do sleep 0.05; done"));
            assert_eq!(ended.success().stdout(), "hello from nginx\n", "{name}");
        }
        runner.cleanup();
        // The log of another job is ignored.
        worker_log(&runner, "Worker_20260103-000000-utc.log", &[("old", "redis:7")]);
        assert_eq!(names_of(&mut runner), ["redis", "nginx"]);
        runner.cleanup();
    });
}

#[test]
fn service_names_do_not_clash_with_containers() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let named = |key: &str, options: &str| {
            let changes = json!({"contextName": key, "createOptions": options});
            merge(container("nginx:alpine"), changes)
        };
        let services = [
            named("one", "--network-alias two --network-alias localhost"),
            named("two", "--network-alias web"),
        ];
        let args = json!({"container": runner.job_container("alpine:3.20"), "services": services});
        let log = runner.call("prepare_job", args).success().log();
        for line in [
            "service one: not reachable as \"two\": another service has this name\n",
            "service one: not reachable as \"localhost\": in each container, this is a name of the container itself\n",
            "service one: reachable as one, nginx\n",
            "service two: reachable as two, web, nginx-1\n",
        ] {
            assert!(log.contains(line), "{line} is not in {log}");
        }
        let hosts =
            runner.run("grep -cw two /etc/hosts; grep localhost /etc/hosts").success().stdout();
        assert!(!hosts.contains("10."), "{hosts}");
        runner.cleanup();
    });
}

#[test]
fn published_port_answers_on_both_loopback_addresses() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let nginx = merge(container("nginx:alpine"), json!({"portMappings": ["8080:80"]}));
        let args = json!({"container": Value::Null, "services": [nginx]});
        let log = runner.call("prepare_job", args).success().log();
        let said = "service nginx: reachable as nginx; port 80/tcp is port 8080 of this machine\n";
        assert!(log.contains(said), "{log}");
        let wget = |address: &str| format!("busybox wget -q -O- http://{address}:8080/");
        // Without a health check the job does not wait for the service.
        program::wait_until("the service", || {
            let mut listens = Command::new("sh");
            listens.args(["-c", &wget("127.0.0.1")]);
            runner.host().run(&mut listens).status.success()
        });
        for address in ["127.0.0.1", "[::1]", "localhost"] {
            let page = runner.host().shell(&wget(address));
            assert_eq!(page, "hello from nginx\n", "{address}");
        }
        runner.cleanup();
    });
}

#[test]
fn doctor_reports_if_service_names_are_known() {
    let check = |installation: &HookInstallation<'_>| {
        let report = installation.admin(&["doctor", "--format=json"]).stdout;
        let report: Value = serde_json::from_str(&report).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "service names").cloned();
        let check = check.unwrap_or_else(|| panic!("no service names in {report}"));
        (check["status"].as_str().unwrap().to_owned(), check["found"].to_string())
    };
    for settings in ["", "[network]\nnames-from-runner-log = false\n"] {
        let host = TestHost::new();
        let installation = HookInstallation::new(&host, TestRuntime::Runc, settings);
        let runner = runner(&installation, "runner-1");
        fs::create_dir(runner.home().join("bin")).unwrap();
        let listener = runner.home().join("bin/Runner.Listener");
        program::copy_program(&program::find("sleep"), &listener);
        let mut command = Command::new(listener);
        command.arg("1000").env("ACTIONS_RUNNER_CONTAINER_HOOKS", installation.entry());
        let mut listener = host.spawn(&mut command);
        program::wait_until("the listener has its command line", || {
            host.processes().iter().any(|process| process.line.ends_with("Runner.Listener 1000 "))
        });
        let (status, found) = check(&installation);
        assert_eq!(status, "warn", "{found}");
        if settings.is_empty() {
            assert!(found.contains("_diag") && found.contains("--network-alias"), "{found}");
            fs::create_dir(runner.home().join("_diag")).unwrap();
            let (status, found) = check(&installation);
            assert_eq!(status, "ok", "{found}");
        } else {
            assert!(found.contains("names-from-runner-log is off"), "{found}");
        }
        listener.kill().unwrap();
        listener.wait().unwrap();
    }
}
