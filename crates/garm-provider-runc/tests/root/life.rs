//! Instances from their creation to the end.

use oci_hooks_testsupport::garm::answer::{AddressKind, AnswerStatus};
use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::provider::CONTROLLER;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, assert_no_cgroups};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, with_both_runtimes, with_each_runtime};

#[test]
fn instance_boots_runs_its_job_and_is_deleted_completely() {
    with_both_runtimes("", |world| {
        let provider = world.provider();
        world.warm_up();
        assert_eq!(provider.names(), <[String; 0]>::default());
        let before = LeftoverSnapshot::take(&world.installation);

        let job = "echo from the job; (exec sleep 1000); exit 3";
        let answer = world.create("one", job, json!({}));
        assert_eq!((answer.provider_id.as_str(), answer.name.as_str()), ("one", "one"));
        assert_eq!((answer.os_type.as_str(), answer.os_arch.as_str()), ("linux", "amd64"));
        assert_eq!(answer.os_name, "alpine");
        assert_eq!(answer.fault(), "");
        assert!(answer.addresses.iter().all(|address| address.kind == AddressKind::Private));
        let address = &answer.addresses[0].address;
        assert!(address.starts_with("10.214.") || address.starts_with("10.215."), "{address}");

        let instance = world.garm.wait_for("one", RunnerStatus::Idle);
        let mut fetched = instance.fetched.clone();
        fetched.sort();
        assert_eq!(fetched, ["credentials", "credentials_rsaparams", "runner"]);
        assert_eq!(instance.agent_id, Some(123));
        let system = instance.system.as_ref().unwrap();
        assert!(system["os_name"].as_str().unwrap().to_lowercase().contains("alpine"), "{system}");
        assert!(!instance.messages_with("installing").is_empty());
        let sleep = world.wait_for_job();
        let cgroups = world.installation.cgroups();
        assert!(!cgroups.is_empty());

        // The job continues with its exit.
        world.host().shell(&format!("kill -9 {}", sleep.pid));
        provider.wait_for("one", AnswerStatus::Stopped);
        let listed = provider.list();
        assert_eq!(listed.len(), 1, "one that has ended is listed");
        assert_eq!((listed[0].status, listed[0].name.as_str()), (AnswerStatus::Stopped, "one"));
        let record = world.installation.log("one");
        assert!(record.text.contains("from the job"), "{}", record.text);
        assert_eq!(record.only_record("end"), "3");

        provider.delete("one");
        assert_eq!(provider.names(), <[String; 0]>::default());
        before.check(&world.installation, "one life");
        assert_no_cgroups(&cgroups);
    });
}

#[test]
fn requests_arrive_in_the_order_of_garm() {
    with_each_runtime("", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        let requests = world.garm.requests();
        let api: Vec<_> = requests.iter().filter(|r| r.path.contains("/api/v1/")).collect();
        for request in &api {
            let words: Vec<_> = request.header("authorization").unwrap().split(' ').collect();
            assert_eq!((words.len(), words[0]), (2, "Bearer"), "{request:?}");
            assert_eq!(request.header("accept"), Some("application/json"), "{request:?}");
        }
        let path = |at: usize| api[at].path.trim_start_matches("/api/v1/").trim_end_matches('/');
        assert_eq!((path(0), path(1)), ("metadata/runner-metadata", "callbacks/status"));
        assert!(api[1].body.contains("installing"), "{}", api[1].body);
        assert_eq!(path(api.len() - 1), "callbacks/status");
        let last: serde_json::Value = serde_json::from_str(&api[api.len() - 1].body).unwrap();
        assert_eq!((&last["status"], &last["agent_id"]), (&json!("idle"), &json!(123)));
        let system = api.iter().position(|r| r.path.contains("system-info")).unwrap();
        let credentials = api.iter().rposition(|r| r.path.contains("credentials")).unwrap();
        assert!(credentials < system, "the agent is known then");
        assert!(!api.iter().any(|r| r.path.contains("registration-token")));
        world.provider().delete("one");
    });
}

#[test]
fn urls_of_old_configurations_are_accepted() {
    with_each_runtime("", |world| {
        for (name, callback, metadata) in [
            ("slash", "/api/v1/callbacks/", "/api/v1/metadata/"),
            ("status", "/api/v1/callbacks/status", "/api/v1/metadata"),
            ("status-slash", "/api/v1/callbacks/status/", "/api/v1/metadata"),
        ] {
            let urls = json!({
                "callback-url": world.garm.url(callback), "metadata-url": world.garm.url(metadata),
            });
            world.run(name, "true", urls);
            world.provider().delete(name);
        }
    });
}

#[test]
fn running_instance_is_stopped_started_and_deleted() {
    with_both_runtimes("", |world| {
        let provider = world.provider();
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        assert_eq!(provider.get("one").status, AnswerStatus::Running);
        // Starting a running instance does nothing.
        provider.start_instance("one").success();
        assert_eq!(provider.get("one").status, AnswerStatus::Running);
        provider.stop_instance("one").success();
        assert_eq!(provider.get("one").status, AnswerStatus::Stopped);
        provider.stop_instance("one").success();
        // A stopped instance is only paused, so it can be resumed.
        provider.start_instance("one").success();
        assert_eq!(provider.get("one").status, AnswerStatus::Running);
        provider.delete("one");
        before.check(&world.installation, "stopped, started and deleted");
    });
}

#[test]
fn job_that_ignores_signals_ends_with_its_instance() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let job = "trap '' TERM INT HUP QUIT; (trap '' TERM; setsid sleep 1001) & \
                   echo working; while :; do sleep 1002; done";
        world.bring_up("one", job, json!({}));
        world.installation.wait_for_log("one", "working");
        world.provider().delete("one");
        before.check(&world.installation, "a stubborn job");
    });
}

#[test]
fn background_processes_end_with_the_runner() {
    with_each_runtime("", |world| {
        world.run("one", "setsid sleep 1003 >/dev/null 2>&1 & echo left", json!({}));
        program::wait_until("the background process has ended", || {
            !world.host().processes().iter().any(|process| process.line.contains("sleep 1003"))
        });
        world.provider().delete("one");
    });
}

#[test]
fn hooks_see_the_properties_of_an_instance() {
    let host = TestHost::new();
    let directory = host.path().join("hooks.d");
    std::fs::create_dir(&directory).unwrap();
    let (script, seen) = (host.path().join("note"), host.path().join("seen"));
    program::write_program(
        &script,
        &format!(
            "#!/bin/sh\nbundle=$(sed 's/.*\"bundle\": *\"\\([^\"]*\\)\".*/\\1/')\n\
             echo \"$1\" >>{0}\n\
             grep -o '\"io.github.cloudbase.garm[^,}}]*' $bundle/config.json >>{0}\n",
            seen.display()
        ),
    );
    for (name, pattern) in [("this", "^my set/1-"), ("other", "^other$")] {
        let hook = json!({
            "version": "1.0.0",
            "hook": {"path": script, "args": ["hook", name], "env": ["PATH=/usr/bin:/bin"]},
            "when": {"annotations": {"^io\\.github\\.cloudbase\\.garm\\.pool$": pattern}},
            "stages": ["createRuntime"],
        });
        std::fs::write(directory.join(format!("{name}.json")), hook.to_string()).unwrap();
    }
    let further = format!("[hooks]\ndirs = [{directory:?}]\n");
    let installation = ProviderInstallation::new(&host, TestRuntime::Runc, &further);
    let garm = GarmServer::start(&host);
    let world = GarmFixture { installation, garm };
    world.bring_up("one", ENDLESS, json!({"pool_id": "my set/1-uuid", "flavor": "small"}));
    let text = std::fs::read_to_string(&seen).unwrap();
    assert_eq!(text.lines().next(), Some("this"), "{text}");
    assert!(!text.contains("other"), "{text}");
    for (key, value) in [
        ("controller", CONTROLLER),
        ("pool", "my set/1-uuid"),
        ("instance", "one"),
        ("flavor", "small"),
        ("image", "docker.io/garm/runner:1"),
        ("arch", "amd64"),
    ] {
        let compact = text.replace(": ", ":");
        let line = format!("\"io.github.cloudbase.garm.{key}\":\"{value}\"");
        assert!(compact.contains(&line), "{line} is not in\n{text}");
    }
    world.provider().delete("one");
}
