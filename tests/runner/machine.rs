//! The test machinery itself: without it, failures elsewhere would be hard to read.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use crate::setup::runner;
use crate::support::host::Host;
use crate::support::hub::{Login, Name, Registry};
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;
use crate::support::runtime::Runtime;
use crate::support::{externals, program};

#[test]
fn registries_have_their_real_names_on_a_test_host() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let _ghcr = Registry::start(&host, Name::Ghcr, Some(Login("octocat", "a \"b\" $c")));
    let inspect =
        |words: &[&str]| host.run(Command::new(program::find("skopeo")).arg("inspect").args(words));
    assert!(inspect(&["docker://node:22"]).success().contains("IMAGE=debian"));
    let image = "docker://ghcr.io/octo/ci-image:main";
    assert!(inspect(&[image]).failure().contains("authentication required"));
    inspect(&["--creds", "octocat:a \"b\" $c", image]).success();
}

#[test]
fn a_host_shows_only_what_is_its_own() {
    let host = Host::new();
    assert_eq!(host.processes(), []);
    let mut child = host.spawn(Command::new("sleep").arg("1000"));
    let processes = host.processes();
    assert_eq!(processes.len(), 1, "{processes:?}");
    assert_eq!(processes[0].line, "sleep 1000 ");
    host.shell("unshare --pid --fork --kill-child sleep 2000 &");
    let is_seen = || host.processes().iter().any(|process| process.line == "sleep 2000 ");
    program::wait_until("a process of another namespace is seen", is_seen);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(host.shell("ip -o link").lines().count(), 1);
}

#[test]
fn both_kinds_of_node_run_on_this_machine() {
    let externals = externals::shared();
    assert!(externals.join("node20_alpine/bin/node").is_file());
    let mut node = Command::new(externals.join("node20/bin/node"));
    assert_eq!(program::run(node.args(["-p", "1+1"])).success(), "2\n");
}

#[test]
fn a_bad_hook_is_found_out() {
    let host = Host::new();
    let installation = Installation::new(&host, Runtime::Runc, "");
    let runner = runner(&installation, "runner-1");
    let hook = |script: &str| fs::write(installation.entry(), script).unwrap();
    let fails = |check: &dyn Fn()| catch_unwind(AssertUnwindSafe(check)).is_err();
    let before = Snapshot::take(&installation);

    hook("setsid sleep 1000 & exit 0");
    assert!(fails(&|| drop(runner.start_run("").wait().success())), "it holds the pipes");
    drop(installation.host().shell("kill $(pidof sleep)"));
    before.check(&installation, "nothing is left");

    hook("ip link add left type bridge; setsid sleep 1000 <&- >&- 2>&- & exit 0");
    runner.start_run("").wait().success();
    let found = before.faults(&installation).0.join("\n");
    for fault in ["a link is left: \"left:", "a process is left: \"sleep 1000"] {
        assert!(found.contains(fault), "{found}");
    }

    // A shell that waits for a program in the foreground may miss the signal.
    hook("trap 'echo told; exit 3' INT; echo started; while :; do sleep 0.1 & wait; done");
    let mut call = runner.start_run("");
    call.wait_for_line("started");
    let (ended, signals) = call.cancel();
    assert_eq!((ended.code(3).stdout().as_str(), signals), ("started\ntold\n", 1));
}
