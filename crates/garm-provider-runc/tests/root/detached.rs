//! Independence of an instance from the call that created it, and from GARM.

use std::fs;
use std::process::Command;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::http::Gate;
use oci_hooks_testsupport::program;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};

#[test]
fn supervisor_has_its_own_session_and_cgroup() {
    with_each_runtime("", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let supervisor = world.supervisor();
        let (status, files, cgroups, cwd, environ) = world.host().enter(|| {
            let at = |name: &str| format!("/proc/{}/{name}", supervisor.pid);
            let links = fs::read_dir(at("fd")).unwrap().flatten();
            let files = links.filter_map(|entry| {
                let target = fs::read_link(entry.path()).ok()?;
                Some((entry.file_name().into_string().unwrap(), target.display().to_string()))
            });
            (
                fs::read_to_string(at("stat")).unwrap(),
                files.collect::<Vec<_>>(),
                fs::read_to_string(at("cgroup")).unwrap(),
                fs::read_link(at("cwd")).unwrap(),
                fs::read(at("environ")).unwrap(),
            )
        });
        let words: Vec<_> = status.rsplit(')').next().unwrap().split_whitespace().collect();
        assert_eq!(words[3], supervisor.pid.to_string(), "it leads its session: {status}");
        for (number, target) in &files {
            let is_std = matches!(number.as_str(), "0" | "1" | "2");
            assert!(!is_std || target == "/dev/null", "{number} is {target}");
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        for line in own.lines() {
            // With hybrid cgroups, the v2 hierarchy may have no cgroup of the provider.
            let shared = cgroups.lines().any(|other| other == line);
            let is_bare = line.ends_with(":/") || line.starts_with("0::");
            assert!(!shared || is_bare, "{line} is the caller's");
        }
        assert_eq!(cwd.to_str(), Some("/"), "it holds no directory");
        assert!(!String::from_utf8_lossy(&environ).contains("GARM_POOL_EXTRASPECS"));
        world.provider().delete("one");
    });
}

#[test]
fn instance_survives_the_session_that_created_it() {
    with_each_runtime("", |world| {
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let file = world.host().path().join("document");
        fs::write(&file, document.to_string()).unwrap();
        // A fake GARM, which is a session leader and keeps running after the call.
        let script = "\"$0\" <\"$1\" >/dev/null 2>&1; exec sleep 2000";
        let mut garm = Command::new("setsid");
        garm.args(["sh", "-c", script]).arg(world.installation.program()).arg(file);
        garm.env_clear().envs(world.provider().variables("CreateInstance", ""));
        let mut garm = world.host().spawn(&mut garm);
        world.wait_for_job();
        let is_alive =
            || world.host().processes().iter().any(|process| process.line == "sleep 2000 ");
        // The job may run before the call has exited.
        program::wait_until("the call has exited", is_alive);
        let group = Pid::from_child(&garm);
        kill_process_group(group, Signal::KILL).unwrap();
        garm.wait().unwrap();
        assert!(!is_alive());
        assert_eq!(world.provider().get("one").status, AnswerStatus::Running);
        assert!(world.job_process().is_some());
        world.provider().delete("one");
    });
}

#[test]
fn killed_call_leaves_a_complete_instance_or_nothing() {
    with_each_runtime("", |world| {
        let gate = Gate::default();
        world.garm.plan("/callbacks/status", ConnectionFault::Hold(0, gate.clone()), 1);
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let mut call = world.provider().start_create(&document);
        gate.wait_until_reached();
        call.signal(Signal::KILL);
        gate.open();
        drop(call.wait());
        // If the supervisor had its task before the kill, the runner starts; otherwise there is no instance.
        if world.provider().names() == ["one"]
            && world.provider().get("one").status == AnswerStatus::Running
        {
            world.installation.wait_for_log("one", "working");
        }
        world.provider().delete("one");
    });
}

#[test]
fn log_is_limited_and_outlives_its_instance() {
    with_each_runtime("size = \"64KiB\"\n", |world| {
        let job = "i=0; while [ $i -lt 5000 ]; do echo \"a line of some length, number $i\"; i=$((i+1)); done";
        let record = world.run("one", job, json!({}));
        assert!(record.text.len() < 256 << 10, "{}", record.text.len());
        assert!(record.text.contains("number 4999"), "the newest is kept");
        world.provider().delete("one");
        assert!(world.installation.log("one").text.contains("number 4999"));
        let said = world.installation.admin(&["logs", "one"]).success();
        assert!(said.contains("number 4999"));
    });
}
