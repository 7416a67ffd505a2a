//! Rootless GARM without sudo: instances in their own namespaces.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{self, OUTSIDE, UserIds};
use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, RootlessUser, with_each_user};

/// `comm` of the pause process of an instance.
const PAUSE_PROCESS: &str = "pause-process";

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn instance_runs_and_leaves_nothing() {
    with_each_user("", |world, &RootlessUser { ids, .. }| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let provider = world.provider();
        let answer = world.create("one", "echo user $(id -u); sleep 1; exit 3", json!({}));
        assert_eq!((answer.os_name.as_str(), answer.fault().as_str()), ("alpine", ""));
        let address = &answer.addresses[0].address;
        assert!(address.starts_with("10.214.") || address.starts_with("10.215."), "{address}");
        assert_eq!(world.host().find_processes(PAUSE_PROCESS).len(), 1);
        assert_eq!(provider.names(), ["one"]);
        let log = world.installation.wait_for_log("one", "user ");
        let expected = if ids == UserIds::Ranges { "user 1001" } else { "user 0" };
        assert!(log.text.contains(expected), "{}", log.text);
        assert_eq!(
            log.text.contains("the runner runs as root"),
            ids == UserIds::None,
            "{}",
            log.text
        );
        provider.wait_for("one", AnswerStatus::Stopped);
        assert_eq!(world.installation.log("one").only_record("end"), "3");
        let ended = provider.start_instance("one");
        assert!(ended.stderr().contains("its runner was for one job"), "{}", ended.log());
        assert_eq!(provider.names(), <[String; 0]>::default(), "what had ended was removed");
        assert_eq!(world.host().find_processes(PAUSE_PROCESS), <[u32; 0]>::default());
        before.check(&world.installation, "an instance that was started again");

        world.bring_up("two", ENDLESS, json!({}));
        world.installation.wait_for_log("two", "working");
        let listed = world.installation.admin(&["instances"]).success();
        assert!(listed.contains("two") && listed.contains("running"), "{listed}");
        let again = world.garm.bootstrap("two", "true", json!({}));
        assert_eq!(provider.start_create(&again).wait().status.code(), Some(31));
        provider.stop_instance("two").success();
        assert_eq!(provider.get("two").status, AnswerStatus::Stopped);
        provider.start_instance("two").success();
        assert_eq!(provider.get("two").status, AnswerStatus::Running);
        provider.delete("two");
        let ended = provider.start("GetInstance", "two", Vec::new()).wait();
        assert_eq!(ended.status.code(), Some(30));
        provider.delete("two");
        before.check(&world.installation, "an instance that was deleted");
    });
}

#[test]
fn killed_instance_is_listed_and_removed() {
    with_each_user("", |world, _| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let provider = world.provider();
        for victim in ["supervisor", "pause process"] {
            world.bring_up("one", ENDLESS, json!({}));
            world.installation.wait_for_log("one", "working");
            let processes = world.host().processes();
            let supervisors = processes.iter().filter(|it| it.line.contains(" supervise "));
            let pids = match victim {
                "supervisor" => supervisors.map(|process| process.pid).collect(),
                _ => world.host().find_processes(PAUSE_PROCESS),
            };
            assert_eq!(pids.len(), 1, "{victim}");
            world.host().signal(&pids, "KILL");
            let expected =
                if victim == "pause process" { AnswerStatus::Stopped } else { AnswerStatus::Error };
            provider.wait_for("one", expected);
            if victim == "pause process" {
                // The pause process disappears before the kernel has killed the others.
                program::wait_until("the job has ended", || {
                    !world.host().processes().iter().any(|it| it.line.contains("sleep 1000"))
                });
                provider.stop_instance("one").success();
            }
            provider.delete("one");
            assert_eq!(provider.names(), <[String; 0]>::default());
            before.check(&world.installation, victim);
        }
    });
}

#[test]
fn creation_killed_at_any_moment_is_removed() {
    with_each_user("", |world, _| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let provider = world.provider();
        for round in 0..8 {
            let document = world.garm.bootstrap("one", ENDLESS, json!({}));
            let mut call = provider.start_create(&document);
            // There is no event in the middle of a creation.
            std::thread::park_timeout(std::time::Duration::from_millis(25) * round);
            call.signal(Signal::KILL);
            // Fails if a process still holds a pipe after the call has exited.
            call.wait();
            match round % 2 {
                0 => provider.delete("one"),
                _ => provider.remove_all(),
            }
            assert_eq!(provider.names(), <[String; 0]>::default());
        }
        assert_eq!(world.host().find_processes(PAUSE_PROCESS), <[u32; 0]>::default());
        before.check(&world.installation, "killed creations");
    });
}

#[test]
fn directories_of_a_creation_killed_before_its_record_are_removed() {
    with_each_user("", |world, _| {
        let provider = world.provider();
        world.bring_up("one", ENDLESS, json!({}));
        let instances = world.installation.run_directory().join("instances");
        let id = entries(&instances).into_iter().find(|name| !name.ends_with(".lock")).unwrap();
        let owner = fs::metadata(&instances).unwrap();
        provider.delete("one");
        for remover in ["DeleteInstance", "prune"] {
            for directory in [instances.join(&id), instances.join(&id).join("run")] {
                fs::create_dir(&directory).unwrap();
                chown(&directory, Some(owner.uid()), Some(owner.gid())).unwrap();
            }
            match remover {
                "prune" => drop(world.installation.admin(&["prune"]).success()),
                _ => provider.delete("one"),
            }
            assert_eq!(entries(&instances), <[String; 0]>::default(), "{remover}");
        }
    });
}

#[test]
fn all_instances_are_removed_even_after_a_reboot() {
    with_each_user("", |world, _| {
        let provider = world.provider();
        for name in ["one", "two"] {
            world.bring_up(name, ENDLESS, json!({}));
        }
        assert_eq!(world.host().find_processes(PAUSE_PROCESS).len(), 2);
        provider.remove_all();
        assert_eq!(provider.names(), <[String; 0]>::default());
        let instances = world.installation.store().join("instances");
        assert_eq!(entries(&instances), <[String; 0]>::default());

        // A reboot clears the run directory.
        world.bring_up("one", ENDLESS, json!({}));
        world.wait_for_job();
        let pause_processes = world.host().find_processes(PAUSE_PROCESS);
        assert_eq!(pause_processes.len(), 1);
        world.host().signal(&pause_processes, "KILL");
        program::wait_until("all ended", || {
            !world.host().processes().iter().any(|it| it.line.contains("sleep 1000"))
        });
        fs::remove_dir_all(world.installation.run_directory()).unwrap();
        assert_eq!(provider.names(), <[String; 0]>::default());
        assert_eq!(entries(&instances).len(), 1);
        world.bring_up("two", ENDLESS, json!({}));
        assert_eq!(entries(&instances).len(), 1, "that of the new one");
        let pruned = world.installation.admin(&["prune", "--all"]).success();
        assert!(pruned.contains("0 instances"), "{pruned}");
        let removed = world.installation.admin(&["rm", "--force", "two"]).success();
        assert!(removed.contains("removed instance two"), "{removed}");
        assert_eq!(entries(&instances), <[String; 0]>::default());
        assert_eq!(world.host().find_processes(PAUSE_PROCESS), <[u32; 0]>::default());
    });
}

#[test]
fn instance_reaches_the_world_and_reports_unenforced_limits() {
    with_each_user("[flavors.small]\nmemory = \"1GiB\"\n", |world, ordinary| {
        let listener = ordinary.world.listen_outside();
        let port = listener.local_addr().unwrap().port();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"from outside\n").unwrap();
        });
        let job = format!("echo heard $(nc {OUTSIDE} {port} </dev/null); exec sleep 1000");
        world.bring_up("one", &job, json!({"flavor": "small"}));
        let log = world.installation.wait_for_log("one", "heard ");
        assert!(log.text.contains("heard from outside"), "{}", log.text);
        let expected = "limits not enforced: memory, pids: ";
        assert!(log.text.contains(expected), "{}", log.text);
        answering.join().unwrap();
        let checked = world.installation.admin(&["doctor"]);
        let said = checked.stdout + &checked.stderr;
        assert!(said.contains("instances are created without root"), "{said}");
        world.provider().stop_instance("one").success();
        assert_eq!(world.provider().get("one").status, AnswerStatus::Stopped);
        world.provider().delete("one");
    });
}

#[test]
fn root_only_settings_are_rejected_by_name() {
    with_each_user("[flavors.small]\ndisk = \"1GiB\"\n", |world, _| {
        let document = world.garm.bootstrap("one", "true", json!({"flavor": "small"}));
        let said = world.provider().create_fails(&document);
        assert!(
            said.contains("flavor \"small\" limits the disk of the instance to 1GiB"),
            "{said}"
        );
        assert_eq!(world.host().find_processes(PAUSE_PROCESS), <[u32; 0]>::default());
        let instances = world.installation.run_directory().join("instances");
        assert_eq!(entries(&instances), <[String; 0]>::default());
    });
}

#[test]
fn users_do_not_see_each_others_instances() {
    let world = world::UserWorld::new();
    let users = [world.user(UserIds::Ranges), world.user(UserIds::None)];
    let first = ProviderInstallation::of_user(&world, &users[0], TestRuntime::Crun, "");
    let second = first.for_other_user(&users[1], "");
    let garm = GarmServer::start(world.host());
    let first = GarmFixture { installation: first, garm };
    let second = GarmFixture { installation: second, garm: GarmServer::start(world.host()) };
    for world in [&first, &second] {
        world.bring_up("one", ENDLESS, json!({}));
    }
    first.provider().delete("one");
    assert_eq!(first.provider().names(), <[String; 0]>::default());
    assert_eq!(second.provider().names(), ["one"]);
    assert_eq!(second.provider().get("one").status, AnswerStatus::Running);
    first.provider().remove_all();
    assert_eq!(second.provider().get("one").status, AnswerStatus::Running);
    second.provider().remove_all();
    assert_eq!(second.provider().names(), <[String; 0]>::default());
}
