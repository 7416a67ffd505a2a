//! GARM run by an ordinary user without sudo: instances in namespaces of their own.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, Ordinary, World, with_each_user};
use crate::support::garm::answer::Status;
use crate::support::garm::installation::Installation;
use crate::support::garm::server::Garm;
use crate::support::leftovers::{Installed as _, Snapshot};
use crate::support::program;
use crate::support::runtime::Runtime;
use crate::support::world::{self, Ids, OUTSIDE};

/// What the kernel calls the first process of an instance's namespaces.
const HOLDER: &str = "job-holder";

/// Returns the processes of the host that have a name, as the kernel has it.
fn named(world: &World<'_>, name: &str) -> Vec<u32> {
    let processes = world.host().processes();
    world.host().enter(|| {
        let has_name = |pid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == name)
        };
        processes.iter().map(|process| process.pid).filter(has_name).collect()
    })
}

fn kill(world: &World<'_>, pids: &[u32]) {
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    world.host().shell(&format!("kill -{} {}", Signal::KILL.as_raw(), pids.join(" ")));
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn an_instance_lives_and_leaves_nothing() {
    with_each_user("", |world, &Ordinary { ids, .. }| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let provider = world.provider();
        let answer = world.create("one", "echo user $(id -u); sleep 1; exit 3", json!({}));
        assert_eq!((answer.os_name.as_str(), answer.fault().as_str()), ("alpine", ""));
        let address = &answer.addresses[0].address;
        assert!(address.starts_with("10.214.") || address.starts_with("10.215."), "{address}");
        assert_eq!(named(world, HOLDER).len(), 1);
        assert_eq!(provider.names(), ["one"]);
        let log = world.installation.wait_for_log("one", "user ");
        let expected = if ids == Ids::Ranges { "user 1001" } else { "user 0" };
        assert!(log.text.contains(expected), "{}", log.text);
        assert_eq!(log.text.contains("the runner runs as root"), ids == Ids::None, "{}", log.text);
        provider.wait_for("one", Status::Stopped);
        assert_eq!(world.installation.log("one").one("end"), "3");
        let ended = provider.start_instance("one");
        assert!(ended.stderr().contains("its runner was good for one job"), "{}", ended.log());
        assert_eq!(provider.names(), <[String; 0]>::default(), "what had ended was removed");
        assert_eq!(named(world, HOLDER), <[u32; 0]>::default());
        before.check(&world.installation, "an instance that was started again");

        world.bring_up("two", ENDLESS, json!({}));
        world.installation.wait_for_log("two", "working");
        let listed = world.installation.admin(&["instances"]).success();
        assert!(listed.contains("two") && listed.contains("running"), "{listed}");
        let again = world.garm.bootstrap("two", "true", json!({}));
        assert_eq!(provider.start_create(&again).wait().status.code(), Some(31));
        provider.stop_instance("two").success();
        assert_eq!(provider.get("two").status, Status::Stopped);
        provider.start_instance("two").success();
        assert_eq!(provider.get("two").status, Status::Running);
        provider.delete("two");
        let ended = provider.start("GetInstance", "two", Vec::new()).wait();
        assert_eq!(ended.status.code(), Some(30));
        provider.delete("two");
        before.check(&world.installation, "an instance that was deleted");
    });
}

#[test]
fn what_is_killed_is_seen_and_removed() {
    with_each_user("", |world, _| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let provider = world.provider();
        for victim in ["supervisor", "holder"] {
            world.bring_up("one", ENDLESS, json!({}));
            world.installation.wait_for_log("one", "working");
            let processes = world.host().processes();
            let supervisors = processes.iter().filter(|it| it.line.contains(" supervise "));
            let pids = match victim {
                "supervisor" => supervisors.map(|process| process.pid).collect(),
                _ => named(world, HOLDER),
            };
            assert_eq!(pids.len(), 1, "{victim}");
            kill(world, &pids);
            let expected = if victim == "holder" { Status::Stopped } else { Status::Error };
            provider.wait_for("one", expected);
            if victim == "holder" {
                let left = world.host().processes();
                assert!(!left.iter().any(|it| it.line.contains("sleep 1000")), "{left:?}");
                provider.stop_instance("one").success();
            }
            provider.delete("one");
            assert_eq!(provider.names(), <[String; 0]>::default());
            before.check(&world.installation, victim);
        }
    });
}

#[test]
fn a_creation_that_is_killed_at_any_moment_is_removed() {
    with_each_user("", |world, _| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let provider = world.provider();
        for round in 0..8 {
            let document = world.garm.bootstrap("one", ENDLESS, json!({}));
            let mut call = provider.start_create(&document);
            // No event says how far it is.
            std::thread::park_timeout(std::time::Duration::from_millis(25) * round);
            call.signal(Signal::KILL);
            // Fails if anything holds a pipe after the end.
            call.wait();
            match round % 2 {
                0 => provider.delete("one"),
                _ => provider.remove_all(),
            }
            assert_eq!(provider.names(), <[String; 0]>::default());
        }
        assert_eq!(named(world, HOLDER), <[u32; 0]>::default());
        before.check(&world.installation, "killed creations");
    });
}

#[test]
fn all_are_removed_and_what_a_boot_left_goes() {
    with_each_user("", |world, _| {
        let provider = world.provider();
        for name in ["one", "two"] {
            world.bring_up(name, ENDLESS, json!({}));
        }
        provider.remove_all();
        assert_eq!(provider.names(), <[String; 0]>::default());
        let instances = world.installation.store().join("instances");
        assert_eq!(entries(&instances), <[String; 0]>::default());

        // A boot takes all that is in the run directory.
        world.bring_up("one", ENDLESS, json!({}));
        kill(world, &named(world, HOLDER));
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
        assert_eq!(named(world, HOLDER), <[u32; 0]>::default());
    });
}

#[test]
fn an_instance_reaches_the_world_and_is_told_of_limits_that_do_not_hold() {
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
        let expected = "limits that do not hold: memory, pids-limit: ";
        assert!(log.text.contains(expected), "{}", log.text);
        answering.join().unwrap();
        let checked = world.installation.admin(&["doctor"]);
        let said = checked.stdout + &checked.stderr;
        assert!(said.contains("whose instances need no root"), "{said}");
        world.provider().stop_instance("one").success();
        assert_eq!(world.provider().get("one").status, Status::Stopped);
        world.provider().delete("one");
    });
}

#[test]
fn what_only_root_has_is_refused_by_name() {
    with_each_user("[flavors.small]\ndisk = \"1GiB\"\n", |world, _| {
        let document = world.garm.bootstrap("one", "true", json!({"flavor": "small"}));
        let said = world.provider().create_fails(&document);
        assert!(
            said.contains("flavor \"small\" limits the disk of the instance to 1GiB"),
            "{said}"
        );
        assert_eq!(named(world, HOLDER), <[u32; 0]>::default());
        let instances = world.installation.run_directory().join("instances");
        assert_eq!(entries(&instances), <[String; 0]>::default());
    });
}

#[test]
fn users_of_one_host_do_not_see_each_others_instances() {
    let world = world::World::new();
    let users = [world.user(Ids::Ranges), world.user(Ids::None)];
    let first = Installation::of_user(&world, &users[0], Runtime::Crun, "");
    let second = first.for_other(&users[1], "");
    let garm = Garm::start(world.host());
    let first = World { installation: first, garm };
    let second = World { installation: second, garm: Garm::start(world.host()) };
    for world in [&first, &second] {
        world.bring_up("one", ENDLESS, json!({}));
    }
    first.provider().delete("one");
    assert_eq!(first.provider().names(), <[String; 0]>::default());
    assert_eq!(second.provider().names(), ["one"]);
    assert_eq!(second.provider().get("one").status, Status::Running);
    first.provider().remove_all();
    assert_eq!(second.provider().get("one").status, Status::Running);
    second.provider().remove_all();
    assert_eq!(second.provider().names(), <[String; 0]>::default());
}
