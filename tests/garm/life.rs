//! Instances from their creation to the end.

use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::garm::answer::{AddressKind, Status};
use crate::support::garm::installation::Installation;
use crate::support::garm::instances::RunnerStatus;
use crate::support::garm::provider::CONTROLLER;
use crate::support::garm::server::Garm;
use crate::support::host::Host;
use crate::support::leftovers::{Snapshot, no_cgroup_of};
use crate::support::program;
use crate::support::runtime::Runtime;

#[test]
fn an_instance_boots_does_its_job_stops_and_is_deleted_without_a_trace() {
    with_each_runtime("", |world| {
        let provider = world.provider();
        world.warm_up();
        assert_eq!(provider.names(), <[String; 0]>::default());
        let before = Snapshot::take(&world.installation);

        let answer = world.create("one", "echo from the job; sleep 2; exit 3", json!({}));
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
        assert!(!instance.said("installing").is_empty());
        let cgroups: Vec<_> = world.installation.cgroups().into_iter().collect();
        assert!(!cgroups.is_empty());

        provider.wait_for("one", Status::Stopped);
        let listed = provider.list();
        assert_eq!(listed.len(), 1, "one that has ended is listed");
        assert_eq!((listed[0].status, listed[0].name.as_str()), (Status::Stopped, "one"));
        let record = world.installation.log("one");
        assert!(record.text.contains("from the job"), "{}", record.text);
        assert_eq!(record.one("end"), "3");

        provider.delete("one");
        assert_eq!(provider.names(), <[String; 0]>::default());
        before.check(&world.installation, "one life");
        no_cgroup_of(&cgroups.into_iter().filter(|name| name != "supervisors").collect::<Vec<_>>());
    });
}

#[test]
fn requests_come_in_the_order_that_garm_wants() {
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
        assert_eq!(path(0), "callbacks/status");
        assert!(api[0].body.contains("installing"), "{}", api[0].body);
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
fn urls_of_any_old_configuration_are_taken() {
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
fn a_running_instance_is_stopped_started_and_deleted() {
    with_each_runtime("", |world| {
        let provider = world.provider();
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        assert_eq!(provider.get("one").status, Status::Running);
        // It runs already.
        provider.start_instance("one").success();
        assert_eq!(provider.get("one").status, Status::Running);
        provider.stop_instance("one").success();
        assert_eq!(provider.get("one").status, Status::Stopped);
        provider.stop_instance("one").success();
        // The runner's credentials were in memory that is gone: it can be started no more than GARM
        // would tell it how.
        let ended = provider.start_instance("one");
        assert!(ended.status.code().is_some_and(|code| code < 2), "{}", ended.log());
        provider.delete("one");
        before.check(&world.installation, "stopped, started and deleted");
    });
}

#[test]
fn a_job_that_ignores_signals_ends_with_its_instance() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let job = "trap '' TERM INT HUP QUIT; (trap '' TERM; setsid sleep 1001) & \
                   echo working; while :; do sleep 1002; done";
        world.bring_up("one", job, json!({}));
        world.installation.wait_for_log("one", "working");
        world.provider().delete("one");
        before.check(&world.installation, "a stubborn job");
    });
}

#[test]
fn the_end_of_a_runner_ends_what_its_job_left_running() {
    with_each_runtime("", |world| {
        world.run("one", "setsid sleep 1003 >/dev/null 2>&1 & echo left", json!({}));
        let left = |line: &str| line.contains("sleep 1003");
        assert!(!world.host().processes().iter().any(|process| left(&process.line)));
        world.provider().delete("one");
    });
}

#[test]
fn hooks_are_applied_with_what_an_instance_is() {
    let host = Host::new();
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
    let installation = Installation::new(&host, Runtime::Runc, &further);
    let garm = Garm::start(&host);
    let world = World { installation, garm };
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
