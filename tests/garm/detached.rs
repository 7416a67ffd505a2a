//! An instance does not need the call that made it, nor GARM.

use std::fs;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};
use crate::support::garm::answer::Status;
use crate::support::garm::faults::Fault;
use crate::support::host::Process;
use crate::support::http::Gate;

#[test]
fn pipes_are_closed_with_the_call_though_the_runner_goes_on() {
    with_each_runtime("", |world| {
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        // Fails if anything holds a pipe after the end.
        world.provider().start_create(&document).wait().success();
        world.installation.wait_for_log("one", "working");
        assert_eq!(world.provider().get("one").status, Status::Running);
        world.provider().delete("one");
    });
}

#[test]
fn a_supervisor_has_its_own_session_and_cgroup_and_holds_nothing_of_its_caller() {
    with_each_runtime("", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        world.installation.wait_for_log("one", "working");
        let supervisor = supervisor(world.host().processes(), &world.installation.program());
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
            // Version 2 beside version 1 may have no cgroups of ours.
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
fn killing_the_session_that_made_an_instance_does_not_end_it() {
    with_each_runtime("", |world| {
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let file = world.host().path().join("document");
        fs::write(&file, document.to_string()).unwrap();
        // Stands in for GARM, which leads a session and goes on after the call.
        let script = "\"$0\" <\"$1\" >/dev/null 2>&1; exec sleep 2000";
        let mut garm = Command::new("setsid");
        garm.args(["sh", "-c", script]).arg(world.installation.program()).arg(file);
        garm.env_clear().envs(world.provider().variables("CreateInstance", ""));
        let mut garm = world.host().spawn(&mut garm);
        world.installation.wait_for_log("one", "working");
        let group = Pid::from_child(&garm);
        kill_process_group(group, Signal::KILL).unwrap();
        garm.wait().unwrap();
        assert!(!world.host().processes().iter().any(|process| process.line == "sleep 2000 "));
        assert_eq!(world.provider().get("one").status, Status::Running);
        assert!(world.host().processes().iter().any(|process| process.line == "sleep 1000 "));
        world.provider().delete("one");
    });
}

#[test]
fn a_call_that_is_killed_when_the_boot_began_leaves_a_whole_or_nothing() {
    with_each_runtime("", |world| {
        let gate = Gate::default();
        world.garm.plan("/callbacks/status", Fault::Hold(0, gate.clone()), 1);
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let mut call = world.provider().start_create(&document);
        gate.wait_until_reached();
        call.signal(Signal::KILL);
        gate.open();
        drop(call.wait());
        // Either the supervisor had its task by then, and the runner comes up, or nothing does.
        if world.provider().names() == ["one"]
            && world.provider().get("one").status == Status::Running
        {
            world.installation.wait_for_log("one", "working");
        }
        world.provider().delete("one");
    });
}

#[track_caller]
fn supervisor(processes: Vec<Process>, program: &std::path::Path) -> Process {
    let program = program.display().to_string();
    let mut found: Vec<_> =
        processes.into_iter().filter(|process| process.line.starts_with(&program)).collect();
    assert_eq!(found.len(), 1, "one for each instance: {found:?}");
    found.remove(0)
}

#[test]
fn a_log_is_kept_up_to_its_size_and_after_its_instance() {
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
