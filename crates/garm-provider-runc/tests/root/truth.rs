//! Correctness of reports to GARM: idle, failed, and status.

use std::fs;

use garm_provider_runc::record::{ControllerRecords, RunnerOutcome};
use oci_hooks_host::cgroup;
use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::provider::CONTROLLER;
use oci_hooks_testsupport::http::Gate;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot, containers};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::setup::{ENDLESS, with_both_runtimes, with_each_runtime, with_runtime};

#[test]
fn runner_that_exits_before_listening_is_never_idle() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let job = "#deaf\necho 'A session for this runner already exists.'; exit 1";
        world.create_for_failure("one", job, json!({}));
        let said = world.boot_fails("one");
        let expected = "before it listened for jobs; last lines: ";
        assert!(said.contains(expected) && said.contains("A session for this runner"), "{said}");
        assert!(world.garm.instance("one").messages_with("idle").is_empty());
        let answer = world.provider().wait_for("one", AnswerStatus::Error);
        assert_eq!(answer.fault(), said);
        // GARM logs this error when it starts the instance again.
        let start = world.provider().start_instance("one");
        assert!(start.stderr().contains("A session for this runner"), "{}", start.log());
        // GARM forgets an instance that is no longer listed, and creates another one.
        assert_eq!(world.provider().names(), <[String; 0]>::default());
        world.provider().delete("one");
        before.check(&world.installation, "a deaf runner");
    });
}

/// A supervisor exits some time after it has recorded the runner's result.
#[test]
fn instance_with_a_result_is_removed_by_its_start_even_if_its_supervisor_runs() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        let records = ControllerRecords::of(&world.installation.run_directory(), CONTROLLER);
        let (fault, at) = ("it failed".to_owned(), "2026-11-21T12:00:00Z".parse().unwrap());
        let outcome = RunnerOutcome::Failed { fault, at };
        records.files("one").unwrap().write_outcome(&outcome).unwrap();
        let start = world.provider().start_instance("one");
        assert!(start.stderr().contains("it failed"), "{}", start.log());
        assert_eq!(world.provider().names(), <[String; 0]>::default());
        before.check(&world.installation, "an instance with a result");
    });
}

#[test]
fn runner_that_does_not_listen_in_time_is_stopped_and_reported() {
    // Even on a busy machine, a boot takes less time than the timeout.
    with_each_runtime("[boot]\ntimeout = \"60s\"\n", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        // The timeout does not apply once a runner listens.
        world.bring_up("two", "sleep 61; echo done", json!({}));
        world.create("one", "#deaf\necho Retrying until reconnected.; exec sleep 1000", json!({}));
        let said = world.boot_fails("one");
        assert!(said.starts_with("the runner did not listen for jobs within 60 s"), "{said}");
        assert!(said.contains("Retrying until reconnected."), "{said}");
        world.provider().wait_for("one", AnswerStatus::Error);
        assert!(world.garm.instance("one").messages_with("idle").is_empty());
        let left = |line: &str| line.contains("sleep 1000");
        program::wait_until("the runner is gone", || {
            !world.host().processes().iter().any(|process| left(&process.line))
        });
        world.provider().wait_for("two", AnswerStatus::Stopped);
        assert!(world.installation.log("two").text.contains("stdout done"));
        world.provider().remove_all();
        before.check(&world.installation, "a runner that does not connect");
    });
}

#[test]
fn failure_of_a_listening_runner_is_an_error_but_an_update_is_not() {
    with_each_runtime("", |world| {
        for (name, job, words) in [
            ("terminated", "echo 1 >.code", "terminated error"),
            ("conflict", "echo 5 >.code", "Session Conflict"),
            ("crashed", "kill -9 $PPID", "unknown error code: 137"),
        ] {
            world.bring_up(name, job, json!({}));
            let answer = world.provider().wait_for(name, AnswerStatus::Error);
            assert!(answer.fault().contains(words), "{}", answer.fault());
            let listed = world.provider().list();
            let listed = listed.iter().find(|listed| listed.name == name).unwrap();
            assert_eq!((listed.status, listed.fault()), (AnswerStatus::Error, answer.fault()));
            let log = world.installation.log(name).text;
            // GARM rejects reports of an idle instance.
            assert!(log.contains("cannot report the failure to GARM: "), "{log}");
            assert_eq!(world.garm.instance(name).status, RunnerStatus::Idle);
        }
        for code in [2, 3, 4] {
            let name = format!("update-{code}");
            let job = format!(
                "[ -e updated ] && exec echo after the update; touch updated; echo {code} >.code"
            );
            let record = world.run(&name, &job, json!({}));
            assert!(record.text.contains("stdout after the update"), "{}", record.text);
            assert_eq!(record.text.matches("Listening for Jobs").count(), 2);
            assert_eq!(world.garm.instance(&name).messages_with("idle").len(), 1);
        }
        world.provider().remove_all();
    });
}

#[test]
fn unreachable_garm_is_informed_later() {
    with_runtime(TestRuntime::Crun, "", |world| {
        world.warm_up();
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        // System information is the last request before `idle`.
        let gate = Gate::default();
        world.garm.plan("/system-info", ConnectionFault::Hold(0, gate.clone()), 1);
        world.provider().create(&document);
        gate.wait_until_reached();
        let reports = || world.garm.count("/callbacks/status");
        let before = reports();
        world.garm.plan("/callbacks/status", ConnectionFault::Status(502), 1);
        gate.open();
        world.installation.wait_for_log("one", "working");
        world.garm.wait_for("one", RunnerStatus::Idle);
        assert_eq!(reports(), before + 2, "one was lost");
        assert_eq!(world.provider().get("one").status, AnswerStatus::Running);
        world.provider().delete("one");
    });
}

#[test]
fn failing_garm_script_is_reported_without_its_token() {
    with_each_runtime("", |world| {
        let fields =
            json!({"extra_specs": {"use_garm_template": true}, "image": "docker.io/garm/bash:1"});
        let document = world.garm.bootstrap("one", "true", fields);
        let token = document["instance-token"].as_str().unwrap();
        let script = format!(
            "#!/bin/bash\nset -x\nBEARER_TOKEN='{token}'\nset +x\necho 'curl: (7) no route' >&2\n\
             exit 7\n"
        );
        world.garm.set_install_script("one", &script);
        world.provider().create(&document);
        let said = world.boot_fails("one");
        assert!(
            said.starts_with("GARM's install script ended with code 7; last lines: "),
            "{said}"
        );
        assert!(said.contains("curl: (7) no route") && said.contains("***"), "{said}");
        assert!(!said.contains("canary"), "{said}");
        let answer = world.provider().wait_for("one", AnswerStatus::Error);
        assert_eq!(answer.fault(), said);
        world.provider().delete("one");
    });
}

#[test]
fn full_log_disk_does_not_keep_an_instance_running() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let logs = world.installation.log_directory().display().to_string();
        world.host().shell(&format!("mount -t tmpfs -o size=64k none {logs}"));
        world.bring_up("one", "head -c 1000000 /dev/zero | tr '\\0' x; echo no newline", json!({}));
        let answer = world.provider().wait_for("one", AnswerStatus::Stopped);
        assert_eq!(answer.fault(), "");
        program::wait_until("its container is gone", || {
            !world.host().processes().iter().any(|process| process.line.contains(" supervise "))
        });
        world.provider().delete("one");
        world.host().shell(&format!("umount {logs}"));
        before.check(&world.installation, "a full disk");
    });
}

/// A power failure of the host ends all processes, networks and mounts, and clears `/run`.
#[test]
fn instances_are_gone_after_a_reboot_and_new_ones_start() {
    with_both_runtimes("", |world| {
        world.warm_up();
        world.bring_up("one", ENDLESS, json!({}));
        world.wait_for_job();
        world.kill_processes();
        program::wait_until("all is killed", || world.job_process().is_none());
        for id in containers(&world.installation) {
            program::wait_until("its cgroup is gone", || {
                cgroup::remove(&format!("{}/{id}", cgroup::PARENT))
            });
        }
        let run = world.installation.run_directory().display().to_string();
        world.host().shell(&format!(
            "while read -r _ at _; do case $at in {run}/*) umount -l $at ;; esac; done \
             </proc/mounts; nft flush ruleset; rm -rf {run}"
        ));
        let provider = world.provider();
        // GARM deletes instances from its database that are no longer listed, and creates others.
        assert_eq!(provider.names(), <[String; 0]>::default());
        let get = provider.start("GetInstance", "one", Vec::new()).wait();
        assert_eq!(get.status.code(), Some(30), "{}", get.log());
        provider.delete("one");
        world.bring_up("one", ENDLESS, json!({}));
        assert_eq!(provider.get("one").status, AnswerStatus::Running);
        assert_eq!(containers(&world.installation).len(), 1);
        provider.delete("one");
        let left = fs::read_dir(world.installation.store().join("containers"));
        assert_eq!(left.map_or(0, |left| left.count()), 0, "of the first one");
    });
}

#[test]
fn stored_image_is_used_if_the_registry_is_down() {
    with_each_runtime("", |world| {
        world.warm_up();
        world.installation.stop_registry();
        world.bring_up("one", ENDLESS, json!({}));
        let told = world.garm.instance("one").messages_with("installing").join("\n");
        let warning =
            "using garm/runner:1 from the store, which may be older than the registry's: ";
        assert!(told.contains(warning), "{told}");
        let log = world.installation.log("one").text;
        assert!(log.contains(warning), "{log}");
        let other = json!({"image": "docker.io/garm/base:1"});
        let said = world.provider().create_fails(&world.garm.bootstrap("two", "true", other));
        assert!(said.contains("cannot reach"), "{said}");
        world.installation.configure(
            "[images.strict]\nreference = \"docker.io/garm/runner:1\"\npull = \"always\"\n",
        );
        let strict = json!({"image": "strict"});
        let said = world.provider().create_fails(&world.garm.bootstrap("two", "true", strict));
        assert!(said.contains("cannot reach"), "{said}");
        world.provider().delete("one");
    });
}
